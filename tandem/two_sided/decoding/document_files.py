"""A folder of documents' keys and values, shared by everything that runs the same model, which
computed them: nothing imported is here. A file of other weights, or one that cannot be read, counts
as absent. Files are their owner's alone: a text can be guessed from its keys and values. Methods
run on any thread."""

import hashlib
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tandem.backends.interface import Engine, KvFileRefused, KvFiles, KvOrigin
from tandem.core.errors import InvalidArgument
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

DISK_BUDGET_BYTES = 2**32
_SUFFIX = ".safetensors"
_HASH_IN_NAME = 32
_ABANDONED_S = 600.0


def open_document_files(
    engine: Engine,
    folder: Path | None,
    model: Callable[[], str],
    budget_bytes: int = DISK_BUDGET_BYTES,
) -> "DocumentFiles | None":
    """Return the files of an engine's documents; None without a folder, and with a warning where it
    cannot keep any. `model` reads its weights' content hash. Raises
    InvalidArgument("document_kv_folder")."""
    if folder is None:
        return None
    files = engine.kv_files
    if files is None:
        log.warning("this engine keeps documents in memory only", folder=str(folder))
        return None
    try:
        return DocumentFiles(
            files,
            folder,
            model=model(),
            vocabulary=engine.vocabulary_hash,
            budget_bytes=budget_bytes,
        )
    except OSError as error:
        why = f"{folder} cannot be used: {error.strerror or error}"
        raise InvalidArgument("document_kv_folder", why) from error


class DocumentFiles:
    """Files of one model in `folder`, which together stay within `budget_bytes`."""

    def __init__(
        self, files: KvFiles, folder: Path, *, model: str, vocabulary: str, budget_bytes: int
    ) -> None:
        """Open the folder, which is created if there is none. `model` is the content hash of the
        weights, with whatever else decides keys and values. Raises OSError where the folder cannot
        be made."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._files = files
        self._folder = folder
        self._model = model
        self._vocabulary = vocabulary
        self._budget_bytes = budget_bytes
        self._clear_abandoned()

    def read(self, token_ids: Sequence[int], owner: str = "") -> Any:
        """Return what `KvFiles.adopt` takes; None where there is no usable file of this owner's."""
        try:
            return self._files.read(self.path(token_ids, owner), self._origin(token_ids))
        except FileNotFoundError:
            return None
        except KvFileRefused as error:
            log.warning("keys and values on disk are not used", reason=str(error))
            return None

    def write(self, token_ids: Sequence[int], tensors: Any, owner: str = "") -> bool:
        """Return whether it is on disk now. A full disk costs time later, never an answer."""
        path = self.path(token_ids, owner)
        try:
            self._files.write(path, tensors, self._origin(token_ids))
            self._prune(path)
        except OSError as error:
            log.warning("keys and values are not kept on disk", reason=str(error))
            return False
        return True

    def remove(self, documents: Iterable[Sequence[int]], owner: str = "") -> set[str]:
        """Remove the files of these documents of an owner's, those of other models that read them
        alike and those that were being written included. Return the hashes of the documents that
        had files. Raises OSError."""
        removed = (document_hash(token_ids, owner) for token_ids in documents)
        hashes = {document[:_HASH_IN_NAME]: document for document in removed}
        there = set()
        for path in self._folder.glob(f"*{_SUFFIX}*"):
            if (document := hashes.get(path.name[:_HASH_IN_NAME])) is not None:
                path.unlink(missing_ok=True)
                there.add(document)
        return there

    def path(self, token_ids: Sequence[int], owner: str = "") -> Path:
        """Return where the file of an owner's document is, if there is one."""
        origin = self._origin(token_ids)
        of = hashlib.sha256(f"{origin.model}\n{origin.vocabulary}".encode()).hexdigest()
        document = document_hash(token_ids, owner)
        return self._folder / f"{document[:_HASH_IN_NAME]}-{of[:16]}{_SUFFIX}"

    def _origin(self, token_ids: Sequence[int]) -> KvOrigin:
        return document_origin(self._model, self._vocabulary, token_ids)

    def _prune(self, newest: Path) -> None:
        """Remove the least recently read. A mapped file keeps its content."""
        files = []
        for path in self._folder.glob("*" + _SUFFIX):
            with suppress(FileNotFoundError):  # another process prunes as well
                stat = path.stat()
                files.append((stat.st_mtime_ns, stat.st_size, path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self._budget_bytes:
                return
            if path != newest:
                path.unlink(missing_ok=True)
                total -= size

    def _clear_abandoned(self) -> None:
        """Remove what a crashed process was writing."""
        for path in self._folder.glob(f"*{_SUFFIX}.*.tmp"):
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > _ABANDONED_S:
                    path.unlink()


def document_origin(model: str, vocabulary: str, token_ids: Sequence[int]) -> KvOrigin:
    """Return what keys and values are computed from; `model`, `vocabulary`: content hashes."""
    return KvOrigin(model, vocabulary, document_hash(token_ids), len(token_ids))


def document_hash(token_ids: Sequence[int], owner: str = "") -> str:
    """Return the content hash of a text as the model reads it. An owner's text has another one, so
    that its keys and values are nobody else's."""
    text = hashlib.sha256(array("q", token_ids).tobytes())
    if owner:
        text = hashlib.sha256(f"{owner}\0{text.hexdigest()}".encode())
    return text.hexdigest()
