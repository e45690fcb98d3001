"""What the models of a machine could do as the one that answers: whether they chat, and how large
they are. Read are configurations and the first bytes of weights, in milliseconds a model."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tandem.backends.llamacpp import library
from tandem.backends.model_files import read_json
from tandem.backends.model_source import only_drafts
from tandem.suite.gguf_header import HEADER_BYTES, gguf_header
from tandem.suite.local_models import LocalModel

BITS_PER_WEIGHT = {
    **{0: 32.0, 1: 16.0, 32: 16.0},  # F32, F16, BF16
    **{2: 4.5, 3: 5.0, 7: 8.5, 8: 5.5, 9: 6.0},  # Q4_0, Q4_1, Q8_0, Q5_0, Q5_1
    **{10: 3.0, 11: 3.5, 12: 3.9, 13: 4.3, 14: 4.6, 15: 4.9, 16: 5.5, 17: 5.7, 18: 6.6},  # K-quants
}
"""Of a GGUF file, by its `general.file_type`: rough, but models differ by factors."""
USUAL_BITS = 4.9
FLOAT32_BYTES = 4
"""Folders are computed in float32 unless a flag says otherwise."""


@dataclass(frozen=True, slots=True)
class ChatModel:
    """A model with a chat template. `computed_bytes`: memory of its weights while it computes."""

    model: LocalModel
    parameters: float
    computed_bytes: float


def chat_models(models: Iterable[LocalModel]) -> Iterator[ChatModel]:
    """Yield the models that can answer here: they have a chat template, do not only draft, and are
    in a format that an installed engine computes fast enough."""
    computes_gguf = library.is_installed()
    for model in models:
        if only_drafts(str(model.source)):
            continue
        if model.kind == "gguf":
            chat = _gguf_model(model) if computes_gguf else None
        else:
            chat = _folder_model(model)
        if chat is not None:
            yield chat


def _folder_model(model: LocalModel) -> ChatModel | None:
    folder = model.source
    if not any((folder / f"chat_template.{ending}").is_file() for ending in ("jinja", "json")):
        try:
            tokenizer = read_json(folder / "tokenizer_config.json")
        except (OSError, ValueError):
            return None
        if not isinstance(tokenizer, dict) or not tokenizer.get("chat_template"):
            return None
    parameters = sum(map(_parameters_in, folder.glob("*.safetensors")))
    return ChatModel(model, parameters, FLOAT32_BYTES * parameters)


def _parameters_in(path: Path) -> int:
    """Return the number of weights in a safetensors file, from its header; none if it is broken."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, HEADER_BYTES)))
        return sum(math.prod(header[name]["shape"]) for name in header if name != "__metadata__")
    except (
        OSError,
        ValueError,
        struct.error,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
    ):
        return 0


def _gguf_model(model: LocalModel) -> ChatModel | None:
    try:
        with gguf_header(model.source) as header:
            if not header.has_chat_template:
                return None
            kind = header.file_type
    except (OSError, ValueError, struct.error):
        return None
    bits = USUAL_BITS if kind is None else BITS_PER_WEIGHT.get(kind, USUAL_BITS)
    return ChatModel(model, 8 * model.size_bytes / bits, model.size_bytes)
