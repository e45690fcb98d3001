"""Tables and office documents as text that answers can be found in."""

from __future__ import annotations

import io
import re
import zipfile

import pytest
from docx import Document as WordDocument
from openpyxl import Workbook
from pptx import Presentation
from pptx.util import Inches

from tandem.index.extraction import Format, Refusal
from tandem.index.extractor import ExtractionLimits, Extractor
from tandem.index.records import Document
from tests.unit.index.read_documents import read, text_of

ROWS = (("name", "weight"), ("heron", "2 kg"), ("wren", "9 g"))
LINES = ["name: heron; weight: 2 kg", "name: wren; weight: 9 g"]


def docx() -> bytes:
    document = WordDocument()
    document.core_properties.title = "Birds"
    document.add_paragraph("Before the table.")
    table = document.add_table(rows=0, cols=2)
    for row in ROWS:
        for cell, text in zip(table.add_row().cells, row, strict=True):
            cell.text = text
    document.add_paragraph("After the table.")
    written = io.BytesIO()
    document.save(written)
    return written.getvalue()


def xlsx() -> bytes:
    book = Workbook()
    sheet = book.active
    assert sheet is not None
    sheet.title = "Birds"
    for row in ROWS:
        sheet.append(row)
    book.create_sheet("Empty")
    written = io.BytesIO()
    book.save(written)
    return written.getvalue()


def pptx() -> bytes:
    presentation = Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[5])
    assert slide.shapes.title is not None
    slide.shapes.title.text = "Birds of the shore"
    size = Inches(1)
    table = slide.shapes.add_table(3, 2, size, size, size, size).table
    for number, row in enumerate(ROWS):
        for place, text in enumerate(row):
            table.cell(number, place).text = text
    notes = slide.notes_slide.notes_text_frame
    assert notes is not None
    notes.text = "Say that herons wait."
    written = io.BytesIO()
    presentation.save(written)
    return written.getvalue()


def test_word_documents_are_read_in_their_order() -> None:
    document = read(docx(), Format.DOCX)
    assert isinstance(document, Document)
    assert document.title == "Birds"
    lines = [line for line in document.text.splitlines() if line]
    assert lines == ["Before the table.", *LINES, "After the table."]


def test_a_word_document_without_properties_has_no_title() -> None:
    """The library makes up "Word Document" for it."""
    bare = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(docx())) as source, zipfile.ZipFile(bare, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name == "_rels/.rels":
                content = re.sub(rb"<Relationship [^>]*core-properties[^>]*/>", b"", content)
            if name != "docProps/core.xml":
                target.writestr(name, content)
    document = read(bare.getvalue(), Format.DOCX)
    assert isinstance(document, Document)
    assert document.title == ""


def test_every_row_of_a_sheet_says_what_its_cells_are() -> None:
    assert text_of(xlsx(), Format.XLSX).splitlines()[:3] == ["# Birds", *LINES]


def test_slides_are_read_with_their_tables_and_notes() -> None:
    lines = [line for line in text_of(pptx(), Format.PPTX).splitlines() if line]
    assert lines == ["Birds of the shore", *LINES, "Say that herons wait."]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_values_are_separated_as_the_first_line_has_it(delimiter: str) -> None:
    content = "\r\n".join(delimiter.join(row) for row in ROWS)
    assert text_of(content.encode(), Format.CSV).splitlines() == LINES


def test_a_table_without_names_of_columns_is_its_rows() -> None:
    assert text_of(b"1,2\n3,,4\n\n,,\n", Format.CSV).splitlines() == ["1; 2", "3; 4"]
    assert text_of(b'name,note\nheron,"a, b\nc"\n', Format.CSV) == "name: heron; note: a, b c"


MAIN_PART = {
    Format.DOCX: b"word/document.xml",
    Format.XLSX: b"xl/workbook.xml",
    Format.PPTX: b"ppt/presentation.xml",
}


@pytest.mark.parametrize("form", MAIN_PART)
def test_what_is_no_office_document_is_refused(form: Format) -> None:
    empty = io.BytesIO()
    zipfile.ZipFile(empty, "w").close()
    whole = {Format.DOCX: docx, Format.XLSX: xlsx, Format.PPTX: pptx}[form]()
    # A part that cannot be unpacked: its compressed bytes begin after its name.
    torn = bytearray(whole)
    begin = torn.index(MAIN_PART[form]) + len(MAIN_PART[form])
    torn[begin : begin + 40] = b"\xff" * 40
    for content in (b"junk", empty.getvalue(), whole[: len(whole) // 2], whole[:-30], bytes(torn)):
        refused = read(content, form)
        assert isinstance(refused, Refusal)
        assert refused.why.startswith("content: is not a")


def test_a_file_that_is_larger_than_it_looks_costs_no_more_than_is_allowed() -> None:
    """Some kilobytes that unpack to an eighth of a gigabyte."""
    bomb = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(docx())) as source, zipfile.ZipFile(bomb, "w", 8) as target:
        for name in source.namelist():
            content = source.read(name)
            if name == "word/document.xml":
                content = content.replace(b"Before", b"B" + b"e" * 2**27)
            target.writestr(name, content)
    assert len(bomb.getvalue()) < 2**20
    extractor = Extractor(ExtractionLimits(memory_bytes=256 * 2**20))
    try:
        (refused,) = extractor.extract(bomb.getvalue(), Format.DOCX, "bomb")
        assert isinstance(refused, Refusal)
        (fine,) = extractor.extract(docx(), Format.DOCX, "fine")
        assert isinstance(fine, Document)
    finally:
        extractor.close()


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("naïve café résumé", "latin-1"),
        ("Grüße aus München, schöne Straße", "cp1252"),
        ("Zażółć gęślą jaźń i żółty łoś", "cp1250"),
        ("Привет мир, как дела сегодня?", "cp1251"),
        ("日本語の文章です。今日は天気がいい。", "shift_jis"),
        ("plain and wide", "utf-16"),
        ("plain and wide", "utf-32"),
        ("with a mark", "utf-8-sig"),
    ],
)
def test_text_is_read_in_the_encoding_that_it_has(text: str, encoding: str) -> None:
    assert text_of(text.encode(encoding), Format.TEXT) == text


def test_what_is_text_in_no_encoding_is_refused() -> None:
    for content in (b"a\0b", b"\xff\xfea\xd8", bytes(range(128, 256)) * 4):
        refused = read(content, Format.TEXT)
        assert isinstance(refused, Refusal), content
