"""A link whose delay sways, as in DRAGON's experiments."""

from __future__ import annotations

from math import pi, sin

from tandem.core.errors import InvalidArgument
from tandem.netem.link_model import Link, LinkSettings


class SinusoidalLink(Link):
    """One direction whose delay varies as a sine over time: DRAGON §7.4."""

    def __init__(self, settings: LinkSettings, amplitude_s: float, period_s: float) -> None:
        super().__init__(settings, seed=0)
        if not period_s > 0:
            raise InvalidArgument("period_s", f"must be above 0, is {period_s}")
        self._amplitude_s = amplitude_s
        self._period_s = period_s

    def _jitter(self) -> float:
        return self._amplitude_s * sin(2 * pi * self._now / self._period_s)
