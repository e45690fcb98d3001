"""Files as users have them: what was lost of each kind, silently, before it became a test."""

from __future__ import annotations

import io
import json
from datetime import date, datetime
from email.message import EmailMessage
from typing import Any

import pytest
from openpyxl import Workbook
from pptx import Presentation
from pptx.chart.data import CategoryChartData
from pptx.enum.chart import XL_CHART_TYPE
from pptx.util import Inches
from pypdf import PdfWriter

from tandem.index.extraction import Format, Refusal
from tandem.index.records import Document
from tests.unit.index.read_documents import read, text_of
from tests.unit.index.written_office import (
    archive,
    changed,
    docx,
    paragraph,
    relations,
    run,
    table,
)
from tests.unit.index.written_pdfs import pdf, pdf_with_font

ONE_INCH = Inches(1)


def lines_of(content: bytes, form: Format) -> list[str]:
    return [line for line in text_of(content, form).splitlines() if line]


LEGACY_PAGES = [
    ("shift_jis", "cp932", "①㈱髙 山田"),
    ("windows-31j", "cp932", "①㈱髙"),
    ("euc-kr", "cp949", "똠방 회사"),
    ("ks_c_5601-1987", "cp949", "똠방"),
    ("gb2312", "gb18030", "朱镕基"),
    ("gbk", "gb18030", "公司规定员工"),
    ("big5", "big5hkscs", "深水埗"),
    ("euc-jp", "euc_jis_2004", "日本語の文章①"),
    ("iso-2022-jp", "iso2022_jp", "日本語の文章"),
    ("iso-8859-1", "cp1252", "5 € “quoted”"),
    ("windows-1251", "cp1251", "Привет"),
    ("tis-620", "cp874", "สวัสดี"),
]


@pytest.mark.parametrize(("label", "codec", "text"), LEGACY_PAGES)
def test_a_page_is_read_by_the_label_that_it_declares(label: str, codec: str, text: str) -> None:
    """Labels mean what they mean to browsers: the encoding that has the most letters."""
    early = f"<meta charset={label}><p>{text} end".encode(codec)
    late = f"<p>{'x' * 2000}<p><meta content='text/html; charset={label}'>{text} end".encode(codec)
    assert lines_of(early, Format.HTML) == [f"{text} end"]
    assert lines_of(late, Format.HTML)[-1] == f"{text} end"
    quoted = f'<META http-equiv=x content="a; charset={label}"><p>{text}'.encode(codec)
    assert text_of(quoted, Format.HTML) == text


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"before \x81 \x8d after", "before \x81 \x8d after"),
        ("<?xml version='1.0' encoding='ISO-8859-2'?><p>Zaměstnanec".encode("iso-8859-2"), None),
        ("\ufeff<p>Zaměstnanec".encode("utf-16-le"), None),
        ("<meta charset=utf-16><p>Zaměstnanec".encode(), None),
        (b"<meta charset=shift_jis><p>a\x81 b \x82 c", "a\ufffd b \ufffd c"),
    ],
)
def test_a_page_is_read_as_in_browsers(content: bytes, text: str | None) -> None:
    assert text_of(content, Format.HTML) == (text or "Zaměstnanec")


@pytest.mark.parametrize(
    ("codec", "text"),
    [
        ("cp932", "日本語の文章です。今日は天気がいい。"),
        ("gb18030", "公司规定员工每年有十五天年假、需要提前两周申请。"),
        ("big5", "公司規定員工每年有十五天年假、需要提前兩週申請。"),
        ("cp949", "회사는 직원에게 매년 십오일의 휴가를 제공합니다."),
    ],
)
def test_a_page_that_declares_nothing_is_read_by_what_it_looks_like(codec: str, text: str) -> None:
    page = f"<html><head><title>t</title></head><body><p>{text}</p></body></html>"
    assert text_of(page.encode(codec), Format.HTML) == text


def test_one_broken_letter_does_not_turn_the_others_into_another_encoding() -> None:
    """A file of UTF-8 that was cut in the middle of a letter."""
    text = "Grüße, Äpfel, Öl über Österreich, süß und größer als je zuvor"
    assert text_of(text.encode() + "é".encode()[:1], Format.TEXT) == f"{text}\ufffd"
    assert text_of(f"<p>{text}".encode() + b"\xe2\x82", Format.HTML) == f"{text}\ufffd"


