"""The draft model computes a request's text before it drafts: what is kept of it is copied, the
rest fed. Invariants: where nothing is drafted nothing is computed; of sessions of one tenant that
need the same text at the same time one computes it; tokens that the cloud commits meanwhile do not
interrupt it, so that a slow device comes to draft in the end."""

from collections.abc import Callable
from dataclasses import replace

from tandem.backends.interface import KV_BLOCK, Session
from tandem.runtime.engine_thread import EngineThread
from tandem.runtime.prefill_job import PrefillJob
from tandem.runtime.prefix_cache import KeptPrefix, KeptText, PrefixCache
from tandem.specdec.edge import EdgeMachine


class DraftPrefill:
    """Prefill of the draft model for one request, on the event loop. `prompt`: what of it may be
    kept; `gives_back`: the bytes that are free when it ends."""

    def __init__(
        self,
        machine: EdgeMachine,
        thread: EngineThread,
        kv: Session,
        prefixes: PrefixCache,
        prompt: KeptText,
        gives_back: Callable[[], int],
    ) -> None:
        self._machine = machine
        self._thread = thread
        self._kv = kv
        self._prefixes = prefixes
        self._prompt = prompt
        self._gives_back = gives_back
        self._prefix: KeptPrefix | None = None

    @property
    def due(self) -> bool:
        """True if drafts are wanted after a text of which whole blocks are not computed. What the
        caller predicted is not computed before the text departs from it."""
        if not self._machine.may_prefill:
            return False
        if self._prefix is not None and self._machine.predicts:
            return False
        missing = len(self._machine.committed) - self._machine.kv_length
        return self._prefix is None or missing > KV_BLOCK

    async def run(self) -> None:
        """Compute the text as it is now, but for its last tokens, which the first draft feeds."""
        text = self._machine.committed.since(0)
        if self._prefix is None:
            await self._begin(replace(self._prompt, token_ids=text))
        whole = (len(text) - 1) // KV_BLOCK * KV_BLOCK
        keep = self._machine.kv_length
        if whole > keep:
            job = PrefillJob(self._kv, keep, text[keep:whole])
            self._machine.adopt_prefix((await self._thread.submit(job).future).value)
        self.leave(ends=False)

    async def _begin(self, text: KeptText) -> None:
        """Begin the draft KV with what was kept of the text. With nothing where the model has
        computed the text already: it went on after texts that proposed no more.

        The prefix is known here before it is copied: others may wait for `leave`, also where this
        request ends meanwhile."""
        if self._machine.kv_length:
            self._prefix = self._prefixes.unread(text)
            return
        self._prefix = await self._prefixes.found(text)
        await self._prefix.show(self._kv)
        self._machine.adopt_prefix(self._prefix.tokens)

    def leave(self, ends: bool = True) -> None:
        """Keep what is computed, before the session goes on or closes."""
        if self._prefix is not None:
            gives_back = self._gives_back() if ends else 0
            self._prefix.leave(self._kv, self._machine.fed_tokens, ends, gives_back)
