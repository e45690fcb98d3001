"""Files to ingest. One document is read at a time; one that cannot be read is a Refusal."""

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
class Selection:
    """What is below some paths: the files to ingest, and the names of all other files, or of whole
    folders, with the reasons why they are not taken."""

    files: Sequence[Path]
    passed: Sequence[Refusal]


def files_below(paths: Iterable[Path], *, follow_links: bool = False) -> Selection:
    """Find the files among `paths`, and in folders among them those of a known kind, but no hidden
    ones. Links within a folder are not followed unless asked for: they may lead out of it, to what
    nobody meant to have answers from. A path that is itself given is, whatever it is called.
    InvalidArgument for a path that does not exist."""
    files: dict[Path, None] = {}
    passed: dict[str, Refusal] = {}
    for path in paths:
        if path.is_dir():
            for file in _below(path, follow_links, frozenset((path.resolve(),))):
                if isinstance(file, Refusal):
                    passed[file.id] = file
                else:
                    files[file] = None
        elif path.exists():
            files[path] = None
        else:
            raise InvalidArgument("paths", f"{path} does not exist")
    return Selection(list(files), list(passed.values()))


Signature = dict[str, tuple[int, int, int]]
"""By the name of each file: when it was changed, its size, and which file it is."""


def signature_of(paths: Iterable[Path], *, follow_links: bool = False) -> Signature:
    """Return what differs once a file below `paths` is added, changed or removed."""
    signature: Signature = {}
    for file in files_below(paths, follow_links=follow_links).files:
        with suppress(OSError):  # it is gone since
            status = file.stat()
            signature[file.as_posix()] = (status.st_mtime_ns, status.st_size, status.st_ino)
    return signature


def _below(folder: Path, follow_links: bool, above: frozenset[Path]) -> Iterator[Path | Refusal]:
    """Yield the files to read below a folder, and a refusal for all others. `above`: the folders
    that this one is in, itself included, so that links do not lead in a circle."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        yield Refusal(folder.as_posix(), f"cannot be read: {error.strerror}")
        return
    for entry in entries:
        name = entry.as_posix()
        if entry.name.startswith("."):
            yield Refusal(name, "is hidden")
        elif entry.is_symlink() and not follow_links:
            yield Refusal(name, "is a link; 'tandem ingest --follow-links' takes what it leads to")
        elif entry.is_dir():
            if (real := entry.resolve()) in above:
                yield Refusal(name, "leads to a folder that it is in")
            else:
                yield from _below(entry, follow_links, above | {real})
        elif not entry.is_file():
            yield Refusal(name, "is no regular file" if entry.exists() else "leads nowhere")
        elif format_of(entry.name) is None:
            kind = f"files ending in {entry.suffix}" if entry.suffix else "files without an ending"
            yield Refusal(
                name, f"{kind} are not read from folders; name it to have it read as text"
            )
        else:
            yield entry


def read_sources(files: Iterable[Path]) -> Iterator[Source | Refusal]:
    """Yield every document, named by its path as given; a file of JSON lines is several. A file
    that cannot be read gives a refusal."""
    for path in files:
        form = format_of(path.name) or Format.TEXT
        try:
            if not path.is_file():  # a pipe would be waited for, and a device has no end
                yield Refusal(path.as_posix(), "is no regular file")
                continue
            with path.open("rb") as file:
                if form is Format.JSONL:
                    yield from _lines(file, path.as_posix())
                else:
                    yield _whole(file, path.as_posix(), form)
        except OSError as error:
            yield Refusal(path.as_posix(), f"cannot be read: {error.strerror}")


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