def test_xml_is_read_in_the_encoding_that_it_declares() -> None:
    text = '<?xml version="1.0" encoding="windows-1251"?><a>да</a>'
    assert text_of(text.encode("cp1251"), Format.TEXT) == text


@pytest.mark.parametrize(
    ("page", "lines"),
    [
        ("<table><tr><td>bolt</td><td>17</td></tr></table>", ["bolt 17"]),
        ("<select><option>crimson</option><option>azure</option></select>", ["crimson", "azure"]),
        ("<details><summary>sum</summary>rest</details>", ["sum", "rest"]),
        ("<table><caption>cap</caption><tr><td>a<td>b</table>", ["cap", "a b"]),
        ("<label>name</label><button>send</button>", ["name send"]),
        ("<fieldset><legend>leg</legend>rest</fieldset>", ["leg", "rest"]),
        ("<dl><dt>term<dd>meaning</dl>", ["term", "meaning"]),
        ("<p>a<aside>b</aside>c<figcaption>d</figcaption>", ["a", "b", "c", "d"]),
    ],
)
def test_texts_of_elements_beside_each_other_are_apart(page: str, lines: list[str]) -> None:
    assert lines_of(page.encode(), Format.HTML) == lines


@pytest.mark.parametrize(
    ("rows", "lines"),
    [
        (
            "<tr><th>name</th><th>weight</th></tr><tr><td>heron</td><td><p>2</p><p>kg</p></td></tr>",
            ["name: heron; weight: 2 kg"],
        ),
        (
            "<thead><tr><td></td><th>2020<th>2021<tbody><tr><th>DE<td>1<td>2",
            ["DE; 2020: 1; 2021: 2"],
        ),
        (
            "<tr><th>a<th>b<th>c<tr><td colspan=2>x<td>z<tr><td>1<td>2<td>3",
            ["a: x; c: z", "a: 1; b: 2; c: 3"],
        ),
        (
            "<tr><td><table><tr><th>a<th>b<tr><td>1<td>2</table><td>beside",
            ["a: 1; b: 2", "beside"],
        ),
        ("<tr><th>only<th>names", ["only; names"]),
    ],
)
def test_rows_of_a_page_s_table_repeat_the_names_of_their_columns(
    rows: str, lines: list[str]
) -> None:
    assert lines_of(f"<table>{rows}</table>".encode(), Format.HTML) == lines


@pytest.mark.parametrize(
    ("form", "content"),
    [
        (Format.TEXT, b""),
        (Format.TEXT, b" \n\t"),
        (Format.HTML, b"<script>x</script>"),
        (Format.HTML, b"<title>only a title</title>"),
        (Format.CSV, b",,\n"),
        (Format.DOCX, docx(paragraph())),
        (Format.JSONL, json.dumps({"text": " "}).encode()),
        (Format.TEXT, b"\xff\xfe\x00\xd8"),
    ],
)
def test_a_document_of_which_nothing_is_left_is_refused(form: Format, content: bytes) -> None:
    refused = read(content, form)
    assert isinstance(refused, Refusal)
    assert refused.why == "content: has no text"


def inserted(name: str, text: str) -> str:
    return f"<w:{name} w:id='1' w:author='a'>{run(text)}</w:{name}>"


def control(content: str) -> str:
    return f"<w:sdt><w:sdtPr/><w:sdtContent>{content}</w:sdtContent></w:sdt>"


def letters(name: str) -> str:
    return f"<w:r><w:{name}/></w:r>"


