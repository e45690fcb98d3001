"""Files to ingest. One document is read at a time; one that cannot be read is a Refusal."""

from collections.abc import Iterable, Iterator
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


def files_below(paths: Iterable[Path]) -> list[Path]:
    """Files among `paths`, and files of a known kind in folders among them, but no hidden ones.
    InvalidArgument for a path that does not exist."""
    files: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            inside = sorted(path.rglob("*"))
            files |= dict.fromkeys(file for file in inside if _is_document(file, path))
        elif path.exists():
            files[path] = None
        else:
            raise InvalidArgument("paths", f"{path} does not exist")
    return list(files)


def read_sources(files: Iterable[Path]) -> Iterator[Source | Refusal]:
    """Every document, named by its path as given; a file of JSON lines is several."""
    for path in files:
        form = format_of(path.name) or Format.TEXT
        try:
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
    """One document per line; a line that is too long is skipped without being held."""
    number = 0
    while line := file.readline(MAX_DOCUMENT_BYTES + 1):
        number += 1
        if len(line) > MAX_DOCUMENT_BYTES:
            while line and not line.endswith(b"\n"):
                line = file.readline(MAX_DOCUMENT_BYTES)
            yield Refusal(f"{name}#{number}", f"content: more than {MAX_DOCUMENT_BYTES} bytes")
        elif line.strip():
            source = json_line(line.rstrip(b"\n"), name, number)
            if isinstance(source, Document):
                upload = Upload(source.id, source.text.encode(), Format.TEXT.value, source.title)
                yield Source(upload, len(line))
            else:
                yield source


def _is_document(path: Path, folder: Path) -> bool:
    """Return whether the file has a known type and is not hidden within the folder."""
    if any(part.startswith(".") for part in path.relative_to(folder).parts):
        return False
    return path.is_file() and format_of(path.name) is not None
