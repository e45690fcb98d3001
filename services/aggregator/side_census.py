"""How many answers under way are aggregated at which side, counted when metrics are read.

Invariant: a machine is counted from `counted` to the end of its context, at the side it is at when
somebody looks; one that has no aggregator, since a coin chooses, is counted at neither. Must not
import torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tandem.core.aggregation import Side
from tandem.protocol.aggregating import SideMachine
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.side_decisions import NAMES


class SideCensus:
    """Changed on the event loop, read on the thread of the metrics endpoint."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._under_way: dict[tuple[str, str], set[SideMachine]] = {}

    @contextmanager
    def counted(self, preset: str, model_name: str, machine: SideMachine) -> Iterator[None]:
        """`machine` answers with `preset` inside; `model_name` is the target's."""
        key = (self._metrics.admit("preset", preset), self._metrics.admit("model_name", model_name))
        if key not in self._under_way:
            self._under_way[key] = set()
            self._export(*key)
        machines = self._under_way[key]
        machines.add(machine)
        try:
            yield
        finally:
            machines.discard(machine)

    def _export(self, preset: str, model_name: str) -> None:
        machines = self._under_way[preset, model_name]
        series = self._metrics.method(preset, model_name)

        def at(side: Side) -> float:
            return sum(machine.aggregating is side for machine in tuple(machines))

        for side, name in NAMES.items():
            series.aggregating_at(name).set_function(partial(at, side))
