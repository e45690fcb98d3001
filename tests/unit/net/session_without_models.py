"""A session of the real runner whose machine decides nothing and whose messages say nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from tandem.net.session_runner import SessionRunner
from tandem.specdec.liveness import Phase


class Machine:
    phase = Phase.CONNECTING
    goes_on_alone = False

    def connect(self, now: float) -> list[Any]:
        self.phase = Phase.RUNNING
        return []

    def lost(self, now: float, stuck_s: float = 0.0) -> list[Any]:
        self.phase = Phase.CONNECTING
        return []

    def tick(self, now: float) -> list[Any]:
        return []


class SessionWithoutModels(SessionRunner[Any, Any, Any]):
    """`opened`: the type of the frame that admits it."""

    def __init__(
        self,
        open_stream: Callable[[Any, Any], Any],
        opened: type[Any],
        closing_tasks: set[asyncio.Task[None]],
    ) -> None:
        super().__init__(open_stream, opened, closing_tasks, self._why_silent, spread=1)
        self._machine = Machine()

    @property
    def machine(self) -> Machine:
        return self._machine

    def receive(self, message: Any, size_bytes: int, now: float) -> Sequence[Any]:
        return []

    def perform(self, output: Any) -> None: ...

    def cancel_machine(self) -> Sequence[Any]:
        return []

    async def _why_silent(self) -> str:
        return ""
