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
    """The tokens with ids below `size`. Raises InvalidArgument("tokenizer") for a tokenizer whose
    pieces are written in neither way."""
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


def _written(tokenizer: PreTrainedTokenizerBase) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    kinds = _kinds(json.loads(backend.to_str())["decoder"]) if backend is not None else set()
    if kind := next((kind for kind in _SPELLINGS if kind in kinds), None):
        return kind
    why = "is neither byte-level BPE nor sentencepiece; its tokens cannot be compared"
    raise InvalidArgument("tokenizer", why)


def _kinds(decoder: dict[str, Any] | None) -> set[str]:
    if decoder is None:
        return set()
    return {decoder["type"]}.union(*(_kinds(part) for part in decoder.get("decoders", ())))


def _spelt(piece: str, spelling: Callable[[str], bytes]) -> bytes:
    """A piece that is not written like the others is itself."""
    try:
        return spelling(piece)
    except KeyError:
        return piece.encode()


def _below(token: Any, size: int) -> int | None:
    return token if isinstance(token, int) and token < size else None
