"""Token ids of OpenAI's vocabulary cl100k_base as the texts that they spell.

OpenAI's embeddings API takes token ids, and its models for embeddings have this one vocabulary, so
that clients send its ids whichever server they ask; LangChain's does by default. The vocabulary
comes by the library `tiktoken`, which has it in the folder TIKTOKEN_CACHE_DIR or downloads it once.

Invariant: nobody waits for it for longer than `LOAD_TIMEOUT_S`, and the event loop never does; a
vocabulary that could not be had is not looked for again before `RETRY_S` have passed."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

from tandem.core.errors import InvalidArgument
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

NAME = "cl100k_base"
LOAD_TIMEOUT_S = 10.0
"""A download of 1.7 MB, and half a second of one core."""
RETRY_S = 300.0


class TokenSpelling(Protocol):
    """What a vocabulary's ids spell; `tiktoken.Encoding` is one."""

    def decode_bytes(self, tokens: Sequence[int], /) -> bytes:
        """Return what the ids spell, together. Raises KeyError for an id that there is not."""


def load_cl100k() -> TokenSpelling:
    """Load the vocabulary, which may take as long as the network wants. Raises ImportError without
    `tiktoken`, and whatever it raises where the vocabulary cannot be had."""
    import tiktoken  # it is optional

    return tiktoken.get_encoding(NAME)


class OpenAIVocabulary:
    """The vocabulary, loaded when it is first needed; used on the event loop only."""

    def __init__(
        self,
        load: Callable[[], TokenSpelling] = load_cl100k,
        *,
        timeout_s: float = LOAD_TIMEOUT_S,
        retry_s: float = RETRY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load = load
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._clock = clock
        self._spelling: TokenSpelling | None = None
        self._loading: asyncio.Task[None] | None = None
        self._began_s = 0.0
        self._failed_s: float | None = None

    async def loaded(self) -> TokenSpelling | None:
        """Return the vocabulary; None where it cannot be had, or not soon enough."""
        if self._spelling is not None:
            return self._spelling
        now_s = self._clock()
        if self._loading is None:
            if self._failed_s is not None and now_s - self._failed_s < self._retry_s:
                return None
            self._began_s = now_s
            self._loading = asyncio.create_task(self._fetch())
        # The deadline is the loading's: one that hangs makes only its first callers wait.
        left_s = max(0.0, self._began_s + self._timeout_s - now_s)
        await asyncio.wait((self._loading,), timeout=left_s)
        return self._spelling

    async def close(self) -> None:
        """Wait no longer for a vocabulary that is being loaded."""
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)

    async def _fetch(self) -> None:
        """Load on a thread that a stopping process does not wait for: a download has no time limit
        that could be set."""
        future: Future[TokenSpelling] = Future()
        future.set_running_or_notify_cancel()
        thread = threading.Thread(
            target=_run, args=(self._load, future), name="openai-vocabulary", daemon=True
        )
        thread.start()
        try:
            self._spelling = await asyncio.wrap_future(future)
        except Exception as error:
            self._failed_s = self._clock()
            why = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            log.warning("no vocabulary for OpenAI's token ids", vocabulary=NAME, why=why)
        finally:
            self._loading = None


def _run(load: Callable[[], TokenSpelling], future: "Future[TokenSpelling]") -> None:
    try:
        future.set_result(load())
    except BaseException as error:
        future.set_exception(error)


def spelt_texts(
    vocabulary: TokenSpelling,
    inputs: Sequence[Sequence[int]],
    places: Sequence[int],
    most_characters: int,
) -> list[str | Sequence[int]]:
    """Return `inputs` with the texts of those at `places` in their stead. A character that is cut
    at the end of a list, as where a client splits a long text, is U+FFFD. Raises
    InvalidArgument("input") for an id outside the vocabulary, and for more characters in all."""
    read: list[str | Sequence[int]] = [*inputs]
    size = 0
    for place in places:
        text = _spelt(vocabulary, inputs[place])
        size += len(text)
        if size > most_characters:
            why = f"the token ids spell more than {most_characters} characters"
            raise InvalidArgument("input", why)
        read[place] = text
    return read


def _spelt(vocabulary: TokenSpelling, token_ids: Sequence[int]) -> str:
    try:
        return vocabulary.decode_bytes(token_ids).decode("utf-8", "replace")
    except KeyError:
        unknown = next(each for each in token_ids if not _knows(vocabulary, each))
        why = f"token id {unknown} is not in OpenAI's vocabulary {NAME}; send texts instead"
        raise InvalidArgument("input", why) from None


def _knows(vocabulary: TokenSpelling, token_id: int) -> bool:
    try:
        vocabulary.decode_bytes((token_id,))
    except KeyError:
        return False
    return True
