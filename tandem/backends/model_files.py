"""The edge through which a model's folder passes before a library reads it: its makers are
strangers. What is wrong, names code, or is larger than any model, is refused by a message that
names the file. GGUF files have `tandem.backends.gguf_check`.

`auto_map`, by which a folder names classes of its own, is left alone: many models that transformers
knows have it, and nothing follows it, as every `from_pretrained` is told not to.
"""

from __future__ import annotations

import json
import os
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from tandem.backends.hub_cache import WEIGHTS_INDEX
from tandem.core.errors import InvalidArgument

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
ADAPTER = "adapter_config.json"
LFS_POINTER = b"version http"
"""How a file begins that stands for one that was not downloaded."""
MOST_FILE_BYTES = 2**27
"""Of one file that holds no weights; the largest of known models, a tokenizer's, have 40 MB."""
MOST_DEPTH = 64
MOST_LAYERS = 2**12
MOST_TENSORS = 2**18
MOST_HEADER_BYTES = 100_000_000
"""What safetensors itself takes."""
MOST_ADDED_TOKENS = 2**16
MOST_TEMPLATE_CHARACTERS = 2**18
_NUMBERS_A_BYTE = 8
"""Weights that a byte of a file stands for, at most."""
_CODE = ("attn_implementation", "experts_implementation")
"""Keys whose values transformers loads kernels by, from the hub too."""
_NO_CODE = (None, "eager", "sdpa", "grouped_mm", "batched_mm")
_SMALL = (".json", ".jinja", ".model", ".txt")
"""Endings of the files that libraries read whole."""
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
_WIDTH = ("hidden_size", "n_embd", "d_model")
_HEIGHTS = ("vocab_size", "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")


def check_model_folder(folder: Path) -> None:
    """Raise InvalidArgument("model") unless a model's configuration can be read there, and names no
    code. Needs no torch."""
    if not folder.is_dir():
        raise InvalidArgument("model", f"{folder} is a file; give the folder of a model")
    try:
        _check_small_files(folder)
    except OSError as error:
        raise InvalidArgument("model", f"{folder} cannot be read: {error.strerror}") from error
    path = folder / CONFIG
    try:
        config = read_json(path)
    except FileNotFoundError:
        raise InvalidArgument(
            "model", f"{folder} has no config.json; give the folder of a model"
        ) from None
    except (OSError, ValueError) as error:
        raise InvalidArgument("model", f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise InvalidArgument("model", f"{path} has no model_type")
    check_settings(path, config)


def check_settings(path: Path, config: Any) -> None:
    """Raise InvalidArgument("model") for a configuration, read from `path`, that names code or has
    too many layers."""
    for part in _objects(config):
        _check_settings(path, part)


def tokenizer_parts(folder: Path) -> tuple[Path | None, list[str]]:
    """Return where a folder's tokenizer lies, if it has one, and its chat templates. Raises
    InvalidArgument("model") for settings of a tokenizer that cannot be read."""
    settings: Any = {}
    path = folder / TOKENIZER_CONFIG
    try:
        settings = read_json(path)
        if len(settings.get("added_tokens_decoder") or ()) > MOST_ADDED_TOKENS:
            raise ValueError(f"it has more than {MOST_ADDED_TOKENS} added tokens")
        said = settings.get("chat_template")
    except FileNotFoundError:
        said = None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InvalidArgument("model", f"{path} cannot be read: {error}") from error
    named = said if isinstance(said, list) else [{"template": said}]
    texts = [each.get("template") for each in named if isinstance(each, dict)]
    for file in (*folder.glob("*.jinja"), *folder.glob("additional_chat_templates/*.jinja")):
        with open_file(file) as opened:
            texts.append(opened.read(4 * MOST_TEMPLATE_CHARACTERS + 4).decode("utf-8", "replace"))
    tokenizer = folder / TOKENIZER
    templates = [text for text in texts if isinstance(text, str)]
    return (tokenizer if tokenizer.exists() else None), templates


def check_weights(folder: Path) -> None:
    """Raise InvalidArgument("model") unless all that is said of a folder's weights can be true: in
    their headers, in the index of several files, and in the configuration."""
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise InvalidArgument(
            "model", f"{folder} has no .safetensors file; other formats are not supported"
        )
    if (folder / ADAPTER).exists():
        why = "would put another model in the place of this one; merge the adapter into its model"
        raise InvalidArgument("model", f"{folder / ADAPTER} {why}")
    _check_index(folder / WEIGHTS_INDEX)
    tensors = sum(_tensor_count(path) for path in weights)
    if tensors > MOST_TENSORS:
        raise InvalidArgument("model", f"{folder} cannot be loaded: it has {tensors} tensors")
    _check_sizes(folder, tensors, sum(path.stat().st_size for path in weights))


def read_json(path: Path) -> Any:
    """Return the content of a JSON file. Raises OSError, and ValueError for what is no file, too
    large, no JSON or nested too deeply."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_FILE_BYTES:
            raise ValueError(f"it has {size} bytes; the maximum is {MOST_FILE_BYTES}")
        content = file.read(MOST_FILE_BYTES)
    try:
        value = json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [part for each in level for part in _parts(each)]
        if not level:
            return value
    raise ValueError("it is nested too deeply")


def open_file(path: Path) -> BinaryIO:
    """Open a file to read; a pipe, which nobody may ever write to, is none. Raises OSError, and
    ValueError for what is no file."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise ValueError("it is not a file")
    return file


def _parts(value: Any) -> Iterator[Any]:
    """Yield the objects and lists directly inside of one."""
    inside = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list):
        yield from (each for each in inside if isinstance(each, dict | list))


