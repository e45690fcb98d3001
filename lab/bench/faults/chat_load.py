"""Chats that ask side by side, and what they saw.

Invariant: times are the caller's own clock's; tokens that arrive in one event have no time between
them, so the latency between tokens is that between events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf
from typing import Any

QUANTILES = (0.5, 0.95, 0.99)


@dataclass(slots=True)
class Turn:
    """One question and what came of it; `arrivals` are moments with numbers of tokens."""

    chat: int
    began_s: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    figures: Mapping[str, Any] = field(default_factory=dict)
    failure: str = ""

    @property
    def ttft_s(self) -> float:
        """Infinite for one without a token."""
        return self.arrivals[0][0] - self.began_s if self.arrivals else inf

    @property
    def tpot_s(self) -> float | None:
        """(last − first)/(tokens − 1); None for fewer than two."""
        if len(self.token_ids) < 2:
            return None
        return (self.arrivals[-1][0] - self.arrivals[0][0]) / (len(self.token_ids) - 1)

    @property
    def gaps_s(self) -> list[float]:
        moments = [moment for moment, _ in self.arrivals]
        return [after - before for before, after in pairwise(moments)]

    def undilated(self, factor: float) -> Turn:
        """Return the turn with its times divided by `factor`, by which they were dilated."""
        arrivals = [(moment / factor, tokens) for moment, tokens in self.arrivals]
        return replace(self, began_s=self.began_s / factor, arrivals=arrivals)

    def within(self, ttft_s: float, tpot_s: float) -> bool:
        """Return whether the answer is complete and kept to these limits of TTFT and TPOT."""
        return not self.failure and self.ttft_s <= ttft_s and (self.tpot_s or 0.0) <= tpot_s


def load_figures(
    turns: Sequence[Turn], begins_s: float, ends_s: float, slo_s: tuple[float, float]
) -> dict[str, Any]:
    """Return the figures of what was asked between two moments: TTFT, TPOT and ITL by quantile;
    tokens that came then, per second; `goodput`: answers per second that kept to `slo_s` (TTFT,
    TPOT), and their share; failures; `jain`: fairness of the chats' speeds."""
    lasted_s = ends_s - begins_s
    arrivals = [arrival for turn in turns for arrival in turn.arrivals]
    begun = [turn for turn in turns if begins_s <= turn.began_s < ends_s]
    whole = [turn for turn in begun if not turn.failure]
    figures: dict[str, Any] = {
        "answers": len(whole),
        "failed": len(begun) - len(whole),
        "tokens_per_s": sum(n for at, n in arrivals if begins_s <= at <= ends_s) / lasted_s,
    }
    series = {
        "ttft": [turn.ttft_s for turn in begun],
        "tpot": [turn.tpot_s for turn in whole if turn.tpot_s is not None],
        "itl": [gap for turn in whole for gap in turn.gaps_s],
    }
    for name, values in series.items():
        for share in QUANTILES:
            figures[f"{name}_p{share * 100:.0f}_s"] = quantile(values, share)
    good = sum(turn.within(*slo_s) for turn in begun)
    figures |= {"goodput": good / lasted_s, "within_slo": good / len(begun) if begun else None}
    figures["jain"] = jain(list(speeds(whole).values()))
    return figures


def speeds(turns: Sequence[Turn]) -> dict[int, float]:
    """Return the decoding speed of each chat in tokens per second, by the chat's number."""
    tokens = dict[int, int]()
    seconds = dict[int, float]()
    for turn in turns:
        if turn.tpot_s is not None:
            later = len(turn.token_ids) - 1
            tokens[turn.chat] = tokens.get(turn.chat, 0) + later
            seconds[turn.chat] = seconds.get(turn.chat, 0.0) + later * turn.tpot_s
    return {chat: tokens[chat] / seconds[chat] for chat in tokens if seconds[chat]}


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that more than `share` of the values do not exceed, or the largest
    for a `share` of 1; None without values."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else None


def jain(values: Sequence[float]) -> float | None:
    """Return Jain's fairness index, (Σx)²/(n·Σx²): 1 where all get the same, 1/n where one gets all
    (Jain, Chiu, Hawe 1984). None where there is nothing but zeros."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else None
