"""Keys and values of a text as a file: safetensors, mapped when read, replaced atomically; or the
same bytes in memory, to be sent to another decoder.

A file names what it was computed from, and is refused under any other name: keys and values of
other weights, or of another text, would give fluent nonsense. Invariant: a file is complete or
absent; anything else at its path, or sent in its place, is refused with a reason.
"""

import json
import os
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save, save_file
from torch import Tensor

from tandem.backends.interface import KV_BLOCK, KvFileRefused, KvOrigin, Session
from tandem.backends.request_checks import own_session
from tandem.backends.torch.kv_cache import KvPool, KvSession
from tandem.core.errors import InvalidArgument

_FORMAT = "tandem-kv-1"
_LENGTH_BYTES = 8
"""Of a safetensors header, which is JSON: before it, little endian."""


@dataclass(frozen=True, slots=True)
class KvTensors:
    """Keys and values, [kv_heads, tokens, size] of each layer, in main memory or mapped there."""

    keys: list[Tensor]
    values: list[Tensor]


class TorchKvFiles:
    """Implements `tandem.backends.interface.KvFiles` for sessions of one pool."""

    def __init__(self, pool: KvPool) -> None:
        self._pool = pool

    def export(self, session: Session) -> KvTensors:
        return KvTensors(*own_session(session, KvSession, self._pool.sessions).export())

    def copy(self, session: Session, first: int, end: int) -> list[KvTensors]:
        kv = own_session(session, KvSession, self._pool.sessions)
        if not 0 <= first <= end <= kv.length:
            raise InvalidArgument("length", f"has {kv.length} tokens, {end} are needed")
        return [KvTensors(*kv.copy(at, at + KV_BLOCK)) for at in range(first, end, KV_BLOCK)]

    def paste(self, session: Session, copies: Sequence[KvTensors]) -> None:
        kv = own_session(session, KvSession, self._pool.sessions)
        length = sum(copy.keys[0].shape[1] for copy in copies)
        if kv.length or length > kv.capacity:
            why = f"{length} tokens for a session with {kv.length} of {kv.capacity}"
            raise InvalidArgument("length", why)
        kv.paste([copy.keys for copy in copies], [copy.values for copy in copies], length)

    def adopt(self, tensors: KvTensors) -> KvSession:
        return self._pool.adopt(tensors.keys, tensors.values)

    def write(self, path: Path, tensors: KvTensors, origin: KvOrigin) -> None:
        named, header = self._described(tensors, origin)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            save_file(named, temporary, header)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
            _sync_folder(path.parent)
        except SafetensorError as error:
            raise OSError(f"{path}: {error}") from error
        finally:
            temporary.unlink(missing_ok=True)

    def pack(self, tensors: KvTensors, origin: KvOrigin) -> bytes:
        return save(*self._described(tensors, origin))

    def unpack(self, packed: bytes, origin: KvOrigin) -> KvTensors:
        source = "what was sent"
        try:
            header = _metadata(packed)
            named = load(packed)
        except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise KvFileRefused(f"{source} cannot be read: {error}") from error
        tensors = self._accepted(source, header, named, origin)
        for tensor in (*tensors.keys, *tensors.values):
            if not bool(torch.isfinite(tensor).all()):
                raise KvFileRefused(f"{source} has values that are not finite")
        return tensors

    def read(self, path: Path, origin: KvOrigin) -> KvTensors:
        """Read a file by mapping it into memory, so that the system may take its pages back."""
        try:
            with safe_open(path, "pt") as file:
                header = file.metadata() or {}
                named = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except FileNotFoundError:
            raise
        except (OSError, SafetensorError, ValueError) as error:
            raise KvFileRefused(f"{path} cannot be read: {error}") from error
        tensors = self._accepted(str(path), header, named, origin)
        with suppress(OSError):
            os.utime(path)  # the least recently used file is the first to go
        return tensors

    def _described(
        self, tensors: KvTensors, origin: KvOrigin
    ) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Return the tensors by name, and what a file says of itself."""
        named = _named(tensors)
        return named, {**_header(origin, self._pool.dtype), "crc32": _checksum(named.values())}

    def _accepted(
        self, source: str, header: dict[str, str], named: dict[str, Tensor], origin: KvOrigin
    ) -> KvTensors:
        """Return the tensors in order; KvFileRefused unless they are whole and of this origin."""
        for field, wanted in _header(origin, self._pool.dtype).items():
            if header.get(field) != wanted:
                raise KvFileRefused(f"{source}: {field} is {header.get(field)}, not {wanted}")
        tensors = _checked(source, named, self._pool, origin.tokens)
        if header.get("crc32") != _checksum(_named(tensors).values()):
            raise KvFileRefused(f"{source} is damaged")
        return tensors


def _metadata(packed: bytes) -> dict[str, str]:
    """Return the metadata in the bytes of a file; the library reads metadata from files only.
    Raises ValueError, KeyError, TypeError."""
    length = int.from_bytes(packed[:_LENGTH_BYTES], "little")
    header: dict[str, Any] = json.loads(packed[_LENGTH_BYTES : _LENGTH_BYTES + length])
    return dict(header["__metadata__"])


def _header(origin: KvOrigin, dtype: torch.dtype) -> dict[str, str]:
    """Return the metadata of a file; safetensors stores only text."""
    fields = {field: str(value) for field, value in asdict(origin).items()}
    return {"format": _FORMAT, "dtype": str(dtype), **fields}


def _named(tensors: KvTensors) -> dict[str, Tensor]:
    by_name = {}
    for layer, (key, value) in enumerate(zip(tensors.keys, tensors.values, strict=True)):
        by_name[f"{layer}.key"] = key.contiguous()
        by_name[f"{layer}.value"] = value.contiguous()
    return by_name


def _checked(source: str, named: dict[str, Tensor], pool: KvPool, tokens: int) -> KvTensors:
    """Return the tensors in order, if they are those of so many tokens in this model."""
    shapes = {}
    for number, layer in enumerate(pool.layers):
        shapes[f"{number}.key"] = (layer.kv_heads, tokens, layer.key_size)
        shapes[f"{number}.value"] = (layer.kv_heads, tokens, layer.value_size)
    present = {name: tuple(tensor.shape) for name, tensor in named.items()}
    if present != shapes or any(tensor.dtype != pool.dtype for tensor in named.values()):
        raise KvFileRefused(f"{source} does not have the tensors of the model's layers")
    count = range(len(pool.layers))
    return KvTensors([named[f"{n}.key"] for n in count], [named[f"{n}.value"] for n in count])


def _checksum(tensors: Iterable[Tensor]) -> str:
    """Return a checksum, as a crash may leave a file of the right size without its content."""
    checksum = 0
    for tensor in tensors:
        checksum = zlib.crc32(tensor.view(torch.uint8).numpy().data, checksum)
    return f"{checksum:08x}"


def _sync_folder(folder: Path) -> None:
    """Make the names in it durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
