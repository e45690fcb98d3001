"""What was said before, as a source of drafts: a tenant's own prompts and the target's answers,
with every context in them found by its last tokens. Pure.

Suffix decoding (Oliaro et al. 2024) keeps a suffix tree. A tree of Python objects takes hundreds of
bytes a token, so here is what a lookup needs of it and no more. Texts lie one after another in a
`Block`. For each token there is one 64-bit key, made of hashes of the 3, the next 2, the next 3 and
the next 8 tokens before it, most significant first, and the keys are sorted. So all places with the
same last 3, 5, 8 or 16 tokens lie side by side: a bisection finds the longest of these matches, and
how often it was seen. What it finds is compared token by token, so that a hash never decides.

Blocks never change, and a request goes on with those that it began with: texts may be learned on
another thread meanwhile, and what is proposed in an answer depends on its text alone. A new text is
a new block, and blocks of like size are merged, so that there are few (about the logarithm of the
number of texts) and each token is sorted anew a few times only. A token takes 20 bytes (itself
twice, its key and its place), and some 4 for the beginnings of texts.

Invariants: a `TextMemory` belongs to one tenant and one vocabulary; no match reaches from one text
into another; no more than `quota` tokens are kept, and of the texts those go first that were least
recently repeated."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tandem.core.hashing import GOLDEN, MASK, hash_ids, mix
from tandem.core.tokens import prefix_hashes

SHORTEST_MATCH = 3
"""Tokens that a text must share with an earlier one; fewer recur by chance."""
LONGEST_MATCH = 32
"""Tokens up to which matches are told apart; longer ones are no surer."""
MOST_PLACES = 8
"""Places that are compared and counted for one context, the newest first."""
MOST_COPIES = 4
"""How often the same answer after the same prompt is kept: as often as its count may matter."""
PREFIX_BLOCK = 32
"""Tokens in which beginnings of texts are compared."""
OVERLAP = 16
"""Tokens of a known beginning that are kept with what follows it, as context of that."""
_KEPT_SHARE = 7 / 8
"""Of the quota, after texts were put out: so that it is done rarely."""

_ENDS = (3, 5, 8, 16)
"""How many of the last tokens each part of a key and those before it cover."""
_BITS = (28, 12, 12, 12)
_SHIFTS = (36, 24, 12, 0)
_BETWEEN = -1
"""No token; as many of it as a context has stand before each text."""
_GAP = array("i", [_BETWEEN] * _ENDS[-1])
_FACTORS = [mix(number) | 1 for number in range(_ENDS[-1])]

Tokens = Sequence[int]


@dataclass(frozen=True, slots=True)
class Text:
    """A text to remember. `token_ids` stand in it from `position` on; what was before them is
    known, and `before` is its hash (`prefix_hashes`). The first `prompt_tokens` of the whole text
    are its prompt. `used`: when it was last repeated, counted in texts."""

    token_ids: array[int]
    prompt_tokens: int
    position: int = 0
    before: int = 0
    used: int = 0

    def __len__(self) -> int:
        return len(self.token_ids)


def make_text(token_ids: Tokens) -> Text:
    """Return a whole text, all of it a prompt."""
    return Text(array("i", token_ids), len(token_ids))


class Block:
    """Texts with their sorted contexts. `used` may rise; nothing else changes."""

    __slots__ = ("begins", "keys", "places", "texts", "tokens", "used")

    def __init__(self, texts: Sequence[Text]) -> None:
        """Index the texts, in time proportional to n log n."""
        self.texts = tuple(texts)
        self.used = [text.used for text in texts]
        self.begins: list[int] = []
        self.tokens: array[int] = array("i")
        spans = [np.empty(0, np.int64)]
        for text in texts:
            self.tokens.extend(_GAP)
            begin = len(self.tokens)
            self.begins.append(begin)
            self.tokens.extend(text.token_ids)
            first = OVERLAP if text.position else SHORTEST_MATCH  # what is known is found there
            spans.append(np.arange(begin + first, len(self.tokens)))
        places = np.concatenate(spans)
        keys = context_keys(self.tokens)[places - len(_GAP)]
        order = np.argsort(keys, kind="stable")
        self.keys: array[int] = array("Q", keys[order].tobytes())
        self.places: array[int] = array("i", places[order].astype(np.int32).tobytes())

    def __len__(self) -> int:
        """Return the number of remembered tokens."""
        return len(self.tokens) - len(_GAP) * len(self.texts)

    @property
    def size_bytes(self) -> int:
        """Bytes of what grows with the tokens."""
        arrays = [self.tokens, self.keys, self.places, *(text.token_ids for text in self.texts)]
        return sum(each.itemsize * len(each) for each in arrays) + _TEXT_BYTES * len(self.texts)

    def current(self) -> Iterator[Text]:
        """Yield the texts with when they were last used."""
        for text, used in zip(self.texts, self.used, strict=True):
            yield replace(text, used=used)

    def touch(self, place: int, now: int) -> None:
        """Note that the text at a place was repeated."""
        self.used[bisect_right(self.begins, place) - 1] = now


_TEXT_BYTES = 200
"""Of a text's own objects, about."""


