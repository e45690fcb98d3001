"""What a request of the drafter knows as it begins: what the last requests measured, of whatever
preset, or what a Prometheus server knows of all edges and replicas.

Step times, round trips and the cloud alone are those of the pair and its cloud, so an answer of
`ar` feeds `auto` and the other way round; acceptance belongs to an acceptance rule. Readings keep
their age. Invariant: of two that know a number, the fresher is believed, wherever it comes from."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from tandem.control.acceptance import AcceptanceKnown
from tandem.control.config import DEFAULT_CONFIG
from tandem.control.estimates import NO_WARM_START, Aged, WarmStart
from tandem.runtime.pass_times import PassTimes
from tandem.specdec.choices import Acceptance
from tandem.specdec.presets import PRESETS
from tandem.telemetry.prometheus_server import Aged as ServedNumber
from tandem.telemetry.prometheus_server import Sample, read_pair

_KEEP = 0.8
"""What the acceptance of an earlier request counts for beside that of the next one."""
_SERVER_TOKENS = 16.0
"""Drafts that the acceptance of a Prometheus server counts for."""
_LOOKED_UP = ((0.0, 1e-4),)
"""Draft steps where drafts are looked up in a text."""
_PREDICTION = AcceptanceKnown(0.9, DEFAULT_CONFIG.few_tokens)
"""What is believed of a caller's prediction before any was judged: he would not send it for less.
It weighs little, so that a few wrong drafts outweigh it."""


class WarmStarts:
    """Warm starts of the draft model `engine`, at the drafter's latest target. `samples` are the
    server's; `instance` is how it calls this process, "" where nobody said. `pass_times`: what the
    draft model's passes took before it was used."""

    def __init__(
        self,
        engine: str,
        instance: str = "",
        samples: Callable[[], Sequence[Sample]] = lambda: (),
        clock: Callable[[], float] = time.monotonic,
        pass_times: PassTimes | None = None,
    ) -> None:
        self._engine = engine
        self._pass_times = pass_times
        self._instance = instance
        self._samples = samples
        self._clock = clock
        self._target_name = ""
        self._forget()

    def _forget(self) -> None:
        self._last = NO_WARM_START
        self._ended_s = self._clock()
        self._acceptance: dict[tuple[Acceptance, bool], _Rate] = {}

    def ended(
        self, preset: str, target_name: str, measured: WarmStart, predicted: bool = False
    ) -> None:
        """Record what a request measured that has ended; `preset` is the name of one that is
        listed. The request knew what those before it had measured, so its measurements take the
        place of theirs. `predicted`: its drafts were mostly the caller's, and say nothing of the
        draft model."""
        if target_name != self._target_name:
            self._forget()
            self._target_name = target_name
        now = self._clock()
        if predicted:
            measured = replace(measured, draft=self._last.later(now - self._ended_s).draft)
        self._last = measured
        self._ended_s = now
        if (known := measured.acceptance) is not None:
            key = PRESETS[preset].acceptance, predicted
            self._acceptance.setdefault(key, _Rate()).add(known, now)

    def known(self, preset: str, predicted: bool = False) -> WarmStart:
        """Return the current measurements for a request of this preset. `predicted`: its caller
        predicted the answer, so that most drafts take no time."""
        now = self._clock()
        rate = self._acceptance.get((PRESETS[preset].acceptance, predicted))
        known = self._last.later(now - self._ended_s)
        known = replace(
            known,
            acceptance=rate.aged(now) if rate else None,
        )
        if self._pass_times is not None:
            known = replace(
                known,
                draft=known.draft or ((0.0, self._pass_times.first_s),),
                prompt_row_s=self._pass_times.prompt_row_s,
            )
        if predicted:
            acceptance = known.acceptance or _PREDICTION
            known = self._with_samples(known, preset, 0.0)
            return replace(known, draft=_LOOKED_UP, acceptance=acceptance)
        return self._with_samples(known, preset, now - rate.at_s if rate else inf)

    def _with_samples(self, known: WarmStart, preset: str, rate_age_s: float) -> WarmStart:
        """Replace older measurements by those of the server."""
        served = read_pair(
            self._samples(),
            engine=self._engine,
            target=self._target_name,
            preset=preset,
            instance=self._instance,
        )
        rate = served.acceptance
        if rate is not None and rate.age_s < rate_age_s:
            known = replace(known, acceptance=AcceptanceKnown(rate.value, _SERVER_TOKENS))
        return replace(
            known,
            draft=_fresher(known.draft, served.draft_step_s),
            first=_fresher(known.first, served.verify_step_s),
            trip=_fresher(known.trip, served.round_trip_s),
        )


def _fresher(readings: Aged, served: ServedNumber | None) -> Aged:
    """Return the readings of this process, or what the server knows if that is newer."""
    if served is None or (readings and readings[-1][0] <= served.age_s):
        return readings
    return ((served.age_s, served.value),)


@dataclass(slots=True)
class _Rate:
    """Acceptance of the last requests, each weighing less the older it is."""

    right: float = 0.0
    tokens: float = 0.0
    at_s: float = 0.0

    def add(self, known: AcceptanceKnown, now: float) -> None:
        self.right = _KEEP * self.right + known.rate * known.tokens
        self.tokens = _KEEP * self.tokens + known.tokens
        self.at_s = now

    def aged(self, now: float) -> AcceptanceKnown:
        """Return the acceptance as of now: old measurements are worth fewer drafts."""
        fades = 0.5 ** ((now - self.at_s) / DEFAULT_CONFIG.half_life_s)
        return AcceptanceKnown(self.right / self.tokens, fades * self.tokens)
