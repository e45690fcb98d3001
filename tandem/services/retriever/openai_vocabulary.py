"""Token ids of OpenAI's vocabulary cl100k_base as the texts that they spell.

OpenAI's embeddings API takes token ids, and its models for embeddings have this one vocabulary, so
that clients send its ids whichever server they ask; LangChain's does by default. The vocabulary is
read by the library `tiktoken`, from the folder that TIKTOKEN_CACHE_DIR names.

Invariant: no caller makes this process reach the network. `tiktoken` would download what it does
not find, so that it is asked only for a file that is there and whole."""

import asyncio
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from tandem.core.errors import InvalidArgument
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

NAME = "cl100k_base"
FOLDER_VARIABLE = "TIKTOKEN_CACHE_DIR"
FILE = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"
"""The name under which `tiktoken` keeps the vocabulary: the SHA-1 of its address."""
SHA256 = "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"


class TokenSpelling(Protocol):
    """What a vocabulary's ids spell; `tiktoken.Encoding` is one."""

    def decode_bytes(self, tokens: Sequence[int], /) -> bytes:
        """Return what the ids spell, together. Raises KeyError for an id that there is not."""


def load_cl100k() -> TokenSpelling:
    """Load the vocabulary, which takes half a second of one core. Raises ImportError without
    `tiktoken`, OSError without its file, ValueError for another file."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        raise FileNotFoundError(f"{FOLDER_VARIABLE} names no folder")
    file = Path(folder) / FILE
    if hashlib.sha256(file.read_bytes()).hexdigest() != SHA256:
        raise ValueError(f"{file} is not {NAME}")
    import tiktoken  # it is optional

    return tiktoken.get_encoding(NAME)


class OpenAIVocabulary:
    """The vocabulary, loaded when it is first needed; used on the event loop only."""

    def __init__(self, load: Callable[[], TokenSpelling] = load_cl100k) -> None:
        self._load = load
        self._spelling: TokenSpelling | None = None
        self._loading = asyncio.Lock()
        self._failed = ""

    async def loaded(self) -> TokenSpelling | None:
        """Return the vocabulary; None where there is none."""
        async with self._loading:
            if self._spelling is None:
                try:
                    self._spelling = await asyncio.to_thread(self._load)
                except (ImportError, OSError, ValueError) as error:
                    self._log_once(f"{type(error).__name__}: {error}")
        return self._spelling

    def _log_once(self, why: str) -> None:
        """Log why there is none, unless it is known: callers decide how often it is asked for."""
        if why != self._failed:
            log.warning("no vocabulary for OpenAI's token ids", vocabulary=NAME, why=why)
        self._failed = why


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
