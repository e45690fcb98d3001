"""Every format's text, and every way a file can be no such file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest

from tandem.index.extraction import MAX_DOCUMENT_BYTES, Format, Refusal, extract
from tandem.index.records import Document
from tests.unit.index.read_documents import read, text_of
from tests.unit.index.written_pdfs import pdf, placed_pdf

HTML = b"""<html><head><title>The title</title><style>p {}</style><script>var secret</script></head>
<body><h1>Head</h1><p>One <b>bold</b> word &amp; more.</p><ul><li>first<li>second</ul></body>"""


def test_markdown_is_named_after_its_first_heading_unless_it_has_a_title() -> None:
    content = b"intro\n\n# A *heading* #\n\ntext"
    assert read(content, Format.MARKDOWN) == Document("doc", content.decode(), "A *heading*")
    assert read(content, Format.MARKDOWN, "given") == Document("doc", content.decode(), "given")


def test_html_is_what_a_reader_sees() -> None:
    document = read(HTML, Format.HTML)
    assert isinstance(document, Document)
    assert document.title == "The title"
    assert " ".join(document.text.split()) == "Head One bold word & more. first second"
    assert "Head\n\nOne bold word & more." in document.text


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("<p>gr\u00fcn 5 \u20ac".encode(), "gr\u00fcn 5 \u20ac"),
        ("\ufeff<p>gr\u00fcn".encode(), "gr\u00fcn"),
        ("<meta charset=latin-1><p>gr\u00fcn".encode(), "gr\u00fcn"),
        ("<p>gr\u00fcn 5 \u20ac".encode("cp1252"), "gr\u00fcn 5 \u20ac"),
        ('<meta charset="iso-8859-2"><p>\u0159'.encode("iso-8859-2"), "\u0159"),
        (b"<meta charset=nonsense><p>plain", "plain"),
        (b"&nbsp;x&euro;&#x110000;&#0;&notin;&#128;", "x\u20ac\ufffd\ufffd\u2209\u20ac"),
    ],
)
def test_html_has_the_encoding_that_it_has_or_says(content: bytes, text: str) -> None:
    assert text_of(content, Format.HTML) == text


def test_html_that_is_too_deep_is_refused() -> None:
    refused = read(b"<div>" * 100_000, Format.HTML)
    assert refused == Refusal("doc", "content: more than 1000 HTML elements are nested")


def test_no_entity_of_a_page_is_expanded_and_nothing_is_fetched() -> None:
    lines = [b'<!DOCTYPE html SYSTEM "file:///etc/passwd" [<!ENTITY a "aaaa">']
    lines += [
        b'<!ENTITY %c "&%c;&%c;&%c;&%c;">' % (b, a, a, a, a) for a, b in pairwise(b"abcdefghi")
    ]
    lines += [b'<!ENTITY file SYSTEM "file:///etc/passwd">]><p>&i;&file;']
    text = text_of(b"".join(lines), Format.HTML)
    assert text.endswith("&i;&file;")
    assert len(text) < 1000
    assert "root:" not in text


def test_a_table_of_a_pdf_is_read_by_rows() -> None:
    rows = (("Name", "Weight", "Colour"), ("Heron", "2 kg", "grey"), ("Wren", "9 g", "brown"))
    cells = [
        (50 + 150 * column, 700 - 20 * line, cell)
        for line, row in enumerate(rows)
        for column, cell in enumerate(row)
    ]
    assert text_of(placed_pdf(cells), Format.PDF).splitlines() == [" ".join(row) for row in rows]


LEFT = ("The heron stands in", "shallow water and", "waits for a fish.")
RIGHT = ("The wren hops about", "in the hedge and", "sings all winter.")


def column(lines: Sequence[str], left: int, top: int = 700) -> list[tuple[int, int, str]]:
    return [(left, top - 12 * number, line) for number, line in enumerate(lines)]


def test_columns_of_a_pdf_are_read_one_after_the_other() -> None:
    content = placed_pdf([*column(LEFT, 50), *column(RIGHT, 320)])
    assert text_of(content, Format.PDF).splitlines() == [*LEFT, *RIGHT]


def test_a_table_between_columns_of_a_pdf_keeps_its_rows() -> None:
    table = [(50, 600, "Heron"), (200, 600, "2 kg"), (50, 580, "Wren"), (200, 580, "9 g")]
    content = placed_pdf([*column(LEFT, 50), *table, *column(RIGHT, 320)])
    assert text_of(content, Format.PDF).splitlines() == [*LEFT, "Heron 2 kg", "Wren 9 g", *RIGHT]


def test_a_pdf_of_pictures_is_refused() -> None:
    refused = read(pdf(" "), Format.PDF)
    why = "content: is a PDF without text: its pages are pictures"
    assert refused == Refusal("doc", why)


def test_pdf_pages_are_read() -> None:
    assert "Words on a page" in text_of(pdf("Words on a page"), Format.PDF)


def test_json_lines_are_documents_and_a_bad_line_harms_no_other() -> None:
    lines = [
        json.dumps({"id": "a", "title": "T", "text": "one"}).encode(),
        b"{broken",
        b"",
        json.dumps({"text": "two"}).encode(),
        json.dumps(["text"]).encode(),
        b'{"text": 5}',
        b'{"text": "\\ud800"}',
        b'"' + b"x" * (50 * 2**20) + b'"',
        b"[" * 100_000,
        b"\x00\xff",
        json.dumps({"id": 7, "text": "three"}).encode(),
    ]
    found = list(extract(b"\n".join(lines), Format.JSONL, "f"))
    taken = [d for d in found if isinstance(d, Document)]
    assert taken == [Document("f#a", "one", "T"), Document("f#4", "two"), Document("f#7", "three")]
    refused = {r.id: r.why for r in found if isinstance(r, Refusal)}
    assert set(refused) == {f"f#{number}" for number in (2, 5, 6, 7, 8, 9, 10)}
    assert refused["f#8"] == f"content: {50 * 2**20 + 2} bytes; the maximum is {MAX_DOCUMENT_BYTES}"


JUNK = bytes(range(256)) * 8


@pytest.mark.parametrize("form", [Format.TEXT, Format.MARKDOWN, Format.HTML, Format.PDF])
def test_junk_is_refused_whatever_it_is_called(form: Format) -> None:
    for content in (JUNK, JUNK[1:], pdf("x")[:300] if form is Format.PDF else b"\0"):
        refused = read(content, form)
        if form is Format.HTML and b"\0" not in content:
            continue
        assert isinstance(refused, Refusal), content
        assert refused.why.startswith("content: ")
        assert "\n" not in refused.why
    large = read(b"x" * (MAX_DOCUMENT_BYTES + 1), form)
    assert isinstance(large, Refusal)