@dataclass(frozen=True, slots=True)
class Match:
    """Where the end of a text stands in others: before each of `places`, `length` tokens of it do
    (3…LONGEST_MATCH), and the token there followed. Newest first, at most MOST_PLACES."""

    length: int
    places: tuple[tuple[Tokens, int], ...]


@dataclass(slots=True)
class LiveText:
    """The answer as it grows, found by its last three tokens. It is not shared, and does not last,
    so an index of Python objects may serve. `tokens` may begin with the end of the prompt."""

    tokens: list[int] = field(default_factory=list)
    _places: dict[tuple[int, ...], list[int]] = field(default_factory=dict)

    def extend(self, token_ids: Iterable[int]) -> None:
        """Append tokens that are final."""
        for token_id in token_ids:
            if len(self.tokens) >= SHORTEST_MATCH:
                context = tuple(self.tokens[-SHORTEST_MATCH:])
                self._places.setdefault(context, []).append(len(self.tokens))
            self.tokens.append(token_id)

    def places(self, tail: Tokens) -> list[int]:
        """Return places that follow the last three of `tail`, the newest first."""
        known = self._places.get(tuple(tail[-SHORTEST_MATCH:]), ())
        return list(known[: -MOST_PLACES - 1 : -1])


def find(blocks: Sequence[Block], tail: Tokens, live: LiveText | None = None) -> Match | None:
    """Return the longest match of the end of a text, or None. Takes a bisection or two in each
    block, and compares MOST_PLACES places at most.

    Args:
        blocks: where to look, oldest first.
        tail: the last LONGEST_MATCH tokens of the text, or all of a shorter one.
        live: the text itself, looked at first."""
    if len(tail) < SHORTEST_MATCH:
        return None
    candidates: list[tuple[Tokens, int]] = []
    if live is not None:
        candidates += [(live.tokens, place) for place in live.places(tail)[: MOST_PLACES // 2]]
    for block, low, high in reversed(_ranges(blocks, tail)):
        left = MOST_PLACES - len(candidates)
        newest = block.places[max(low, high - left) : high] if left > 0 else ()
        candidates += [(block.tokens, place) for place in reversed(newest)]
    lengths = [_matched(tokens, place, tail) for tokens, place in candidates]
    longest = max(lengths, default=0)
    if longest < SHORTEST_MATCH:  # hashes that were equal by chance
        return None
    pairs = zip(candidates, lengths, strict=True)
    return Match(longest, tuple(each for each, length in pairs if length == longest))


def _ranges(blocks: Sequence[Block], tail: Tokens) -> list[tuple[Block, int, int]]:
    """Return where the keys of the longest context are that any block has, in each that has it."""
    key = 0
    ranges = [(block, 0, len(block.keys)) for block in blocks]
    for level in range(len(_ENDS)):
        key |= _key_part(tail, level) << _SHIFTS[level]
        beyond = key + (1 << _SHIFTS[level])
        narrower = list[tuple[Block, int, int]]()
        for block, low, high in ranges:
            begin = bisect_left(block.keys, key, low, high)
            if begin < high and block.keys[begin] < beyond:
                narrower.append((block, begin, bisect_left(block.keys, beyond, begin, high)))
        if not narrower:
            return ranges if level else []
        ranges = narrower
    return ranges


def _key_part(tail: Tokens, level: int) -> int:
    """Return one part of the key of the context that ends with `tail`."""
    first = _ENDS[level - 1] if level else 0
    length = len(tail)
    total = 0
    for back in range(first, _ENDS[level]):
        token_id = tail[length - 1 - back] if back < length else _BETWEEN
        total += (token_id + 2) * _FACTORS[back]
    return mix(level + ((total & MASK) + 1) * GOLDEN) >> (64 - _BITS[level])


def context_keys(token_ids: Tokens) -> NDArray[np.uint64]:
    """Return the keys [n - 16] of the contexts before each token after the first 16, of n."""
    reach = _ENDS[-1]
    count = max(0, len(token_ids) - reach)
    words = (np.asarray(token_ids, dtype=np.int64) + 2).astype(np.uint64)
    keys = np.zeros(count, np.uint64)
    for level, end in enumerate(_ENDS):
        total = np.zeros(count, np.uint64)
        for back in range(_ENDS[level - 1] if level else 0, end):
            begin = reach - 1 - back
            total += words[begin : begin + count] * np.uint64(_FACTORS[back])
        part = hash_ids(level, total) >> np.uint64(64 - _BITS[level])
        keys |= part << np.uint64(_SHIFTS[level])
    return keys


def _matched(tokens: Tokens, place: int, tail: Tokens) -> int:
    """Return how many tokens at the end of `tail` stand before a place."""
    longest = min(len(tail), place)
    length = 0
    while length < longest and tokens[place - 1 - length] == tail[-1 - length]:
        length += 1
    return length


class TextMemory:
    """The texts of one tenant. One thread changes it; `blocks` may be read on any."""

    def __init__(self, quota: int) -> None:
        """Start with nothing remembered. `quota`: the most tokens that are kept."""
        self._quota = quota
        self._now = 0
        self._known: dict[int, int] = {}
        self.blocks: tuple[Block, ...] = ()

    def __len__(self) -> int:
        """Return the number of remembered tokens."""
        return sum(map(len, self.blocks))

    @property
    def size_bytes(self) -> int:
        """Bytes of what grows with the tokens, about."""
        beginnings = _BEGINNING_BYTES * len(self._known)
        return beginnings + sum(block.size_bytes for block in self.blocks)

    def texts(self) -> list[Text]:
        """Return the texts, least recently used first."""
        every = [text for block in self.blocks for text in block.current()]
        return sorted(every, key=lambda text: text.used)

    def learn(self, prompt_ids: Tokens, answer_ids: Tokens) -> tuple[Text | None, bool]:
        """Remember a text. Returns what of it is kept, None where all is known, and whether other
        texts were put out for it.

        Of its prompt, the beginning that another text has is not kept again: a conversation repeats
        itself in each prompt. Answers are, since how often each was given is what counts tell."""
        self._now += 1
        whole = array("i", prompt_ids)
        whole.extend(answer_ids)
        self._touch(whole)
        text = self._unknown(whole, len(prompt_ids))
        if text is None:
            return None, False
        return text, self.add(text)

    def add(self, text: Text) -> bool:
        """Add what `learn` kept of a text. Returns whether others were put out for it."""
        self._now += 1
        text = replace(text, used=self._now)
        self._count(text)
        blocks = [*self.blocks, Block([text])]
        while len(blocks) > 1 and len(blocks[-2]) < 2 * len(blocks[-1]):
            newest, older = blocks.pop(), blocks.pop()
            blocks.append(Block([*older.current(), *newest.current()]))
        self.blocks = tuple(blocks)
        if len(self) <= self._quota:
            return False
        self._put_out()
        return True

    def _put_out(self) -> None:
        kept: list[Text] = []
        room = int(_KEPT_SHARE * self._quota)
        for text in reversed(self.texts()):
            if len(text) > room and kept:
                break
            kept.append(text)
            room -= len(text)
        self._rebuild(kept[::-1])

    def _rebuild(self, texts: list[Text]) -> None:
        self._known = {}
        for text in texts:
            self._count(text)
            self._now = max(self._now, text.used)
        self.blocks = (Block(texts),) if texts else ()

    def _touch(self, token_ids: Tokens) -> None:
        """Note which texts this one repeats, by whole contexts here and there."""
        length = _ENDS[-1]
        for end in range(length, len(token_ids) + 1, 2 * length):
            context = token_ids[end - length : end]
            for block, _, high in _ranges(self.blocks, context):
                place = block.places[high - 1]
                if _matched(block.tokens, place, context) == length:
                    block.touch(place, self._now)

    def _unknown(self, whole: array[int], prompt_tokens: int) -> Text | None:
        hashes = prefix_hashes(whole, before=0)
        if self._known.get(int(hashes[-1]), 0) >= MOST_COPIES:
            return None
        position = 0
        for end in range(PREFIX_BLOCK, len(whole) + 1, PREFIX_BLOCK):
            copies = 1 if end <= prompt_tokens else MOST_COPIES
            if self._known.get(int(hashes[end]), 0) < copies:
                break
            position = end
        if len(whole) - position < SHORTEST_MATCH:
            return None
        position = max(position - OVERLAP, len(whole) - self._quota, 0)
        return Text(whole[position:], prompt_tokens, position, int(hashes[position]))

    def _count(self, text: Text) -> None:
        hashes = prefix_hashes(text.token_ids, text.before)
        first = -text.position % PREFIX_BLOCK or PREFIX_BLOCK
        for each in {*hashes[first::PREFIX_BLOCK].tolist(), int(hashes[-1])}:
            self._known[each] = self._known.get(each, 0) + 1


_BEGINNING_BYTES = 120
"""Of an entry of a dictionary with its numbers, about; one for PREFIX_BLOCK tokens."""
