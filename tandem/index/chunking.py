"""The cutting of a text into chunks: bounded in tokens, overlapping, at the best place near the
end.

Invariants: the chunks cover every token of the text, each holds at most `max_tokens`, and two
neighbours share at most `overlap_tokens`. Pure: text and token counts in, offsets out.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tandem.core.errors import InvalidArgument

Span = tuple[int, int]
"""Offsets of characters, the end excluded."""

CountTokens = Callable[[Sequence[str]], Sequence[int]]
"""How many tokens each of these pieces of text takes."""

PIECE = re.compile(r"\w{1,16}|[^\w\s]")
"""A word, or 16 letters of a longer one, or a sign. Bounded, so that no text outgrows a chunk."""

MIN_TOKENS = 16
MAX_TOKENS = 4096
_SENTENCE_ENDS = frozenset(".!?")
_WIDE_ENDS = frozenset("\u3002\uff01\uff1f\uff61")
"""Full stops and marks of scripts that put no space after a sentence."""


@dataclass(frozen=True, slots=True)
class Chunking:
    """Most tokens of a chunk, and how many of them its neighbour repeats."""

    max_tokens: int = 200
    overlap_tokens: int = 40

    def validate(self) -> None:
        """Check the settings. Raises InvalidArgument naming a field that is out of range."""
        if not MIN_TOKENS <= self.max_tokens <= MAX_TOKENS:
            why = f"must be {MIN_TOKENS}…{MAX_TOKENS}, is {self.max_tokens}"
            raise InvalidArgument("chunk_tokens", why)
        if not 0 <= self.overlap_tokens <= self.max_tokens // 2:
            why = f"must be 0…{self.max_tokens // 2} (half a chunk), is {self.overlap_tokens}"
            raise InvalidArgument("overlap_tokens", why)


def chunk_spans(text: str, chunking: Chunking, count_tokens: CountTokens) -> list[Span]:
    """Return the chunks of `text`, in order; none for a text without any token."""
    pieces = [match.span() for match in PIECE.finditer(text)]
    costs = _costs(text, pieces, count_tokens)
    spans: list[Span] = []
    first = 0
    while first < len(pieces):
        limit = _furthest(costs, first, chunking.max_tokens)
        end = limit if limit == len(pieces) else _best_end(text, pieces, first, limit)
        spans.append((pieces[first][0], pieces[end - 1][1]))
        if end == len(pieces):
            break
        first = _next_first(
            text=text,
            pieces=pieces,
            costs=costs,
            first=first,
            end=end,
            overlap_tokens=chunking.overlap_tokens,
        )
    return spans


def count_pieces(pieces: Sequence[str]) -> Sequence[int]:
    """Count every piece for one token, as there is no tokenizer."""
    return [1] * len(pieces)


def _costs(text: str, pieces: list[Span], count_tokens: CountTokens) -> list[int]:
    words = [text[start:end] for start, end in pieces]
    distinct = list(dict.fromkeys(words))
    cost_of = dict(zip(distinct, count_tokens(distinct), strict=True))
    return [cost_of[word] for word in words]


def _furthest(costs: list[int], first: int, max_tokens: int) -> int:
    """Return the longest run from `first` on that fits; one piece at the least."""
    total = costs[first]
    end = first + 1
    while end < len(costs) and total + costs[end] <= max_tokens:
        total += costs[end]
        end += 1
    return end


def _best_end(text: str, pieces: list[Span], first: int, limit: int) -> int:
    """Return the end of a paragraph, else of a sentence, else of a word, in the run's last
    third."""
    earliest = max(first + 1, limit - max(1, (limit - first) // 3))
    best = limit
    best_rank = -1
    for end in range(limit, earliest - 1, -1):
        rank = _rank_of_cut(text, pieces[end - 1][1], pieces[end][0])
        if rank > best_rank:
            best = end
            best_rank = rank
    return best


def _rank_of_cut(text: str, before: int, after: int) -> int:
    gap = text[before:after]
    if "\n\n" in gap:
        return 3
    last = text[before - 1]
    if last in _WIDE_ENDS or (gap and last in _SENTENCE_ENDS):
        return 2
    return 1 if gap else 0


def _next_first(
    text: str, pieces: list[Span], costs: list[int], first: int, end: int, overlap_tokens: int
) -> int:
    """Return the piece at which the next chunk starts: as far back from `end` as the overlap
    allows, then on to the start of a word or of a sentence. Where `end` cuts a word, as in scripts
    without spaces, all of the overlap is kept, and the word with it."""
    begin = end
    total = 0
    while begin - 1 > first and total + costs[begin - 1] <= overlap_tokens:
        begin -= 1
        total += costs[begin]
    furthest = begin
    while begin < end and not _rank_of_cut(text, pieces[begin - 1][1], pieces[begin][0]):
        begin += 1
    cuts_word = not _rank_of_cut(text, pieces[end - 1][1], pieces[end][0])
    return furthest if begin == end and cuts_word else begin
