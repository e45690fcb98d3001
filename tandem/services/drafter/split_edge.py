"""Split inference at the drafter: the target's first layers, which all split requests share.

Invariant: `load` is called once, for the first request that needs the layers, after it was
admitted. A drafter that is a process has loaded them at its start, so that a bad model stops it;
in an embedded suite that call loads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tandem.backends.interface import Engine, Session
from tandem.core.errors import FailedPrecondition, InvalidArgument
from tandem.net.tenant import Tenant
from tandem.runtime.engine_thread import EngineThread
from tandem.runtime.pass_times import measure_pass_times
from tandem.runtime.watchdog import STUCK_AFTER_S
from tandem.specdec.presets import Preset


@dataclass(frozen=True, slots=True)
class LayersSession:
    """Keys and values of the first layers, and the thread that computes them."""

    thread: EngineThread
    kv: Session


class SplitEdge:
    """The first `layers` layers of the target. `load` returns an engine whose passes answer hidden
    states in the place of logits; it may take long."""

    def __init__(
        self, layers: int, load: Callable[[], Engine], stuck_after_s: float = STUCK_AFTER_S
    ) -> None:
        self.layers = layers
        self._load = load
        self._stuck_after_s = stuck_after_s
        self._loading = asyncio.Lock()
        self._thread: EngineThread | None = None

    def check(self, preset: Preset) -> None:
        """Raise InvalidArgument where a preset splits the target elsewhere."""
        if preset.split_layers != self.layers:
            why = f"this drafter runs the target's first {self.layers} layers"
            raise InvalidArgument("split_layers", why)

    async def thread(self, vocabulary_hash: str) -> EngineThread:
        """Return the layers' thread, loading them for the first request. Raises FailedPrecondition
        where they are of a model with another vocabulary."""
        async with self._loading:
            if self._thread is None:
                engine = await asyncio.to_thread(self._load)
                if engine.vocabulary_hash != vocabulary_hash:
                    raise FailedPrecondition(
                        f"the layers of {engine.model_name} are not the target's: its vocabulary"
                        " is another one"
                    )
                self._thread = EngineThread(
                    engine,
                    "drafter-layers",
                    stuck_after_s=self._stuck_after_s,
                    pass_times=await asyncio.to_thread(measure_pass_times, engine),
                )
        return self._thread

    async def close(self) -> None:
        """Stop the thread, if there is one."""
        if self._thread is not None:
            await asyncio.to_thread(self._thread.stop)


@asynccontextmanager
async def layers_session(
    thread: EngineThread | None, capacity: int, tenant: Tenant, payer: Tenant
) -> AsyncIterator[LayersSession | None]:
    """Yield keys and values for up to `capacity` tokens, freed on every way out; None where there
    are no layers."""
    if thread is None:
        yield None
        return
    async with thread.session(capacity, tenant=tenant, payer=payer) as kv:
        yield LayersSession(thread, kv)


def needed_layers(split: SplitEdge | None, preset: Preset) -> SplitEdge | None:
    """Return what a preset needs of the target's layers; None where it splits nothing. Raises
    FailedPrecondition where the drafter has none, and as `SplitEdge.check`."""
    if not preset.split_layers:
        return None
    if split is None:
        raise FailedPrecondition(
            f"preset {preset.name!r} needs the target's first layers at the drafter; give it"
            " --split-model"
        )
    split.check(preset)
    return split