TEXT_BOX = f"<w:txbxContent>{paragraph(run('in a box'))}</w:txbxContent>"
BOX = (
    "<w:r><mc:AlternateContent><mc:Choice Requires='wps'><w:drawing><wps:txbx>"
    f"{TEXT_BOX}</wps:txbx></w:drawing></mc:Choice><mc:Fallback><w:pict><v:textbox>"
    f"{TEXT_BOX}</v:textbox></w:pict></mc:Fallback></mc:AlternateContent></w:r>"
)
FIELD = (
    "<w:r><w:fldChar w:fldCharType='begin'/></w:r><w:r><w:instrText>CODE</w:instrText></w:r>"
    f"<w:r><w:fldChar w:fldCharType='separate'/></w:r>{run('its value')}"
    "<w:r><w:fldChar w:fldCharType='end'/></w:r>"
)


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        (paragraph(run("a "), inserted("ins", "new"), run(" b")), ["a new b"]),
        (
            paragraph(
                run("a"),
                "<w:del w:id='1'><w:r><w:tab/><w:delText>old</w:delText></w:r></w:del>",
                run("b"),
            ),
            ["ab"],
        ),
        (paragraph(inserted("moveFrom", "left"), inserted("moveTo", "right")), ["right"]),
        (control(paragraph(run("a whole paragraph"))), ["a whole paragraph"]),
        (paragraph(run("Name: "), control(run("Ann"))), ["Name: Ann"]),
        (paragraph(f"<w:fldSimple w:instr='CODE'>{run('its value')}</w:fldSimple>"), ["its value"]),
        (paragraph(FIELD), ["its value"]),
        (paragraph(f"<w:smartTag w:element='place'>{run('Lisbon')}</w:smartTag>"), ["Lisbon"]),
        (paragraph(run("before"), BOX, run("after")), ["before", "in a box", "after"]),
        (table(("a", "b"), (table(("in", "ner")), "2")), ["a: in; ner; b: 2"]),
        (table(("a", "b"), ("1", "2")), ["a: 1; b: 2"]),
        (control(table(("a", "b"), ("1", "2"))), ["a: 1; b: 2"]),
        (
            table(("a", "b", "c"), ("x", "z")).replace(
                "<w:tc><w:p><w:pPr><w:tabs><w:tab/></w:tabs></w:pPr><w:r><w:t xml:space="
                '"preserve">x',
                "<w:tc><w:tcPr><w:gridSpan w:val='2'/></w:tcPr><w:p><w:r><w:t>x",
            ),
            ["a: x; c: z"],
        ),
        (paragraph(f"<w:hyperlink r:id='missing'>{run('a link')}</w:hyperlink>"), ["a link"]),
        (
            paragraph(run("a"), letters("tab"), run("b"), letters("br"), run("c"), letters("cr")),
            ["a\tb", "c"],
        ),
        (paragraph(run("well"), letters("noBreakHyphen"), run("known")), ["well-known"]),
        (paragraph("<m:oMath><m:r><m:t>E=mc</m:t></m:r></m:oMath>"), ["E=mc"]),
        (paragraph(run("日本語 &amp; ümläut &lt;x&gt;")), ["日本語 & ümläut <x>"]),
    ],
)
def test_a_word_document_is_read_as_word_shows_it_with_changes_accepted(
    body: str, lines: list[str]
) -> None:
    assert lines_of(docx(body), Format.DOCX) == lines


def test_headers_footers_and_notes_of_a_word_document_are_read_once() -> None:
    content = docx(
        paragraph(run("body")),
        footnotes=f"<w:footnote w:id='2'>{paragraph(run('a note'))}</w:footnote>",
        endnotes=f"<w:endnote w:id='2'>{paragraph(run('a last note'))}</w:endnote>",
        header=paragraph(run("ACME Handbook")),
        footer=paragraph(run("confidential")),
    )
    expected = ["body", "ACME Handbook", "a note", "a last note", "confidential"]
    assert lines_of(content, Format.DOCX) == expected


def test_no_entity_of_an_office_document_is_expanded() -> None:
    declared = '<!DOCTYPE d [<!ENTITY a "aaaa"><!ENTITY f SYSTEM "file:///etc/passwd">]><w:document'
    content = docx(paragraph(run("x&a;&f;y")))
    content = changed(content, "word/document.xml", b"<w:document", declared.encode())
    found = read(content, Format.DOCX)
    assert "aaaa" not in str(found)
    assert "root:" not in str(found)


def workbook(*rows: list[Any]) -> tuple[Workbook, Any]:
    book = Workbook()
    sheet = book.active
    assert sheet is not None
    for row in rows:
        sheet.append(row)
    return book, sheet


def saved(document: Any) -> bytes:
    written = io.BytesIO()
    document.save(written)
    return written.getvalue()


