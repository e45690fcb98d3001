"""Text of office documents and tables, for searching: what a reader sees, without its looks.

Parts of these files are compressed XML, which may be far larger than it looks, so they are read
only by `extraction_worker`, whose memory and time are limited. Their macros are not run, and
nothing that they link to is fetched.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tandem.core.errors import InvalidArgument

MAX_CELLS = 2_000_000
"""Of a sheet: a few kilobytes may claim a million rows."""
DELIMITERS = ",;\t|"


def docx_text(content: bytes) -> tuple[str, str]:
    """Return (title, text) of a Word document: paragraphs and tables in their order."""
    from docx import Document
    from docx.opc.constants import RELATIONSHIP_TYPE
    from docx.table import Table

    def read(file: io.BytesIO) -> tuple[str, str]:
        document = Document(file)
        # Asked for properties that a file does not have, the library makes up a title.
        kinds = {relationship.reltype for relationship in document.part.package.rels.values()}
        has_title = RELATIONSHIP_TYPE.CORE_PROPERTIES in kinds
        title = document.core_properties.title if has_title else ""
        blocks: list[str] = []
        for block in document.iter_inner_content():
            if isinstance(block, Table):
                rows = ([cell.text for cell in row.cells] for row in block.rows)
                blocks.append("\n".join(table_lines(rows)))
            else:
                blocks.append(block.text)
        return title, "\n\n".join(filter(None, blocks))

    return _read(read, content, "Word document")


def xlsx_text(content: bytes) -> tuple[str, str]:
    """Return (title, text) of a workbook: each sheet's name and its rows, formulas as their last
    values."""
    from openpyxl import load_workbook

    def read(file: io.BytesIO) -> tuple[str, str]:
        book = load_workbook(file, read_only=True, data_only=True, keep_links=False)
        sheets: list[str] = []
        for sheet in book.worksheets:
            rows = _bounded(sheet.iter_rows(values_only=True))
            lines = table_lines([_shown(value) for value in row] for row in rows)
            sheets.append("\n".join([f"# {sheet.title}", *lines]))
        return book.properties.title or "", "\n\n".join(sheets)

    return _read(read, content, "workbook")


def pptx_text(content: bytes) -> tuple[str, str]:
    """Return (title, text) of a presentation: the texts, tables and notes of each slide."""
    from pptx import Presentation

    def read(file: io.BytesIO) -> tuple[str, str]:
        presentation = Presentation(file)
        slides: list[str] = []
        for slide in presentation.slides:
            parts: list[str] = []
            for shape in slide.shapes:
                if shape.has_table:
                    rows = ([cell.text for cell in row.cells] for row in shape.table.rows)
                    parts += table_lines(rows)
                elif shape.has_text_frame:
                    parts.append(shape.text_frame.text)
            if slide.has_notes_slide and (notes := slide.notes_slide.notes_text_frame):
                parts.append(notes.text)
            slides.append("\n".join(filter(None, parts)))
        title = presentation.core_properties.title or ""
        return title, "\n\n".join(filter(None, slides))

    return _read(read, content, "presentation")


def csv_text(text: str) -> str:
    """Return the rows of comma-separated values, or of those that a semicolon, tab or bar
    separates. Raises InvalidArgument."""
    first = text.lstrip().partition("\n")[0]
    delimiter = max(DELIMITERS, key=first.count)
    try:
        return "\n".join(table_lines(csv.reader(io.StringIO(text), delimiter=delimiter)))
    except csv.Error as error:
        raise InvalidArgument("content", f"is not a table of values: {error}") from error


def table_lines(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a line for each row that holds something. With a header, every line repeats its names:
    a chunk from the middle of a table would be numbers without a meaning otherwise."""
    header: Sequence[str] | None = None
    first = True
    for row in rows:
        cells = [" ".join(cell.split()) for cell in row]
        if not any(cells):
            continue
        if first and _is_header(cells):
            header = cells
        elif header is not None and len(cells) <= len(header):
            named = zip(header, cells, strict=False)
            yield "; ".join(f"{name}: {cell}" for name, cell in named if cell)
        else:
            yield "; ".join(filter(None, cells))
        first = False


def _is_header(cells: Sequence[str]) -> bool:
    """Return whether these look like names of columns: distinct, none missing, and no numbers."""
    if len(cells) < 2 or len(set(cells)) < len(cells) or not all(cells):
        return False
    return not any(cell[0].isdigit() or cell[0] in "+-." for cell in cells)


def _bounded(rows: Iterable[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    cells = 0
    for row in rows:
        cells += len(row)
        if cells > MAX_CELLS:
            raise InvalidArgument("content", f"a sheet has more than {MAX_CELLS} cells")
        yield row


def _shown(value: object) -> str:
    return "" if value is None else str(value)


def _read(
    read: Callable[[io.BytesIO], tuple[str, str]], content: bytes, kind: str
) -> tuple[str, str]:
    try:
        return read(io.BytesIO(content))
    except (InvalidArgument, ImportError, MemoryError):
        raise
    # Three libraries above zlib, zipfile and XML, each with errors of its own: whatever else they
    # raise means that this file is broken, or made to be.
    except Exception as error:
        raise InvalidArgument("content", f"is not a {kind} that can be read: {error}") from error
