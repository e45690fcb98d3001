"""Drafts beside the large model alone, turn by turn: how the speeds differ, how far that spreads,
and in one line whether drafts paid and why.

Ratios are of the two answers of one turn, so that what slows this machine for a while slows both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tandem.core.errors import TandemError
from tandem.generation.client import Generated
from tandem.generation.figures import answer_figures

SHORT_TOKENS = 16
"""Answers with fewer have a speed that is mostly chance."""
_RARELY_RIGHT = 0.5
"""Below this acceptance, that is why drafts do not pay."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle of some values, the lowest and the highest."""

    middle: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Some turns of one question with one seed: `own` are the answers by a preset, `alone` those by
    the large model alone, in the same order. Raises TandemError for answers without a speed."""

    own: tuple[Generated, ...]
    alone: tuple[Generated, ...]

    def __post_init__(self) -> None:
        if any(answer.tpot_s is None for answer in (*self.own, *self.alone)):
            raise TandemError("the answer is too short to compare speeds; ask for a longer one")

    @property
    def speedup(self) -> Spread:
        """How many times as fast as the large model alone, of the two answers of each turn."""
        pairs = zip(_tpots_s(self.own), _tpots_s(self.alone), strict=True)
        return Spread.of([alone_s / own_s for own_s, alone_s in pairs])

    @property
    def is_same_text(self) -> bool:
        """Whether all answers have one text."""
        return len({answer.text for answer in (*self.own, *self.alone)}) == 1

    def verdict(self) -> str:
        """Return one plain line: whether drafts paid here, and why."""
        taken = [answer_figures(answer) for answer in self.own]
        if min(figures["tokens"] for figures in taken) < SHORT_TOKENS:
            return f"answers of fewer than {SHORT_TOKENS} tokens are too short to tell"
        speedup = self.speedup
        times = (
            f"{speedup.middle:.2f} times as fast ({speedup.lowest:.2f} to {speedup.highest:.2f})"
        )
        if not any(map(_helped, taken)):
            # Without an accepted draft nothing can be faster, only slower by what drafts cost.
            chance = ", by chance" if speedup.highest >= 1 else ""
            return f"no draft helped here: {times}{chance}; {why_not(taken[-1])}"
        if speedup.lowest > 1:
            passes = f"{median(map(passes_per_token, taken)):.2f}"
            return f"drafts paid here: {times}, with {passes} passes of the large model a token"
        if speedup.highest < 1:
            return f"drafts did not pay here: {times}; {why_not(taken[-1])}"
        return f"no difference that {len(taken)} turns can show: {times}; {why_not(taken[-1])}"


def speeds(answers: Sequence[Generated]) -> Spread:
    """Return tokens per second after the first token."""
    return Spread.of([1 / tpot_s for tpot_s in _tpots_s(answers)])


def passes_per_token(figures: Mapping[str, Any]) -> float:
    """Return how often the large model computed for each token of an answer."""
    return float(figures["target_passes"] / max(1, figures["tokens"]))


def why_not(figures: Mapping[str, Any]) -> str:
    """Return what costs most of the gain of a draft: of what the controller measured, otherwise of
    what was accepted. `figures` are those of `answer_figures`."""
    choice = figures.get("choice")
    if choice is None or not choice["target_pass_s"]:
        drafted = figures["drafted"] + (figures.get("cloud_drafted") or 0)
        if not drafted:
            return "no draft was made"
        accepted = figures["accepted"] + (figures.get("cloud_accepted") or 0)
        return f"{accepted / drafted:.0%} of the drafts were right"
    if choice["acceptance_rate"] < _RARELY_RIGHT:
        return f"about {choice['acceptance_rate']:.0%} of the drafts are right"
    costs_s = {
        "checking a drafted token": choice["per_draft_token_s"],
        "drafting a token": choice["draft_step_s"],
        "the link's round trip": choice["round_trip_s"],
    }
    what, cost_s = max(costs_s.items(), key=lambda cost: cost[1])
    share = cost_s / choice["target_pass_s"]
    long = f"{share:.0%} of a pass" if share < 1 else f"{share:.1f} passes"
    return f"{what} takes as long as {long} of the large model"


def _helped(figures: Mapping[str, Any]) -> bool:
    """Return whether any draft is in the answer."""
    return bool(figures["accepted"] or figures.get("cloud_accepted"))


def _tpots_s(answers: Sequence[Generated]) -> list[float]:
    return [answer.tpot_s for answer in answers if answer.tpot_s is not None]
