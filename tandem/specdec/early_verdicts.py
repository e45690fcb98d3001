"""Early verdicts: what the cloud's verdict will probably be, judged with the distributions of early
exits.

FSD §3, steps 2 and 3: every exit judges the drafts of a pass as the pass itself will, with the same
random numbers, so that a verdict is the final one wherever the exit's distributions are. Invariant:
early verdicts change nothing on either side but what is drafted ahead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tandem.core.hashing import hash_words, unit
from tandem.core.randomness import RandomSource
from tandem.specdec.choices import PredraftOrder, RejectionPayload
from tandem.specdec.judge import DistributionAt, Judge
from tandem.specdec.messages import EarlyVerdict, Frame
from tandem.specdec.presets import Preset
from tandem.specdec.rules import AcceptanceRule, PayloadRule, payload_rule

EARLY_TOP = 32
"""Most entries of an early payload: it is a guess, and not worth the bytes of a whole one."""


@dataclass(frozen=True, slots=True)
class EarlyJudge:
    """Judges the drafts of one pass by its early exits, with the pass's own judge but for smaller
    payloads. Frozen, so that it may judge on the engine thread."""

    frame: Frame
    exits: tuple[int, ...]
    judge: Judge

    def verdict(
        self,
        exit_index: int,
        distribution_at: DistributionAt,
        confidence_at: Callable[[int], float],
    ) -> EarlyVerdict | None:
        """`distribution_at(row)`: the exit's in a row of the pass, after sampling settings;
        `confidence_at(row)`: how sure it is there, in [0, 1]. None: nothing follows."""
        judge, frame = self.judge, self.frame
        judgement = judge.judge(distribution_at)
        target, accepted = judgement.next_target, len(judgement.path)
        if target is None:
            return None
        rejected = judgement.replacement is not None
        row = judge.row(judgement.path[-1] if accepted else -1)
        return EarlyVerdict(
            frame.session,
            frame.epoch,
            frame.base,
            frame.prefix,
            exit_index=exit_index,
            accepted=accepted,
            rejected=rejected,
            outcome=judgement.replacement  # type: ignore[arg-type]  # never a full distribution
            if rejected
            else judge.rule.target_token(target, frame.base + accepted),
            confidence=confidence_at(row) if row >= 0 else 1.0,
        )


def early_payload_rule(preset: Preset, rule: AcceptanceRule, rng: RandomSource) -> PayloadRule:
    """The rejection payload of early verdicts: the preset's own, made small. Where the edge draws,
    it is a sparse one, whatever it is in the end."""
    payload, top = preset.rejection_payload, min(preset.payload_top, EARLY_TOP)
    if payload is RejectionPayload.FULL_DISTRIBUTION:
        payload, top = RejectionPayload.LOSSLESS_SPARSE, EARLY_TOP
    return payload_rule(replace(preset, rejection_payload=payload, payload_top=top), rule, rng)


class EarlyQueue:
    """Early verdicts of one pass that wait for the link, leaving in `order` (FSD §3, step 3)."""

    def __init__(self, order: PredraftOrder, seed: int) -> None:
        self._order = order
        self._seed = seed
        self._waiting: list[EarlyVerdict] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def push(self, verdict: EarlyVerdict) -> None:
        """One per exit at most: what an exit says again replaces what it said."""
        self._waiting = [v for v in self._waiting if v.exit_index != verdict.exit_index]
        self._waiting.append(verdict)

    def pop(self) -> EarlyVerdict:
        """The next one to send. Only while there is one."""
        first = min(self._waiting, key=self._rank)
        self._waiting.remove(first)
        return first

    def clear(self) -> None:
        """The verdict itself is there."""
        self._waiting.clear()

    def _rank(self, verdict: EarlyVerdict) -> float:
        match self._order:
            case PredraftOrder.CONFIDENCE:
                return -verdict.confidence
            case PredraftOrder.FIFO:
                return float(verdict.exit_index)
            case PredraftOrder.RANDOM:
                return unit(hash_words(self._seed, verdict.base, verdict.exit_index))