def _check_small_files(folder: Path) -> None:
    for path in folder.iterdir():
        if path.suffix not in _SMALL or path.is_dir():
            continue
        if not path.is_file():
            raise InvalidArgument("model", f"{path} cannot be read: it is not a file")
        if (size := path.stat().st_size) > MOST_FILE_BYTES:
            raise InvalidArgument("model", f"{path} cannot be read: it has {size} bytes")


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the objects in a value that `read_json` returned, itself among them."""
    if isinstance(value, dict):
        yield value
    for part in _parts(value):
        yield from _objects(part)


def _check_settings(path: Path, settings: Mapping[str, Any]) -> None:
    for key, value in settings.items():
        named = key.strip("_").removesuffix("_internal")
        if named in _CODE and not (value is None or value in _NO_CODE):
            words = str(value)[:64]
            why = f"{path} names code to run, {key!r}: {words!r}; remove it"
            raise InvalidArgument("model", why)
    for name in _LAYERS:
        layers = settings.get(name)
        if isinstance(layers, int) and layers > MOST_LAYERS:
            raise InvalidArgument("model", f"{path} cannot be loaded: it has {layers} layers")


def _check_index(path: Path) -> None:
    """The files of a model lie in its folder."""
    if not path.exists():
        return
    try:
        names = read_json(path)["weight_map"].values()
        outside = [name for name in names if Path(name).name != name]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InvalidArgument("model", f"{path} cannot be read: {error}") from error
    if outside:
        raise InvalidArgument("model", f"{path} names a file outside of the folder")


def _tensor_count(path: Path) -> int:
    """Return how many tensors a file says it has."""
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            begin = file.read(len(LFS_POINTER))
            if begin == LFS_POINTER:
                raise InvalidArgument("model", f"{path} is a Git LFS pointer, not the weights")
            file.seek(8)
            (length,) = struct.unpack("<Q", begin[:8])
            if length > min(size - 8, MOST_HEADER_BYTES):
                raise ValueError(f"its header of {length} bytes is longer than the file")
            return file.read(length).count(b'"data_offsets"')
    except (OSError, ValueError, struct.error) as error:
        raise InvalidArgument("model", f"{path} cannot be loaded: {error}") from error


def _check_sizes(folder: Path, tensors: int, size_bytes: int) -> None:
    """Refuse a configuration of more than the files hold: what they lack is made up in memory."""
    path = folder / CONFIG
    for part in (each for each in _objects(read_json(path)) if "vocab_size" in each):
        width = max(_numbers(part, _WIDTH), default=0)
        height = max(_numbers(part, _HEIGHTS), default=0)
        layers = max(_numbers(part, _LAYERS), default=0)
        if width * max(width, height) > _NUMBERS_A_BYTE * size_bytes or layers > tensors:
            why = f"cannot be loaded: it speaks of more weights than {folder} has"
            raise InvalidArgument("model", f"{path} {why}")


def _numbers(settings: Mapping[str, Any], names: Sequence[str]) -> list[int]:
    return [value for name in names if isinstance(value := settings.get(name), int)]
