"""Text of Word, Excel and PowerPoint files, for searching: what a reader sees, without its looks.

Parts of these files are compressed XML, which may be far larger than it looks, so they are read
only by `extraction_worker`, whose memory and time are limited. Their macros are not run, no entity
is expanded, and nothing that they link to is fetched.
"""

from __future__ import annotations

import io
import posixpath
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tandem.core.errors import InvalidArgument
from tandem.index.tables import table_lines

if TYPE_CHECKING:
    from lxml.etree import _Element

MAX_CELLS = 2_000_000
"""Of a sheet: a few kilobytes may claim a million rows."""

_BESIDE = ("header", "footnotes", "endnotes", "footer", "chart", "diagramData", "notesSlide")
"""Parts with text of what a document or a slide shows, by what the package calls its relation to
them."""
_NOT_SHOWN = frozenset(("del", "moveFrom", "Fallback", "fld", "pPr", "rPr", "sectPr", "tblPr"))
"""What is deleted or has moved elsewhere, what is there once more for older programs, numbers of
slides, and properties."""
_LETTERS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
_ENDS_LINE = frozenset(("p", "v"))
_TITLE = "{http://purl.org/dc/elements/1.1/}title"
_MAIN = "officeDocument"
_PROPERTIES = "core-properties"


def docx_text(content: bytes) -> tuple[str, str]:
    """Return (title, text) of a Word document: with changes accepted, and headers, footers and
    notes once each."""

    def read(file: io.BytesIO) -> tuple[str, str]:
        package = _Package(file)
        main = package.related("", _MAIN)[0]
        return package.title, package.text_of([main])

    return _read(read, content, "Word document")


def pptx_text(content: bytes) -> tuple[str, str]:
    """Return (title, text) of a presentation: each slide with its tables, charts and notes."""

    def read(file: io.BytesIO) -> tuple[str, str]:
        package = _Package(file)
        slides = package.in_order(package.related("", _MAIN)[0])
        return package.title, package.text_of(slides)

    return _read(read, content, "presentation")


def xlsx_text(content: bytes) -> tuple[str, str]:
    """Return (title, text) of a workbook: each sheet's name and its rows, formulas as their last
    values."""
    from openpyxl import load_workbook

    def read(file: io.BytesIO) -> tuple[str, str]:
        book = load_workbook(file, read_only=True, data_only=True, keep_links=False)
        sheets: list[str] = []
        for sheet in book.worksheets:
            sheet.reset_dimensions()  # what a sheet says of its size is often wrong
            rows = _bounded(sheet.iter_rows())
            lines = table_lines([_shown(cell) for cell in row] for row in rows)
            sheets.append("\n".join([f"# {sheet.title}", *lines]))
        return book.properties.title or "", "\n\n".join(sheets)

    return _read(read, content, "workbook")


class _Package:
    """A zip archive whose parts name each other."""

    def __init__(self, file: io.BytesIO) -> None:
        self._zip = zipfile.ZipFile(file)
        self._names = frozenset(self._zip.namelist())

    @property
    def title(self) -> str:
        parts = self.related("", _PROPERTIES)
        return (self._root(parts[0]).findtext(_TITLE) or "") if parts else ""

    def related(self, part: str, *kinds: str) -> list[str]:
        """Return the parts that `part` names in one of these relations, in the order of `kinds`."""
        named = [(kind, target) for kind, _, target in self._relations(part)]
        return [target for wanted in kinds for kind, target in named if kind == wanted]

    def in_order(self, presentation: str) -> list[str]:
        """Return the slides of a presentation as they are shown."""
        by_id = {each: target for _, each, target in self._relations(presentation)}
        listed = self._root(presentation).iterfind("{*}sldIdLst/{*}sldId")
        ids = (value for slide in listed for name, value in slide.items() if name.endswith("}id"))
        return [by_id[each] for each in ids if each in by_id]

    def text_of(self, parts: Iterable[str]) -> str:
        """Return the texts of these parts and of those beside them, each text once."""
        texts: dict[str, None] = {}
        for part in parts:
            for one in (part, *self.related(part, *_BESIDE)):
                if one in self._names:
                    texts["".join(_pieces(self._root(one))).strip()] = None
        return "\n\n".join(filter(None, texts))

    def _relations(self, part: str) -> Iterator[tuple[str, str, str]]:
        """Yield kind, id and target of each of a part's relations within the package."""
        folder, name = posixpath.split(part)
        path = posixpath.join(folder, "_rels", f"{name}.rels")
        if part and path not in self._names:
            return
        for relation in self._root(path):
            if relation.get("TargetMode") != "External":
                target = posixpath.join("/", folder, relation.get("Target", ""))
                kind = relation.get("Type", "").rpartition("/")[2]
                yield kind, relation.get("Id", ""), posixpath.normpath(target).lstrip("/")

    def _root(self, part: str) -> _Element:
        from lxml import etree

        parser = etree.XMLParser(resolve_entities=False, no_network=True, remove_comments=True)
        return etree.fromstring(self._zip.read(part), parser)


def _pieces(element: _Element) -> Iterator[str]:
    """Yield what is shown of an element in its order. The parser bounds the depth."""
    name = _name(element)
    if name == "tbl":
        rows = (_row(row) for row in _nearest(element, "tr"))
        yield "\n".join(("", *table_lines(rows), "\n"))
    elif name in _LETTERS:
        yield _LETTERS[name]
    elif name not in _NOT_SHOWN:
        if name in ("t", "v"):
            yield element.text or ""
        elif name == "txbxContent":
            yield "\n\n"
        for inner in element:
            yield from _pieces(inner)
        if name in _ENDS_LINE:
            yield "\n\n"


def _row(row: _Element) -> list[str]:
    """Return the texts of a row's cells, with nothing in the columns that a cell spans besides its
    first."""
    cells: list[str] = []
    for cell in _nearest(row, "tc"):
        spans = [span.values()[0] for span in cell.iterfind("{*}tcPr/{*}gridSpan") if span.values()]
        columns = int(spans[0]) if spans and spans[0].isdecimal() else 1
        cells += ["".join(_pieces(cell)), *[""] * min(columns - 1, len(row))]
    return cells


def _nearest(element: _Element, name: str) -> Iterator[_Element]:
    """Yield the elements of this name below one, but none within another of them."""
    for inner in element:
        if _name(inner) == name:
            yield inner
        elif _name(inner) not in _NOT_SHOWN:
            yield from _nearest(inner, name)


def _name(element: _Element) -> str:
    tag = element.tag
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""  # an entity has none


def _bounded(rows: Iterable[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    cells = 0
    for row in rows:
        cells += len(row)
        if cells > MAX_CELLS:
            raise InvalidArgument("content", f"a sheet has more than {MAX_CELLS} cells")
        yield row


def _shown(cell: Any) -> str:
    value, shown_as = cell.value, cell.number_format or ""
    if isinstance(value, float | int) and "%" in shown_as:
        return f"{100 * value:.10g}%"
    if isinstance(value, datetime) and "h" not in shown_as.lower():
        return str(value.date())
    return "" if value is None else str(value)


def _read(
    read: Callable[[io.BytesIO], tuple[str, str]], content: bytes, kind: str
) -> tuple[str, str]:
    try:
        return read(io.BytesIO(content))
    except (InvalidArgument, ImportError, MemoryError):
        raise
    # Libraries above zlib, zipfile and XML, each with errors of its own: whatever else they raise
    # means that this file is broken, or made to be.
    except Exception as error:
        raise InvalidArgument("content", f"is not a {kind} that can be read: {error}") from error
