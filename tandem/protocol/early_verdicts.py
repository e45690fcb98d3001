"""Early verdicts: what the cloud's verdict will probably be, judged with the laws of early exits.

FSD §3, steps 2 and 3: every exit judges the drafts of a pass as the pass itself will, with the same
random numbers, so that a verdict is the final one wherever the exit's laws are. Invariant: early
verdicts change nothing on either side but what is drafted ahead. Must not import asyncio, grpc,
torch or time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tandem.core.chance import Chance, unit
from tandem.core.hashing import hash_words
from tandem.core.laws import Array
from tandem.policy.choices import Answer, PredraftOrder
from tandem.policy.presets import Preset
from tandem.protocol.messages import EarlyVerdict, Frame
from tandem.protocol.rules import AcceptanceRule, AnswerRule, Proposal, TargetLaw, answer_rule

EARLY_TOP = 32
"""Most entries of an early answer to draw from: it is a guess, and not worth the bytes of a whole
answer."""


@dataclass(frozen=True, slots=True)
class EarlyJudge:
    """The drafts of one pass, as an exit of that pass judges them. Immutable, so that it may judge
    where the laws are.

    `frontier_law`: the law of the first position, where an earlier pass gave it. `ends`, `limit`:
    tokens and length that end the text. `adds_token`: the cloud adds one after full acceptance.
    """

    frame: Frame
    exits: tuple[int, ...]
    drafts: tuple[Proposal, ...]
    frontier_law: TargetLaw | None
    ends: frozenset[int]
    limit: int
    adds_token: bool
    rule: AcceptanceRule
    answers: AnswerRule

    def verdict(
        self,
        exit_index: int,
        law_at: Callable[[int], Array],
        confidence_at: Callable[[int], float],
    ) -> EarlyVerdict | None:
        """`law_at(i)`: the exit's law in the i-th row that the pass's work wants, after sampling
        settings; `confidence_at(i)`: how sure it is there, in [0, 1]. Asked for as far as needed.
        None where nothing would be drafted after the verdict."""
        known = self.frontier_law is not None
        for accepted, proposal in enumerate(self.drafts):
            position = self.frame.base + accepted
            row = accepted - known
            target = self.frontier_law if row < 0 else None
            if target is None:
                target = self.rule.prepare(law_at(row), position)
            if not self.rule.accepts(target, proposal, position):
                outcome = self.answers.answer(target, proposal, position)
                confidence = confidence_at(row) if row >= 0 else 1.0
                return self._verdict(exit_index, accepted, True, outcome, confidence)
            if proposal.token_id in self.ends or position + 1 >= self.limit:
                return None
        if not self.adds_token:
            return None
        last = len(self.drafts) - known
        token = self.rule.own_token(law_at(last), self.frame.base + len(self.drafts))
        return self._verdict(exit_index, len(self.drafts), False, token, confidence_at(last))

    def _verdict(
        self, exit_index: int, accepted: int, rejected: bool, outcome: object, confidence: float
    ) -> EarlyVerdict:
        frame = self.frame
        return EarlyVerdict(
            frame.session,
            frame.epoch,
            frame.base,
            frame.prefix,
            exit_index=exit_index,
            accepted=accepted,
            rejected=rejected,
            outcome=outcome,  # type: ignore[arg-type]  # no answer rule used here gives a full law
            confidence=confidence,
        )


def early_answer_rule(preset: Preset, rule: AcceptanceRule, chance: Chance) -> AnswerRule:
    """The rejection answer of early verdicts: the preset's own, made small. Where the edge draws,
    it is a sparse one, whatever it is in the end."""
    answer = Answer.LOSSLESS_SPARSE if preset.answer is Answer.FULL_LAW else preset.answer
    top = min(preset.answer_top, EARLY_TOP) if preset.answer is answer else EARLY_TOP
    return answer_rule(replace(preset, answer=answer, answer_top=top), rule, chance)


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
