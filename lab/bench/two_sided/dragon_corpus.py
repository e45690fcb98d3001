"""Held-out text with documents for it on two sides, as DRAGON's §7.2 splits a corpus.

Texts that no demo model was trained on are cut into windows. Some are kept to be predicted, all
others are cut into documents. The first eighth of a kept window is the query; of the 2k documents
that lexical search finds for it the better half is the cloud's and the other the device's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lab.bench.harness.texts import read_peps
from lab.training.demo_pair.corpus import is_held_out
from tandem.core.errors import TandemError
from tandem.index.lexical import LexicalIndex
from tandem.text import Tokenizer
from tandem.two_sided.protocol.mixture import Side

WINDOW_TOKENS, QUERY_TOKENS, DOCUMENT_TOKENS = 256, 32, 64
WINDOWS_PER_TEXT = 2


@dataclass(frozen=True, slots=True)
class RankedDocument:
    """A document: its tokens, the score that search gave it, and its rank at its side."""

    token_ids: tuple[int, ...]
    score: float
    rank: int = 1


@dataclass(frozen=True, slots=True)
class Window:
    """Text to predict after its query, and the best documents for that, the best first."""

    token_ids: tuple[int, ...]
    documents: tuple[RankedDocument, ...]

    def of(self, side: Side, count: int) -> tuple[RankedDocument, ...]:
        """The side's documents where each side has `count`."""
        documents = (
            self.documents[:count] if side is Side.CLOUD else self.documents[count : 2 * count]
        )
        return tuple(replace(one, rank=rank) for rank, one in enumerate(documents, start=1))


def read_windows(peps: Path, tokenizer: Tokenizer, documents: int, seed: int) -> list[Window]:
    """Windows in random order, with up to 2·`documents` documents each."""
    texts = [one.text for one in read_peps(peps) if is_held_out(one.id)]
    if windows := windows_of(texts, tokenizer, documents, seed):
        return windows
    raise TandemError(f"--peps: {peps} has no held-out text that is long enough")


def windows_of(
    texts: Iterable[str], tokenizer: Tokenizer, documents: int, seed: int
) -> list[Window]:
    """The same of any texts; none where they are too short."""
    source = np.random.default_rng(seed)
    kept: list[tuple[int, ...]] = []
    pieces: list[tuple[int, ...]] = []
    for text in texts:
        windows = _cut(tokenizer.encode(text), WINDOW_TOKENS)
        chosen = set(source.permutation(len(windows))[:WINDOWS_PER_TEXT].tolist())
        kept += [window for number, window in enumerate(windows) if number in chosen]
        for number, window in enumerate(windows):
            pieces += [] if number in chosen else _cut(window, DOCUMENT_TOKENS)
    if not kept or not pieces:
        return []
    order = source.permutation(len(kept)).tolist()
    return _with_documents([kept[number] for number in order], pieces, tokenizer, documents)


def _cut(token_ids: Sequence[int], length: int) -> list[tuple[int, ...]]:
    """Pieces of exactly `length`."""
    starts = range(0, len(token_ids) - length + 1, length)
    return [tuple(token_ids[start : start + length]) for start in starts]


def _with_documents(
    kept: Sequence[tuple[int, ...]],
    pieces: Sequence[tuple[int, ...]],
    tokenizer: Tokenizer,
    documents: int,
) -> list[Window]:
    index = LexicalIndex()
    index.change(((number, text_of(tokenizer, piece)) for number, piece in enumerate(pieces)), ())
    windows = []
    for token_ids in kept:
        hits = index.search(text_of(tokenizer, token_ids[:QUERY_TOKENS]), 2 * documents)
        ranked = tuple(RankedDocument(pieces[number], score) for number, score in hits)
        windows.append(Window(token_ids, ranked))
    return windows


def text_of(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    """Return what the tokens spell."""
    stream = tokenizer.detokenizer()
    return stream.push(token_ids) + stream.finish()
