"""What each token of a text spells: the characters that it completes, and its bytes.

Invariant: of consecutive tokens the characters make up the text, and the bytes the text's UTF-8; a
token that ends within a character has its bytes at once, and the one that completes it the rest.
Where tokens spell what is no UTF-8, the text has U+FFFD, and the bytes are the tokens' own.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat

from tandem.text import IncrementalText, SpellingTokenizer, Tokenizer

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # what a decoder writes for half a character


@dataclass(frozen=True, slots=True)
class SpeltToken:
    """`text` is empty for a token that ends within a character, as for one without any text."""

    text: str
    token_bytes: bytes


class Spelling:
    """The tokens of one text, in order."""

    def __init__(self, tokenizer: Tokenizer, text: IncrementalText | None = None) -> None:
        """Begin a text. `text`: makes the characters, if it is not the tokenizer's usual one."""
        self._text = text or tokenizer.detokenizer()
        self._tokenizer = tokenizer if isinstance(tokenizer, SpellingTokenizer) else None
        self._unfinished = b""
        """Bytes of the last tokens, whose characters are not complete."""

    def push(self, token_id: int) -> SpeltToken:
        """Take the next token. Raises InvalidArgument("token_ids") for an id outside the
        vocabulary."""
        spelt, self._unfinished = self._spelt(token_id, self._text.push((token_id,)))
        return spelt

    def preview(self, token_id: int) -> SpeltToken:
        """Return what `push` of the id would return; take nothing."""
        return self._spelt(token_id, self._text.preview(token_id))[0]

    def spelt(
        self, token_ids: Iterable[int], instead: Sequence[Sequence[int]] = ()
    ) -> tuple[list[SpeltToken], list[list[SpeltToken]]]:
        """Take the next tokens; return what each spells after those before it, and what the tokens
        of `instead` would have spelt there."""
        spelt = []
        others = []
        for token_id, other_ids in zip(token_ids, instead or repeat(()), strict=False):
            others.append([self.preview(other_id) for other_id in other_ids])
            spelt.append(self.push(token_id))
        return spelt, others

    def finish(self) -> str:
        """Return the text that is left at the end; half a character becomes U+FFFD."""
        return self._text.finish()

    def _spelt(self, token_id: int, text: str) -> tuple[SpeltToken, bytes]:
        """Return the token that completes `text`, and the bytes that are then unfinished."""
        token_bytes = b"" if self._tokenizer is None else self._tokenizer.token_bytes(token_id)
        spelt = self._unfinished + token_bytes
        if not text:
            if not _is_held_back(spelt):
                # The text leaves it out: a control token, or a space before the first word.
                return SpeltToken(text, b""), self._unfinished
            return SpeltToken(text, token_bytes), spelt
        whole = text.encode("utf-8", "replace")
        if spelt.startswith(whole):
            return SpeltToken(text, token_bytes), spelt[len(whole) :]
        if _REPLACEMENT not in text and whole.startswith(self._unfinished):
            return SpeltToken(text, whole[len(self._unfinished) :]), b""
        return SpeltToken(text, token_bytes), b""


def _is_held_back(spelt: bytes) -> bool:
    """Return whether a decoder waits for more before it writes the last of these bytes as text."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        text = decoder.decode(spelt)
    except UnicodeDecodeError:
        return True
    return bool(decoder.getstate()[0]) or text.endswith(_REPLACEMENT)
