"""Early exits at the cloud: what they expect of a pass, and which of that leaves first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tandem.core.frozen import frozen
from tandem.core.randomness import RandomSource
from tandem.core.sparse_payload import FullPayload
from tandem.specdec.choices import PredraftOrder, RejectionPayload
from tandem.specdec.judge import DistributionAt, Judge
from tandem.specdec.messages import Frame
from tandem.specdec.presets import VerifySettings
from tandem.specdec.rounds.messages import EarlyVerdict
from tandem.specdec.rules import AcceptanceRule, PayloadRule, payload_rule

EARLY_TOP = 32
"""Most entries of an early payload: it is a guess, and not worth the bytes of a whole one."""


@frozen
class EarlyJudge:
    """Judges the drafts of one pass by its early exits: what the verdict will probably be.

    FSD §3, steps 2 and 3: every exit judges the drafts as the pass itself will, with the same
    random numbers, so that its verdict is the final one wherever its distributions are. The judge
    is the pass's own but for smaller payloads. Early verdicts change nothing on either side but
    what is drafted ahead. `temperatures`, of all exits of the model, calibrate how sure each is;
    empty: 1."""

    frame: Frame
    exits: tuple[int, ...]
    judge: Judge
    temperatures: tuple[float, ...] = ()

    def temperature(self, exit_index: int) -> float:
        """Return what an exit's logits are divided by before its confidence is read."""
        return self.temperatures[exit_index] if self.temperatures else 1.0

    def verdict(
        self,
        exit_index: int,
        distribution_at: DistributionAt,
        confidence_at: Callable[[int], float],
    ) -> EarlyVerdict | None:
        """Return the verdict of exit `exit_index`, or None if nothing follows.

        Args:
            exit_index: which of the target's exits this is.
            distribution_at: the exit's distribution in a row of the pass, after sampling settings.
            confidence_at: how sure the exit is in a row, in [0, 1]."""
        judge = self.judge
        verification = judge.judge(distribution_at)
        target = verification.next_target
        accepted = len(verification.path)
        if target is None:
            return None
        row = judge.row(verification.path[-1] if accepted else -1)
        outcome = verification.replacement
        if outcome is None:
            outcome = judge.rule.target_token(target, self.frame.base + accepted)
        assert not isinstance(outcome, FullPayload), "early verdicts are small"
        return EarlyVerdict(
            session=self.frame.session,
            base=self.frame.base,
            prefix_hash=self.frame.prefix_hash,
            exit_index=exit_index,
            accepted=accepted,
            rejected=verification.replacement is not None,
            outcome=outcome,
            confidence=confidence_at(row) if row >= 0 else 1.0,
        )


def early_payload_rule(
    settings: VerifySettings, rule: AcceptanceRule, rng: RandomSource
) -> PayloadRule:
    """Return the rejection payload of early verdicts: the session's own, made small. Where the edge
    draws, it is a sparse one, whatever it is in the end."""
    payload = settings.rejection_payload
    top = min(settings.payload_top, EARLY_TOP)
    if payload is RejectionPayload.FULL_DISTRIBUTION:
        payload = RejectionPayload.LOSSLESS_SPARSE
        top = EARLY_TOP
    return payload_rule(replace(settings, rejection_payload=payload, payload_top=top), rule, rng)


class EarlyQueue:
    """Early verdicts of one pass that wait for the link, leaving in `order` (FSD §3, step 3)."""

    def __init__(self, order: PredraftOrder, seed: int) -> None:
        self._order = order
        self._seed = seed
        self._waiting: list[EarlyVerdict] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def push(self, verdict: EarlyVerdict) -> None:
        """Queue a verdict; a later one of the same exit replaces it."""
        self._waiting = [v for v in self._waiting if v.exit_index != verdict.exit_index]
        self._waiting.append(verdict)

    def pop(self) -> EarlyVerdict:
        """Take the next verdict to send. Only while there is one."""
        first = min(self._waiting, key=self._rank)
        self._waiting.remove(first)
        return first

    def clear(self) -> None:
        """Drop early verdicts: the verdict itself is there."""
        self._waiting.clear()

    def _rank(self, verdict: EarlyVerdict) -> float:
        return self._order.rank(verdict.confidence, self._seed, verdict.base, verdict.exit_index)
