"""What the tokens of a Hugging Face tokenizer spell, as bytes.

A tokenizer's decoder says how its pieces are written: with letters that stand for bytes
(byte-level BPE), or with ▁ for a space and <0xNN> for a byte (sentencepiece).
"""

import json
from collections.abc import Callable
from typing import Any

from transformers import PreTrainedTokenizerBase

from tandem.core.errors import InvalidArgument
from tandem.text.vocabulary import Vocabulary, byte_level_bytes, fallback_byte, sentencepiece_bytes

_SPELLINGS: dict[str, Callable[[str], bytes]] = {
    "ByteLevel": byte_level_bytes,
    "Metaspace": sentencepiece_bytes,
    "ByteFallback": sentencepiece_bytes,
}


def read_vocabulary(tokenizer: PreTrainedTokenizerBase, size: int) -> Vocabulary:
    """Return the tokens with ids below `size`. Raises InvalidArgument("tokenizer") for a tokenizer
    whose pieces are written in neither way."""
    spelling = _SPELLINGS[_written(tokenizer)]
    added = tokenizer.added_tokens_decoder
    pieces: dict[int, bytes] = {}
    byte_ids: set[int] = set()
    for piece, token in tokenizer.get_vocab().items():
        if token >= size:
            continue
        if token in added:
            if not added[token].special:
                pieces[token] = piece.encode()
            continue
        byte = fallback_byte(piece) if spelling is sentencepiece_bytes else None
        if byte is not None:
            byte_ids.add(token)
        pieces[token] = _spelt(piece, spelling) if byte is None else byte
    return Vocabulary(
        size,
        pieces,
        frozenset(byte_ids),
        {token: entry.content for token, entry in added.items() if entry.special and token < size},
        bos=_below(tokenizer.bos_token_id, size),
        eos=_below(tokenizer.eos_token_id, size),
        unknown=_below(tokenizer.unk_token_id, size),
    )


class TokenBytes:
    """The bytes of single tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        try:
            self._spelling = _SPELLINGS[_written(tokenizer)]
        except InvalidArgument:
            self._spelling = str.encode
        added = tokenizer.added_tokens_decoder
        self._written_out = {
            token: b"" if entry.special else entry.content.encode()
            for token, entry in added.items()
        }

    def of(self, token_id: int) -> bytes:
        """Return what the token adds to a text; nothing for a control token or an unknown id."""
        if (written := self._written_out.get(token_id)) is not None:
            return written
        piece = self._tokenizer.convert_ids_to_tokens(token_id)
        if not isinstance(piece, str):
            return b""
        byte = fallback_byte(piece) if self._spelling is sentencepiece_bytes else None
        return _spelt(piece, self._spelling) if byte is None else byte


def _written(tokenizer: PreTrainedTokenizerBase) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = None if backend is None else backend.decoder
    kinds = set() if decoder is None else _kinds(json.loads(decoder.__getstate__()))
    if kind := next((kind for kind in _SPELLINGS if kind in kinds), None):
        return kind
    why = "is neither byte-level BPE nor sentencepiece; its tokens cannot be compared"
    raise InvalidArgument("tokenizer", why)


def _kinds(decoder: dict[str, Any] | None) -> set[str]:
    if decoder is None:
        return set()
    return {decoder["type"]}.union(*(_kinds(part) for part in decoder.get("decoders", ())))


def _spelt(piece: str, spelling: Callable[[str], bytes]) -> bytes:
    """Return the bytes of a piece; one that is not written like the others stands for itself."""
    try:
        return spelling(piece)
    except KeyError:
        return piece.encode()


def _below(token: Any, size: int) -> int | None:
    return token if isinstance(token, int) and token < size else None
