"""Two vocabularies as one: a draft distribution restricted to the tokens that both know.

Tokens are compared by the bytes they spell, whatever a tokenizer calls them; control tokens by
their name, or by their role (beginning, end of text). Invariant: the pairing is one to one, so a
restricted draft distribution, renormalised, is a distribution over the target's ids, zero outside
of the pairing. Truncation before sampling costs at most the truncated mass of acceptance and no
exactness (TSLT).
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii

import numpy as np
from numpy.typing import NDArray

from tandem.core.errors import InvalidArgument
from tandem.core.probs import Array

LEAST_SHARE = 0.05
"""Of the smaller vocabulary. With less in common than this, drafting would only cost time."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Text of each token; every id is below `size`, the number of the model's logits. `byte_ids`
    are the byte-fallback tokens among `pieces`: where a piece of the same byte exists, text is
    never written with them."""

    size: int
    pieces: Mapping[int, bytes]
    byte_ids: frozenset[int] = frozenset()
    specials: Mapping[int, str] = field(default_factory=dict)
    bos: int | None = None
    eos: int | None = None
    unknown: int | None = None

    def spellings(self) -> dict[bytes, list[int]]:
        """Return the ids of each spelling, the one that text is written with first."""
        tokens: defaultdict[bytes, list[int]] = defaultdict(list)
        for token in sorted(self.pieces, key=lambda t: (t in self.byte_ids, t)):
            if self.pieces[token]:
                tokens[self.pieces[token]].append(token)
        return dict(tokens)


@dataclass(frozen=True, slots=True)
class Intersection:
    """`draft_ids[i]` and `target_ids[i]` are one token; both [n], without repeats."""

    draft_size: int
    target_size: int
    draft_ids: NDArray[np.int64]
    target_ids: NDArray[np.int64]
    _sources: NDArray[np.int64] = field(init=False, repr=False, compare=False)
    """[target_size]: the draft id of each target id; draft_size where there is none."""

    def __post_init__(self) -> None:
        sources = np.full(self.target_size, self.draft_size, dtype=np.int64)
        sources[self.target_ids] = self.draft_ids
        object.__setattr__(self, "_sources", sources)

    def __len__(self) -> int:
        return len(self.draft_ids)

    @property
    def share(self) -> float:
        return len(self) / min(self.draft_size, self.target_size)

    def restricted(self, logits: Array) -> Array:
        """Return logits [n, draft_size] as logits [n, target_size], with -inf for what the draft
        cannot say. A softmax of the result is the draft's distribution under the condition that the
        token is shared."""
        # One gather from logits that end in -inf: a third of the time of a scatter.
        nothing = np.full((len(logits), 1), -np.inf, dtype=logits.dtype)
        return np.concatenate([logits, nothing], axis=1).take(self._sources, axis=1)

    def draft_mass_outside(self, draft_probs: Array) -> float:
        """Return the mass of a draft distribution [draft_size] that the restriction takes away: σ,
        which bounds what it costs of acceptance."""
        return max(0.0, 1.0 - float(draft_probs[self.draft_ids].sum(dtype=np.float64)))

    def target_mass_outside(self, target_probs: Array) -> float:
        """Return the mass of a target distribution [target_size] that no draft can meet: lost
        acceptance."""
        return max(0.0, 1.0 - float(target_probs[self.target_ids].sum(dtype=np.float64)))

    def check(self, field_name: str) -> None:
        """Raise InvalidArgument(field_name) when there is too little to draft with."""
        if self.share < LEAST_SHARE:
            sizes = f"{len(self)} tokens (of {self.draft_size} and {self.target_size})"
            advice = "use a draft model whose tokenizer was made for the same languages"
            raise InvalidArgument(field_name, f"draft and target share only {sizes}; {advice}")


def intersect(draft: Vocabulary, target: Vocabulary) -> Intersection:
    """Return the tokens of both: equal bytes, equal names of control tokens, equal roles. Where
    several tokens of one vocabulary spell the same bytes, the piece comes before the byte-fallback
    token, then the lower id, on both sides."""
    pairs = dict(_same_bytes(draft, target))
    named = {name: token for token, name in target.specials.items()}
    pairs |= {token: named[name] for token, name in draft.specials.items() if name in named}
    taken = set(pairs.values())
    for ours, theirs in ((draft.eos, target.eos), (draft.bos, target.bos)):
        if ours is not None and theirs is not None and ours not in pairs and theirs not in taken:
            pairs[ours] = theirs
            taken.add(theirs)
    ids = np.array(sorted(pairs.items()), dtype=np.int64).reshape(-1, 2)
    return Intersection(draft.size, target.size, ids[:, 0].copy(), ids[:, 1].copy())


def _same_bytes(draft: Vocabulary, target: Vocabulary) -> Iterator[tuple[int, int]]:
    theirs = target.spellings()
    for spelling, ours in draft.spellings().items():
        yield from zip(ours, theirs.get(spelling, ()), strict=False)


def hash_vocabulary(vocabulary: Mapping[str, int], size: int) -> str:
    """Return the SHA-256, as hex, of the number of (token, id) pairs with ids below `size` and the
    sorted pairs. Tokens for which a model has no logits are left out: a tokenizer's class may add
    some of its own. So is the number of logits: models of one family pad it differently."""
    entries = sorted(pair for pair in vocabulary.items() if pair[1] < size)
    spelt = encode_basestring_ascii  # json.dumps of a text, which is slower for so many
    lines = [f"[{spelt(token)}, {number}]\n" for token, number in entries]
    return hashlib.sha256("".join([f"{len(entries)}\n", *lines]).encode()).hexdigest()


def byte_level_bytes(piece: str) -> bytes:
    """Return the bytes of a byte-level BPE piece, whose letters stand for bytes (GPT-2)."""
    return bytes(_BYTE_OF_LETTER[letter] for letter in piece)


def sentencepiece_bytes(piece: str) -> bytes:
    """Return the bytes of a sentencepiece piece: ▁ is a space."""
    return piece.replace("▁", " ").encode()


def fallback_byte(piece: str) -> bytes | None:
    """Return the byte that <0xNN> stands for, None for any other piece."""
    match = _BYTE_TOKEN.fullmatch(piece)
    return bytes([int(match[1], 16)]) if match else None


def _letters() -> dict[str, int]:
    """Return GPT-2's table of letters to bytes: printable bytes are themselves, the others letters
    from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_BYTE_OF_LETTER = _letters()
