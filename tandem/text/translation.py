"""A text in the target's tokens, as the draft model reads it.

Invariant: the draft's context is a function of the target's, token by token, so that a prefix stays
a prefix and going back is cutting off. Values in, values out; the draft tokenizer is passed in.
"""

from collections.abc import Callable

from tandem.text.vocabulary import Intersection, Vocabulary


class Translation:
    """Target tokens as the draft model reads them: each is one or several draft tokens. A shared
    token is its partner, the text of any other is encoded anew. The text begins as the draft model
    is used to, with its own beginning-of-text token in the place of the target's."""

    def __init__(
        self,
        draft: Vocabulary,
        target: Vocabulary,
        intersection: Intersection,
        encode: Callable[[str], list[int]] = lambda text: [],
        starts_with_bos: bool = False,
    ) -> None:
        """Prepare to translate. `encode` is the draft tokenizer without control tokens. Its result
        is used if it spells exactly the text it was given; otherwise the longest pieces are, from
        left to right."""
        self.intersection = intersection
        self.lead = (draft.bos,) if starts_with_bos and draft.bos is not None else ()
        self._draft = draft
        self._target = target
        self._encode = encode
        ends = (token for token in (draft.unknown, draft.eos, draft.bos, 0) if token is not None)
        self._unspelt = next(ends)
        self._opening = self._unspelt if draft.bos is None else draft.bos
        pairs = zip(intersection.target_ids.tolist(), intersection.draft_ids.tolist(), strict=True)
        self._known: dict[int, tuple[int, ...]] = {theirs: (ours,) for theirs, ours in pairs}
        self._pieces = {spelling: ids[0] for spelling, ids in draft.spellings().items()}
        self._longest = max(map(len, self._pieces), default=0)

    def first(self, target_id: int) -> tuple[int, ...]:
        """Return the draft tokens, at least one, of the text's first target token."""
        if target_id == self._target.bos:
            return (self._opening,)
        return (*self.lead, *self.draft_ids(target_id))

    def draft_ids(self, target_id: int) -> tuple[int, ...]:
        """Return the draft tokens, at least one, of a later target token."""
        if target_id not in self._known:
            self._known[target_id] = self._spelt(target_id) or (self._unspelt,)
        return self._known[target_id]

    def _spelt(self, target_id: int) -> tuple[int, ...]:
        """Return the draft tokens that spell a target token. A control token that the draft model
        does not have is spelt as the text of its name."""
        name = self._target.specials.get(target_id)
        spelling = self._target.pieces.get(target_id, b"") if name is None else name.encode()
        with_text = self._encoded(spelling)
        return with_text if with_text is not None else self._longest_pieces(spelling)

    def _encoded(self, spelling: bytes) -> tuple[int, ...] | None:
        """Return the tokenizer's ids of these bytes. None if they do not spell exactly these, or if
        the bytes end in half a character."""
        try:
            ids = self._encode(spelling.decode())
        except UnicodeDecodeError:
            return None
        known = self._draft.pieces
        return tuple(ids) if b"".join(known.get(i, b"") for i in ids) == spelling else None

    def _longest_pieces(self, spelling: bytes) -> tuple[int, ...]:
        token_ids: list[int] = []
        at = 0
        while at < len(spelling):
            ends = range(min(len(spelling), at + self._longest), at, -1)
            end = next((end for end in ends if spelling[at:end] in self._pieces), None)
            if end is None:  # a byte the draft model cannot write
                at += 1
                continue
            token_ids.append(self._pieces[spelling[at:end]])
            at = end
        return tuple(token_ids)
