"""The files of a folder: snapshots of the whole corpus, and logs of what changed since.

`snapshot-N` holds everything before `log-N`; generation 0 starts empty and has no snapshot. The two
newest snapshots are kept with all logs since the older, so a snapshot that was damaged costs
nothing: the one before it and the logs give the same corpus. Invariants: what `append` returned
from is found again after a crash at any instant; what is served is the whole of it, or the folder
is refused. Must not import grpc.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from tandem.index.corpus import Corpus
from tandem.index.durable_file import AppendFile, FolderLock, write_atomically
from tandem.index.errors import FolderDamaged
from tandem.index.frames import frame_of, read_frames
from tandem.index.manifest import Manifest, settle_manifest
from tandem.index.operations import Operation, decode, encode
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

_FILE = re.compile(r"(snapshot|log)-(\d{8})")
_OPERATIONS_PER_FRAME = 64


class Storage:
    """One folder, opened for this process alone. Not thread-safe."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Makes the folder, or reads it into `corpus`. Raises FolderInUse, FolderMismatch,
        FolderDamaged, OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._dimension = manifest.dimension
        self._lock = FolderLock(folder)
        try:
            settle_manifest(folder, manifest)
            self.corpus, log_size = self._recover()
            self.generation = max(self._numbers("log") + self._numbers("snapshot"), default=0)
            self._log = AppendFile(self._path("log", self.generation), log_size)
            self.snapshot_bytes = self._size_of_newest_snapshot()
        except BaseException:
            self._lock.close()
            raise

    def append(self, operations: list[Operation]) -> None:
        """Make them durable, together. Applying them to `corpus` is the caller's next step."""
        self._log.append(frame_of(encode(operations, self._dimension)))

    def snapshot(self) -> None:
        """Write the whole corpus as a new generation; files that no one needs any more go."""
        generation = self.generation + 1
        size = write_atomically(self._path("snapshot", generation), self._snapshot_frames())
        new_log = AppendFile(self._path("log", generation), 0)
        self._log.close()
        self._log, self.generation, self.snapshot_bytes = new_log, generation, size
        self._prune()

    @property
    def log_bytes(self) -> int:
        """Size of the present log."""
        return self._log.size

    def close(self) -> None:
        self._log.close()
        self._lock.close()

    def _recover(self) -> tuple[Corpus, int]:
        """(corpus, whole bytes of the newest log), from the newest snapshot that is good."""
        snapshots = self._numbers("snapshot")
        damaged: list[FolderDamaged] = []
        for base in [*reversed(snapshots), 0]:
            try:
                corpus = self._read_snapshot(base) if base else self._start(snapshots)
            except FolderDamaged as error:
                damaged.append(error)
                continue
            size = self._replay(corpus, base)
            for number in snapshots:
                if number > base:
                    self._set_aside(number)
            return corpus, size
        raise damaged[0]

    def _start(self, snapshots: list[int]) -> Corpus:
        """The empty corpus of generation 0, if its log was not pruned."""
        logs = self._numbers("log")
        if (snapshots or logs) and 0 not in logs:
            raise FolderDamaged(f"{self._folder}: no snapshot is whole; restore one from a copy")
        return Corpus()

    def _replay(self, corpus: Corpus, base: int) -> int:
        """Apply all logs from `base` on; how much of the last is whole."""
        logs = [number for number in self._numbers("log") if number >= base]
        last = max([base, *logs])
        size = 0
        for number in range(base, last + 1):
            path = self._path("log", number)
            # Missing is right for a snapshot alone: the process ended before the log was made.
            if number not in logs and not (number == last and number == base):
                raise FolderDamaged(f"{path}: is missing")
            size = self._read_log(path, corpus) if number in logs else 0
            if number != last and size != path.stat().st_size:
                raise FolderDamaged(f"{path}: the record at byte {size} is damaged")
        return size

    def _read_log(self, path: Path, corpus: Corpus) -> int:
        end = 0
        with _mapped(path) as content:
            for frame in read_frames(content, str(path)):
                corpus.apply(decode(frame.payload, self._dimension))
                end = frame.end
            if end < len(content):
                log.warning("torn record dropped", file=str(path), size_bytes=len(content) - end)
        return end

    def _read_snapshot(self, number: int) -> Corpus:
        corpus = Corpus()
        path = self._path("snapshot", number)
        operations = 0
        expected: object = None
        with _mapped(path) as content:
            for frame in read_frames(content, str(path)):
                if frame.payload.startswith(b"{"):
                    expected = json.loads(frame.payload)["operations"]
                    continue
                decoded = decode(frame.payload, self._dimension)
                corpus.apply(decoded)
                operations += len(decoded)
        if operations != expected:
            raise FolderDamaged(f"{path}: is damaged after {operations} documents")
        return corpus

    def _snapshot_frames(self) -> Iterator[bytes]:
        """The corpus, then how many operations it took: without the last frame it is not whole."""
        count = 0
        rest = self.corpus.operations()
        while operations := list(islice(rest, _OPERATIONS_PER_FRAME)):
            yield frame_of(encode(operations, self._dimension))
            count += len(operations)
        yield frame_of(json.dumps({"operations": count}).encode())

    def _set_aside(self, number: int) -> None:
        path = self._path("snapshot", number)
        path.replace(path.with_suffix(".damaged"))
        log.error("damaged snapshot set aside; nothing was lost", file=str(path))

    def _prune(self) -> None:
        """Keep the two newest snapshots, and the logs since the older of them."""
        snapshots = self._numbers("snapshot")
        oldest = snapshots[-2] if len(snapshots) > 1 else 0
        for kind in ("snapshot", "log"):
            for number in self._numbers(kind):
                if number < oldest:
                    self._path(kind, number).unlink()

    def _size_of_newest_snapshot(self) -> int:
        numbers = self._numbers("snapshot")
        return self._path("snapshot", numbers[-1]).stat().st_size if numbers else 0

    def _numbers(self, kind: str) -> list[int]:
        """Generations of the files of a kind, ascending."""
        matches = [_FILE.fullmatch(path.name) for path in self._folder.iterdir()]
        return sorted(int(m.group(2)) for m in matches if m is not None and m.group(1) == kind)

    def _path(self, kind: str, number: int) -> Path:
        return self._folder / f"{kind}-{number:08d}"


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap | bytes]:
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            yield content