@pytest.mark.parametrize("stated", [b'<dimension ref="A1"/>', b'<dimension ref="A1:B2"/>', b""])
def test_what_a_sheet_says_of_its_size_is_not_believed(stated: bytes) -> None:
    content = saved(workbook(["when", "who", "what"], [1, "Ann", "x"], [2, "Bob", "y"])[0])
    content = changed(content, "xl/worksheets/sheet1.xml", rb"<dimension [^>]*/>", stated)
    rows = ["when: 1; who: Ann; what: x", "when: 2; who: Bob; what: y"]
    assert lines_of(content, Format.XLSX) == ["# Sheet", *rows]


def test_shares_in_a_sheet_are_read_as_they_are_shown() -> None:
    book, sheet = workbook(["who", "share"], ["Ann", 0.25], ["Bob", 0.125])
    sheet["B2"].number_format, sheet["B3"].number_format = "0%", "0.0%"
    lines = lines_of(saved(book), Format.XLSX)
    assert lines == ["# Sheet", "who: Ann; share: 25%", "who: Bob; share: 12.5%"]


def test_sheets_of_a_workbook_are_read_whatever_they_hold() -> None:
    book, sheet = workbook(["merged"], [], ["a", "b"])
    sheet.merge_cells("A1:B1")
    far = book.create_sheet("Far")
    far["C4"], far["D4"], far["C5"], far["D5"] = "k", "v", True, 2.5
    book.create_sheet("日本").append(["東京", "大阪"])
    found = lines_of(saved(book), Format.XLSX)
    assert found == [
        "# Sheet",
        "merged",
        "a; b",
        "# Far",
        "k: True; v: 2.5",
        "# 日本",
        "東京; 大阪",
    ]


def test_texts_in_the_cells_of_other_programs_are_read() -> None:
    at = datetime(2024, 2, 29, 9, 30)
    content = saved(workbook(["name", "day", "at"], ["@", date(2024, 2, 29), at])[0])
    inline = b'<c r="A2" t="inlineStr"><is><r><t>in</t></r><r><t>line</t></r></is></c>'
    content = changed(content, "xl/worksheets/sheet1.xml", rb'<c r="A2"[^>]*>.*?</c>', inline)
    (_, row) = lines_of(content, Format.XLSX)
    assert row == "name: inline; day: 2024-02-29; at: 2024-02-29 09:30:00"


def presentation() -> tuple[Any, Any]:
    made = Presentation()
    slide = made.slides.add_slide(made.slide_layouts[5])
    assert slide.shapes.title is not None
    slide.shapes.title.text = "Title"
    return made, slide


def test_text_in_groups_of_a_slide_is_read() -> None:
    made, slide = presentation()
    outer = slide.shapes.add_group_shape()
    outer.shapes.add_textbox(*[ONE_INCH] * 4).text_frame.text = "in a group"
    inner = outer.shapes.add_group_shape()
    inner.shapes.add_textbox(*[ONE_INCH] * 4).text_frame.text = "in a group of it"
    assert lines_of(saved(made), Format.PPTX) == ["Title", "in a group", "in a group of it"]


