"""The first layers' tasks of one split request, as jobs of their engine's thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tandem.backends.interface import ForwardRequest, Logits, Session
from tandem.core.probs import Array
from tandem.runtime.engine_jobs import Job, JobHandle
from tandem.runtime.engine_thread import EngineThread
from tandem.specdec.edge import EdgeMachine
from tandem.specdec.events import LayersTask


class LayersJob(Job[Array]):
    """One pass over a task's tokens; the result are their hidden states [n, hidden size]."""

    def __init__(self, session: Session, task: LayersTask) -> None:
        self._session = session
        self._task = task
        self._states: Array | None = None

    def request(self) -> ForwardRequest:
        task = self._task
        self._session.rollback(task.first)
        return ForwardRequest(self._session, task.token_ids, logits_to_keep=len(task.token_ids))

    def take(self, logits: Logits) -> bool:
        self._states = np.array(logits)  # an engine may write the next pass's where these are
        return True

    def result(self) -> Array:
        assert self._states is not None, "the pass is over"
        return self._states


@dataclass(frozen=True, slots=True)
class LayersReady:
    """A task that ended; `states` raises what ended it, if it failed."""

    task: LayersTask
    handle: JobHandle[Array]

    def states(self) -> Array:
        """Return the hidden states [n, hidden size]."""
        return self.handle.future.result().value


class LayersRunner:
    """Starts the machine's tasks, one at a time; `on_ready` is called on the event loop."""

    def __init__(
        self,
        machine: EdgeMachine,
        thread: EngineThread,
        kv: Session,
        on_ready: Callable[[LayersReady], None],
    ) -> None:
        self._machine = machine
        self._thread = thread
        self._kv = kv
        self._on_ready = on_ready
        self._handle: JobHandle[Array] | None = None

    def start_due(self) -> None:
        """Start the task that is due, if any. One of a stream that is gone gives way to it."""
        if (task := self._machine.layers_work()) is None:
            return
        self.close()
        handle = self._thread.submit(LayersJob(self._kv, task))
        self._handle = handle
        handle.future.add_done_callback(lambda _: self._done(LayersReady(task, handle)))

    def close(self) -> None:
        """Give up what is under way."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _done(self, ready: LayersReady) -> None:
        if not ready.handle.future.cancelled():
            self._on_ready(ready)
