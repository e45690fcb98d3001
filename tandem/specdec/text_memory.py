"""A tenant's earlier texts, its own prompts and the target's answers, to draft from. Pure.

Invariants: a `TextMemory` belongs to one tenant and one vocabulary; no match reaches from one text
into another; no more than `quota` tokens are kept, and of the texts those go first that were least
recently repeated."""

from __future__ import annotations

from bisect import bisect_right

from tandem.core.ngram_index import LONGEST_MATCH, NgramIndex, Tokens

MOST_COPIES = 4
"""How often the same answer after the same prompt is kept: as often as its count may matter."""
OVERLAP = 16
"""Tokens of a known beginning that are kept with what follows it, as context of that."""
_SHORTEST = 4
"""Tokens of a text that are worth keeping: a match and what followed it."""
_STEP = LONGEST_MATCH // 2
"""Between two places of a new text where earlier ones are searched for it."""
_KEPT_SHARE = 7 / 8
"""Of the quota, after texts were evicted: so that it is done rarely."""


class TextMemory:
    """The texts of one tenant. One thread changes it; others may look up in `index` meanwhile."""

    def __init__(self, quota: int) -> None:
        """Start with nothing remembered. `quota`: the most tokens that are kept."""
        self.index = NgramIndex()
        self._quota = quota
        self._begins: list[int] = []
        self._used: list[int] = []
        """When each text was last repeated, counted in texts."""
        self._now = 0

    def __len__(self) -> int:
        """Return the number of remembered tokens."""
        return len(self.index) - len(self._begins)

    def learn(self, prompt_ids: Tokens, answer_ids: Tokens) -> None:
        """Remember a text. Of its prompt, the beginning that stands in other texts is not kept
        again: a conversation repeats itself in each prompt. Answers are, since how often each was
        given is what counts tell."""
        self._now += 1
        text = [*prompt_ids, *answer_ids]
        if len(text) < _SHORTEST:
            return
        known = self._repeated(text, len(prompt_ids))
        if len(text) - known < _SHORTEST:
            return
        begin = max(known - OVERLAP, len(text) - self._quota, 0)
        self._add(text[begin:], self._now)
        if len(self) > self._quota:
            self._evict()

    def _repeated(self, text: list[int], prompt_tokens: int) -> int:
        """Return how much of the beginning of a text stands in others, of an answer MOST_COPIES
        times; and note which these are."""
        known = 0
        for end in (*range(LONGEST_MATCH, len(text), _STEP), len(text)):
            *window, last = text[max(0, end - LONGEST_MATCH) : end]
            length, places = self.index.find(window)
            same = [place for place in places if self.index.tokens[place] == last]
            if length < len(window) or not same:
                continue
            self._used[bisect_right(self._begins, same[0]) - 1] = self._now
            copies = 1 if end < prompt_tokens else MOST_COPIES
            if known >= end - len(window) - 1 and len(same) >= copies:
                known = end
        return known

    def _add(self, text: Tokens, used: int) -> None:
        self._begins.append(len(self.index))
        self._used.append(used)
        self.index.extend(text)
        self.index.end_text()

    def _evict(self) -> None:
        """Keep the texts that were repeated most recently, in a new index: who looks up in this one
        goes on."""
        tokens, begins, used = self.index.tokens, self._begins, self._used
        ends = [end - 1 for end in (*begins[1:], len(tokens))]
        room = int(_KEPT_SHARE * self._quota)
        kept = list[int]()
        for text in sorted(range(len(begins)), key=lambda each: -used[each]):
            length = ends[text] - begins[text]
            if length > room and kept:
                break
            kept.append(text)
            room -= length
        self.index, self._begins, self._used = NgramIndex(), [], []
        for text in sorted(kept):
            self._add(tokens[begins[text] : ends[text]], used[text])