def test_a_cell_of_a_slide_s_table_may_span_columns() -> None:
    made, slide = presentation()
    grid = slide.shapes.add_table(2, 3, *[ONE_INCH] * 4).table
    for place, text in enumerate(("a", "b", "c", "x", "", "z")):
        grid.cell(place // 3, place % 3).text = text
    grid.cell(1, 0).merge(grid.cell(1, 1))
    assert lines_of(saved(made), Format.PPTX) == ["Title", "a: x; c: z"]


def test_charts_of_a_slide_are_read() -> None:
    made, slide = presentation()
    numbers: Any = CategoryChartData()  # type: ignore[no-untyped-call]  # of the library
    numbers.categories = ["East", "West"]
    numbers.add_series("Sales", (1.5, 2.5))
    kind = XL_CHART_TYPE.BAR_CLUSTERED
    chart = slide.shapes.add_chart(kind, *[ONE_INCH] * 4, numbers).chart
    chart.chart_title.text_frame.text = "Sales of herons"
    lines = lines_of(saved(made), Format.PPTX)
    assert lines == ["Title", "Sales of herons", "Sales", "East", "West", "1.5", "2.5"]


def test_slides_are_read_in_the_order_in_which_they_are_shown() -> None:
    made, _ = presentation()
    second = made.slides.add_slide(made.slide_layouts[1])
    second.shapes.title.text = "Second"
    second.placeholders[1].text = "one\ntwo\va\tb"
    order = made.slides._sldIdLst
    order.append(order[0])  # the first becomes the last
    assert lines_of(saved(made), Format.PPTX) == ["Second", "one", "two", "a\tb", "Title"]


def test_diagrams_of_a_slide_are_read() -> None:
    a = "http://schemas.openxmlformats.org/drawingml/2006/main"
    p = "http://schemas.openxmlformats.org/presentationml/2006/main"
    r = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    point = "<dgm:pt><dgm:t><a:p><a:r><a:t>{}</a:t></a:r></a:p></dgm:t></dgm:pt>"
    content = archive(
        {
            "_rels/.rels": relations(("officeDocument", "/ppt/presentation.xml")),
            "ppt/_rels/presentation.xml.rels": relations(("slide", "slides/slide1.xml")),
            "ppt/presentation.xml": f"<p:presentation xmlns:p='{p}' xmlns:r='{r}'>"
            "<p:sldIdLst><p:sldId id='256' r:id='r0'/></p:sldIdLst></p:presentation>",
            "ppt/slides/_rels/slide1.xml.rels": relations(("diagramData", "../diagrams/data1.xml")),
            "ppt/slides/slide1.xml": f"<p:sld xmlns:p='{p}' xmlns:a='{a}'><a:p><a:r><a:t>Steps"
            "</a:t></a:r></a:p></p:sld>",
            "ppt/diagrams/data1.xml": f"<dgm:d xmlns:dgm='urn:dgm' xmlns:a='{a}'>"
            f"{point.format('plan')}{point.format('build')}</dgm:d>",
        }
    )
    assert lines_of(content, Format.PPTX) == ["Steps", "plan", "build"]


def test_a_letter_that_a_pdf_has_in_halves_is_joined() -> None:
    mapped = pdf_with_font("xABy", {"A": "D835", "B": "DF0E"})
    assert text_of(mapped, Format.PDF) == "x\U0001d70ey"


def test_a_half_letter_costs_a_pdf_no_other_letter() -> None:
    text = text_of(pdf_with_font("xAy", {"A": "D835"}), Format.PDF)
    assert (text[0], text[-1]) == ("x", "y")


def test_other_letters_of_a_pdf_are_those_that_its_font_names() -> None:
    mapped = pdf_with_font("ABC", {"A": "00660069", "B": "65E5", "C": "D835DF0E"})
    assert text_of(mapped, Format.PDF) == "fi日\U0001d70e"


def protected(password: str) -> bytes:
    writer = PdfWriter(clone_from=io.BytesIO(pdf("for some eyes")))
    writer.encrypt(password, "the owner's", algorithm="RC4-128")
    return saved_pdf(writer)


def saved_pdf(writer: PdfWriter) -> bytes:
    written = io.BytesIO()
    writer.write(written)
    return written.getvalue()


def test_a_pdf_is_read_unless_it_has_a_password() -> None:
    """Many forbid to print or change them, which needs an encryption but no password to read."""
    assert text_of(protected(""), Format.PDF) == "for some eyes"
    refused = read(protected("secret"), Format.PDF)
    assert isinstance(refused, Refusal)
    assert refused.why == "content: is a PDF with a password"


def test_pages_of_a_pdf_follow_each_other_under_its_title() -> None:
    writer = PdfWriter()
    for words in ("one page", "another"):
        writer.append(io.BytesIO(pdf(words)))
    writer.pages[1].rotate(90)
    writer.add_metadata({"/Title": "Größe \U0001d70e"})
    document = read(saved_pdf(writer), Format.PDF)
    assert document == Document("doc", "one page\n\nanother", "Größe \U0001d70e")


def test_a_pdf_with_bytes_around_it_is_read() -> None:
    """As servers and mail programs leave them."""
    content = pdf("words")
    assert text_of(b"\r\n\r\n" + content + b"\n\0\0", Format.PDF) == "words"


def mail(**heads: str) -> EmailMessage:
    made = EmailMessage()
    for name, value in heads.items():
        made[name] = value
    return made


@pytest.mark.parametrize("transfer", ["quoted-printable", "base64", "8bit"])
def test_a_mail_is_read_decoded(transfer: str) -> None:
    made = mail(Subject="Grüße für Jürgen – 報告", From="Jörg <j@x.example>", To="a@b.example")
    made.set_content("Die Gebühr ist 5 €.\n", cte=transfer)
    document = read(made.as_bytes(), Format.EML)
    assert isinstance(document, Document)
    assert document.title == "Grüße für Jürgen – 報告"
    assert document.text.splitlines() == [
        *("Subject: Grüße für Jürgen – 報告", "From: Jörg <j@x.example>", "To: a@b.example"),
        *("", "Die Gebühr ist 5 €."),
    ]


@pytest.mark.parametrize(
    ("label", "codec", "text"),
    [
        ("iso-2022-jp", "iso2022_jp", "日本語の本文"),
        ("gb2312", "gb18030", "朱镕基"),
        ("windows-1252", "cp1252", "“5 €”"),
        ("unknown-8bit", "utf-8", "Gebühr"),
        ("iso-8859-1", "utf-8", "Gebühr"),  # as it comes where a program has rewritten the body
    ],
)
def test_a_mail_is_read_in_the_encoding_that_its_head_names(
    label: str, codec: str, text: str
) -> None:
    head = f"Subject: s\r\nContent-Type: text/plain; charset={label}\r\n\r\n".encode()
    assert lines_of(head + text.encode(codec), Format.EML) == ["Subject: s", text]


def test_a_mail_s_page_is_read_where_it_has_no_plain_text() -> None:
    made = mail(Subject="s")
    made.set_content("<p>Gebühr</p><table><tr><td>a</td><td>b</td></tr></table>", subtype="html")
    assert lines_of(made.as_bytes(), Format.EML) == ["Subject: s", "Gebühr", "a b"]
    both = mail(Subject="s")
    both.set_content("plain")
    both.add_alternative("<p>the page</p>", subtype="html")
    assert lines_of(both.as_bytes(), Format.EML) == ["Subject: s", "plain"]


def test_a_mail_names_what_is_attached_and_has_what_it_forwards() -> None:
    inner = mail(Subject="inner")
    inner.set_content("forwarded words")
    outer = mail(Subject="outer")
    outer.set_content("see below")
    outer.add_attachment(inner)
    outer.add_attachment(b"\0\1", maintype="application", subtype="pdf", filename="Gebühr.pdf")
    assert lines_of(outer.as_bytes(), Format.EML) == [
        *("Subject: outer", "see below", "Subject: inner", "forwarded words"),
        "Attachment: Gebühr.pdf",
    ]


def test_a_part_of_a_mail_that_is_no_text_costs_no_other() -> None:
    made = mail(Subject="s")
    made.set_content("words")
    made.add_attachment("x", filename="note.txt", disposition="inline")
    content = made.as_bytes().replace(b"\nx\n", b"\n\0\xff\x81odd\n")
    assert lines_of(content, Format.EML) == ["Subject: s", "words", "\ufffd\ufffdodd"]


def test_what_is_no_mail_is_refused_and_a_broken_head_harms_no_other() -> None:
    assert isinstance(read(b"no heads at all", Format.EML), Refusal)
    broken = b"Subject: ok\r\nFrom: =?x?q?=\xff?= <\r\nDate: never\r\n\r\nwords"
    lines = lines_of(broken, Format.EML)
    assert (lines[0], lines[-1]) == ("Subject: ok", "words")


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (f"name,note\nheron,{'y' * 200_000}", [f"name: heron; note: {'y' * 200_000}"]),
        ("name,city\rAnn,Bonn\rBob,Kiel", ["name: Ann; city: Bonn", "name: Bob; city: Kiel"]),
        (",name,city\n0,Ann,Bonn", ["0; name: Ann; city: Bonn"]),
        ("country,2020,2021\nDE,1,2", ["country: DE; 2020: 1; 2021: 2"]),
        ("Ann,1990\nBob,1985", ["Ann; 1990", "Bob; 1985"]),
        ("sep=;\na;b\n1;2,5", ["a: 1; b: 2,5"]),
        ("note\nHello, world, again\nbye", ["note", "Hello, world, again", "bye"]),
        ('"a,b,c";d\n1;2', ["a,b,c: 1; d: 2"]),
        ("name,city", ["name; city"]),
    ],
)
def test_tables_of_values_are_read_as_programs_write_them(content: str, lines: list[str]) -> None:
    assert lines_of(content.encode(), Format.CSV) == lines
