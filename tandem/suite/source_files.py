"""Files to ingest. One document is read at a time; one that cannot be read is a Refusal."""

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tandem.core.errors import InvalidArgument
from tandem.index.extraction import MAX_DOCUMENT_BYTES, Format, Refusal, format_of, json_line
from tandem.index.records import Document
from tandem.net.retriever_client import Upload


@dataclass(frozen=True, slots=True)
class Source:
    """A document to upload; `size` in bytes of its file, for the progress bar."""

    upload: Upload
    size: int


@dataclass(frozen=True, slots=True)
class File:
    """A file to ingest. `root`: the given folder below which it was found without a link on the
    way; None if the file itself was given, or links are followed."""

    path: Path
    root: Path | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """What is below some paths: the files to ingest; the names of all other files, or of whole
    folders, with the reasons why they are not taken; and those that could not be looked at, so that
    nobody knows what is there."""

    files: Sequence[File]
    passed: Sequence[Refusal]
    unread: Sequence[Refusal]


def files_below(paths: Iterable[Path], *, follow_links: bool = False) -> Selection:
    """Find the files among `paths`, and in folders among them those of a known kind, but no hidden
    ones. Links within a folder are not followed unless asked for: they may lead out of it, to what
    nobody meant to have answers from. A path that is itself given is, whatever it is called.
    InvalidArgument for a path that does not exist."""
    files: dict[Path, File] = {}
    passed: dict[str, Refusal] = {}
    unread: dict[str, Refusal] = {}
    for path in paths:
        if path.is_dir():
            root = None if follow_links else path
            for found in _below(path, root, frozenset((path.resolve(),))):
                if isinstance(found, File):
                    files[found.path] = found
                elif isinstance(found, _Unread):
                    unread[found.id] = found
                else:
                    passed[found.id] = found
        elif path.exists():
            files[path] = File(path)
        else:
            raise InvalidArgument("paths", f"{path} does not exist")
    return Selection([*files.values()], [*passed.values()], [*unread.values()])


Signature = dict[str, tuple[int, int, int]]
"""By the name of each file: when it was changed, its size, and which file it is."""


def signature_of(paths: Iterable[Path], *, follow_links: bool = False) -> Signature:
    """Return what differs once a file below `paths` is added, changed or removed."""
    signature: Signature = {}
    for file in files_below(paths, follow_links=follow_links).files:
        with suppress(OSError):  # it is gone since
            status = file.path.stat()
            signature[file.path.as_posix()] = (status.st_mtime_ns, status.st_size, status.st_ino)
    return signature


class _Unread(Refusal):
    """What could not be looked at: it may hold any file."""


def _below(
    folder: Path, root: Path | None, above: frozenset[Path]
) -> Iterator[File | _Unread | Refusal]:
    """Yield the files to read below a folder, and a refusal for all others. `root`: as in `File`.
    `above`: the folders that this one is in, itself included, so that links do not lead in a
    circle."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        yield _Unread(folder.as_posix(), f"cannot be read: {error.strerror}")
        return
    for entry in entries:
        if entry.name.startswith("."):
            yield Refusal(entry.as_posix(), "is hidden")
            continue
        try:
            status = entry.lstat()
            if stat.S_ISLNK(status.st_mode) and root is None:
                status = entry.stat()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP) and os.path.lexists(entry):
                # Perhaps to a disk that is not mounted now.
                yield _Unread(entry.as_posix(), "is a link that leads nowhere")
            elif error.errno != errno.ENOENT:
                yield _Unread(entry.as_posix(), f"cannot be read: {error.strerror}")
        else:
            yield from _entry(entry, status, root, above)


def _entry(
    entry: Path, status: os.stat_result, root: Path | None, above: frozenset[Path]
) -> Iterator[File | _Unread | Refusal]:
    name = entry.as_posix()
    mode = status.st_mode
    if stat.S_ISLNK(mode):
        yield Refusal(name, "is a link; 'tandem ingest --follow-links' takes what it leads to")
    elif stat.S_ISDIR(mode):
        if (real := entry.resolve()) in above:
            yield Refusal(name, "leads to a folder that it is in")
        else:
            yield from _below(entry, root, above | {real})
    elif not stat.S_ISREG(mode):
        yield Refusal(name, "is no regular file")
    elif format_of(entry.name) is None:
        kind = f"files ending in {entry.suffix}" if entry.suffix else "files without an ending"
        yield Refusal(name, f"{kind} are not read from folders; name it to have it read as text")
    elif status.st_size == 0:
        yield Refusal(name, "is empty")
    else:
        yield File(entry, root)


def _is_utf8(name: str) -> bool:
    """Return whether a file's name is UTF-8; other bytes are read as surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_sources(files: Iterable[File]) -> Iterator[Source | Refusal]:
    """Yield every document, named by its path as given; a file of JSON lines is several. A file
    that cannot be read gives a refusal."""
    for listed in files:
        name = listed.path.as_posix()
        form = format_of(listed.path.name) or Format.TEXT
        if not _is_utf8(name):
            yield Refusal(name, "has a name that is not UTF-8; rename it")
            continue
        try:
            with open(_opened(listed), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    yield Refusal(name, "is no regular file")  # a device has no end
                elif form is Format.JSONL:
                    yield from _lines(file, name)
                else:
                    yield _whole(file, name, form)
        except OSError as error:
            if listed.root is not None and error.errno in (errno.ELOOP, errno.ENOTDIR):
                yield Refusal(name, "a link was put on the way to it, and is not followed")
            else:
                yield Refusal(name, f"cannot be read: {error.strerror}")


def _opened(file: File) -> int:
    """Open a file and return its descriptor. Where links are not followed, they are on no part of
    the way below the root: somebody may have put one there since the file was found."""
    reading = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe would be waited for
    if file.root is None:
        return os.open(file.path, reading)
    *folders, name = file.path.relative_to(file.root).parts
    place = os.open(file.root, reading | os.O_DIRECTORY)
    try:
        for folder in folders:
            inner = os.open(folder, reading | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
            os.close(place)
            place = inner
        return os.open(name, reading | os.O_NOFOLLOW, dir_fd=place)
    finally:
        os.close(place)


def _whole(file: BinaryIO, name: str, form: Format) -> Source | Refusal:
    content = file.read(MAX_DOCUMENT_BYTES + 1)
    if len(content) > MAX_DOCUMENT_BYTES:
        return Refusal(name, f"content: more than {MAX_DOCUMENT_BYTES} bytes")
    return Source(Upload(name, content, form.value), len(content))


def _lines(file: BinaryIO, name: str) -> Iterator[Source | Refusal]:
    """Yield one document per line; a line that is too long is skipped without being held."""
    number = 0
    while line := file.readline(MAX_DOCUMENT_BYTES + 1):
        number += 1
        if len(line) > MAX_DOCUMENT_BYTES:
            while line and not line.endswith(b"\n"):
                line = file.readline(MAX_DOCUMENT_BYTES)
            yield Refusal(f"{name}#{number}", f"content: more than {MAX_DOCUMENT_BYTES} bytes")
        elif line.strip():
            document = json_line(line.rstrip(b"\n"), name, number)
            if isinstance(document, Document):
                upload = Upload(
                    document.id, document.text.encode(), Format.TEXT.value, document.title
                )
                yield Source(upload, len(line))
            else:
                yield document
