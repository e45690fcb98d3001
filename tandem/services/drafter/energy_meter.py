"""What this machine's processors draw, while the engine works beyond what they draw anyway: read
from the kernel's energy counters (RAPL, under powercap) where there are readable ones. Invariant:
until enough was seen, and where there is no counter, what is declared holds."""

import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tandem.core.line_fit import LineFit
from tandem.specdec.objective import Prices

POWERCAP = Path("/sys/class/powercap")
_PACKAGE = re.compile(r"intel-rapl:\d+")
"""Of a whole processor, AMD's too; what follows a second colon is a part of one."""
_EVERY_S = 1.0
_LEAST_POINTS, _LEAST_SPREAD = 5.0, 0.25
"""Intervals, and by what share of them the longest work among them differs from the shortest."""
_KEEP = 0.98
_PERCENT = 100


@dataclass(slots=True)
class EnergyCounter:
    """Microjoules of one processor, from 0 again after `range_uj`."""

    path: Path
    range_uj: int
    last_uj: int

    def joules(self) -> float:
        """Since the last reading. OSError, ValueError where it cannot be read."""
        now_uj = int(self.path.read_text())
        used_uj, self.last_uj = (now_uj - self.last_uj) % (self.range_uj + 1), now_uj
        return used_uj / 1e6


def energy_counters(folder: Path = POWERCAP) -> list[EnergyCounter]:
    """Those of all processors; none where one may not be read, as on most machines but for root."""
    found = []
    try:
        for each in sorted(folder.iterdir()):
            if _PACKAGE.fullmatch(each.name):
                range_uj = int((each / "max_energy_range_uj").read_text())
                path = each / "energy_uj"
                found.append(EnergyCounter(path, range_uj, int(path.read_text())))
    except (OSError, ValueError):
        return []
    return found


class EnergyMeter:
    """`worked` may be called on the engine thread, `prices` on the event loop."""

    def __init__(
        self,
        declared: Prices,
        counters: Sequence[EnergyCounter],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._declared, self._counters, self._clock = declared, list(counters), clock
        self._lock = threading.Lock()
        self._watts = LineFit(_KEEP)  # over the percentage of the time that the engine worked
        self._least, self._most = 1.0, 0.0
        self._since, self._worked_s = clock(), 0.0

    def worked(self, seconds: float) -> None:
        """The engine made a pass."""
        if self._counters:
            with self._lock:
                self._worked_s += seconds
                self._read()

    @property
    def prices(self) -> Prices:
        """As declared, with the watts that were measured."""
        if not self._counters:
            return self._declared
        with self._lock:
            self._read()
            if self._watts.weight < _LEAST_POINTS or self._most - self._least < _LEAST_SPREAD:
                return self._declared
            idle_watts, further = self._watts.fit()
        watts = _PERCENT * further
        return replace(self._declared, edge_watts=watts, edge_idle_watts=max(0.0, idle_watts))

    def _read(self) -> None:
        """A point of the line, if the last one is long enough ago."""
        now = self._clock()
        if (lasted_s := now - self._since) < _EVERY_S:
            return
        try:
            joules = sum(counter.joules() for counter in self._counters)
        except (OSError, ValueError):
            self._counters = []
            return
        share = min(1.0, self._worked_s / lasted_s)
        self._since, self._worked_s = now, 0.0
        self._least, self._most = min(self._least, share), max(self._most, share)
        self._watts.add(_PERCENT * share, joules / lasted_s)
