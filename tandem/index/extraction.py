"""Documents out of files: plain text, Markdown, HTML, PDF, JSON lines, tables, office documents.

Invariant: a file that is not what it says, or is too large, is an InvalidArgument that says so; in
JSON lines only the line at fault is refused. Whoever's bytes these are, nothing of them is run or
fetched. All but PDF take a time that grows no faster than the file. What a PDF takes nobody knows
before, and the library that reads HTML is C; so `extractor` reads both in a process that can be
killed.
"""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from tandem.core.errors import InvalidArgument
from tandem.core.extras import install_command
from tandem.index.office import csv_text, docx_text, pptx_text, xlsx_text
from tandem.index.pdf_columns import TextPlaces, by_columns
from tandem.index.records import MAX_TITLE_LENGTH, Document

if TYPE_CHECKING:
    from pypdf import PageObject

MAX_DOCUMENT_BYTES = 16 * 2**20
"""Of a file as it comes, or of one line of JSON lines."""
MAX_TEXT_LENGTH = 16 * 2**20
"""Letters of what was extracted; a small PDF can hold very much."""
MAX_HTML_DEPTH = 1000
"""An end tag is sought among all elements that are open: their number is what keeps time linear.
Browsers stop at 512."""
HTML_PIECE_BYTES = 2**14
"""What is parsed before the depth is looked at again."""
DECLARATION_BYTES = 1024
"""How far into a page its encoding may be declared, as HTML has it."""


DETECTED_BYTES = 2**14
"""Around the first byte that is not UTF-8: where an encoding is looked for, which takes time."""
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16's, with which it begins
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


class Format(StrEnum):
    TEXT = "text"
    MARKDOWN = "markdown"
    HTML = "html"
    PDF = "pdf"
    JSONL = "jsonl"
    CSV = "csv"
    DOCX = "docx"
    XLSX = "xlsx"
    PPTX = "pptx"


_TEXT_SUFFIXES = """
    .txt .text .rst .log .adoc .org .tex .srt .vtt .eml
    .json .yaml .yml .toml .ini .cfg .conf .xml .sql .graphql .proto .tf
    .py .pyi .js .mjs .jsx .ts .tsx .css .scss .java .kt .scala .go .rs .swift .c .h .cc .cpp .hpp
    .cs .m .rb .php .pl .lua .r .jl .hs .ml .ex .erl .clj .dart .sh .bash .zsh .fish .ps1 .bat
"""
FORMAT_OF_SUFFIX = {
    **dict.fromkeys(_TEXT_SUFFIXES.split(), Format.TEXT),
    **dict.fromkeys((".md", ".markdown"), Format.MARKDOWN),
    **dict.fromkeys((".html", ".htm", ".xhtml"), Format.HTML),
    ".pdf": Format.PDF,
    **dict.fromkeys((".jsonl", ".ndjson"), Format.JSONL),
    **dict.fromkeys((".csv", ".tsv"), Format.CSV),
    **dict.fromkeys((".docx", ".docm"), Format.DOCX),
    **dict.fromkeys((".xlsx", ".xlsm"), Format.XLSX),
    **dict.fromkeys((".pptx", ".pptm"), Format.PPTX),
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A document that cannot be taken, and why."""

    id: str
    why: str


def format_of(name: str) -> Format | None:
    """Return the format that a file's suffix stands for; None for an unknown suffix."""
    return FORMAT_OF_SUFFIX.get(PurePath(name).suffix.lower())


def extract(
    content: bytes, form: Format, document_id: str, title: str = ""
) -> Iterator[Document | Refusal]:
    """Yield the documents in `content`, or refusals: several in JSON lines, one in any other
    format. A JSON line is an object with `text`, and perhaps `id` and `title`; its document is
    called `document_id#id`, or by the line's number where it has no id."""
    if form is Format.JSONL:
        for number, line in json_lines(content):
            yield json_line(line, document_id, number)
        return
    try:
        yield _extract_one(content, form, document_id, title)
    except InvalidArgument as error:
        yield Refusal(document_id, str(error))
    except ImportError as error:
        extra = "office" if form in (Format.DOCX, Format.XLSX, Format.PPTX) else "documents"
        why = f"content: {form} needs a package ({error}): {install_command(extra)}"
        yield Refusal(document_id, why)


def _extract_one(content: bytes, form: Format, document_id: str, title: str) -> Document:
    check_size(len(content))
    match form:
        case Format.HTML:
            heading, text = _from_html(content)
        case Format.PDF:
            heading, text = _from_pdf(content)
            if not text.strip():  # which nobody would ever find
                raise InvalidArgument("content", "is a PDF without text: its pages are pictures")
        case Format.DOCX:
            heading, text = docx_text(content)
        case Format.XLSX:
            heading, text = xlsx_text(content)
        case Format.PPTX:
            heading, text = pptx_text(content)
        case Format.CSV:
            heading, text = "", csv_text(_decoded(content))
        case Format.MARKDOWN:
            text = _decoded(content)
            heading = _first_heading(text)
        case _:
            heading = ""
            text = _decoded(content)
    document = Document(document_id, _tidy(text), (title or heading).strip()[:MAX_TITLE_LENGTH])
    document.validate()
    return document


def check_size(size: int) -> None:
    """Raise InvalidArgument if `size`, in bytes, is above the limit."""
    if size > MAX_DOCUMENT_BYTES:
        raise InvalidArgument("content", f"{size} bytes; the maximum is {MAX_DOCUMENT_BYTES}")


def json_lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Return an iterator over the lines that are not empty, with their numbers."""
    lines = enumerate(content.split(b"\n"), 1)
    return ((number, line) for number, line in lines if line.strip())


def json_line(line: bytes, document_id: str, number: int) -> Document | Refusal:
    """Return the document in one line, or the refusal of it."""
    place = f"{document_id}#{number}"
    try:
        check_size(len(line))
        try:
            fields: Any = json.loads(_decoded(line))
        except (ValueError, RecursionError) as error:
            raise InvalidArgument("content", f"is not JSON: {error}") from error
        if not isinstance(fields, dict) or not isinstance(fields.get("text"), str):
            raise InvalidArgument("content", 'must be an object with "text"')
        own_id = fields.get("id")
        title = fields.get("title")
        if isinstance(own_id, str | int) and not isinstance(own_id, bool):
            place = f"{document_id}#{own_id}"
        shown = title.strip()[:MAX_TITLE_LENGTH] if isinstance(title, str) else ""
        document = Document(place, _tidy(fields["text"]), shown)
        document.validate()
    except InvalidArgument as error:
        return Refusal(place, str(error))
    return document


def is_utf8(content: bytes) -> bool:
    """Return whether `content` is UTF-8, so that its encoding need not be guessed."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _decoded(content: bytes) -> str:
    """Decode text in UTF-8, in UTF-16 or UTF-32 that begins with a byte order mark, or in the
    encoding that its bytes suggest."""
    for mark, encoding in _MARKS.items():
        if content.startswith(mark):
            try:
                return content.decode(encoding)
            except UnicodeDecodeError as error:
                why = f"begins as {encoding} but is none: {error.reason} at {error.start}"
                raise InvalidArgument("content", why) from error
    if b"\0" in content:
        raise InvalidArgument("content", f"is not text: a zero byte at {content.index(0)}")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        sample = content[max(0, error.start - DETECTED_BYTES // 2) :][:DETECTED_BYTES]
        if (likely := _likely_encoding(sample)) is not None:
            with suppress(UnicodeDecodeError):
                return content.decode(likely)
        why = f"is text of no known encoding: byte {content[error.start]:#04x} at {error.start}"
        raise InvalidArgument("content", why) from error


def _likely_encoding(sample: bytes) -> str | None:
    """Guess an encoding by what the text would look like; return None for bytes that look like no
    text."""
    from charset_normalizer import from_bytes

    matches = list(from_bytes(sample))
    if not matches:
        return None
    # The likeliest first; of those that are as likely, as is common for a few words, the encoding
    # that most such files have.
    best = matches[0]
    as_likely = [m for m in matches if (m.chaos, m.coherence) == (best.chaos, best.coherence)]
    if any("cp1252" in (match.encoding, *match.could_be_from_charset) for match in as_likely):
        return "cp1252"
    return str(best.encoding)


def _first_heading(text: str) -> str:
    """Return the first heading of a Markdown text, or an empty string."""
    for line in text.splitlines():
        if line.startswith(("# ", "#\t")) and (heading := line[1:].strip().rstrip("#").rstrip()):
            return heading
    return ""


def _from_html(content: bytes) -> tuple[str, str]:
    """Return (title, text) of a page: what a reader sees, one line per block."""
    from lxml import etree

    if b"\0" in content:
        raise InvalidArgument("content", f"is not HTML: a zero byte at {content.index(0)}")
    if not content:  # which the parser calls an error
        return "", ""
    page = _Page()
    parser = etree.HTMLParser(
        target=page,
        encoding=_html_encoding(content),
        huge_tree=True,  # no tree is built: the limits of one would only cut long texts off
        no_network=True,
        remove_comments=True,
        remove_pis=True,
    )
    try:
        for start in range(0, len(content), HTML_PIECE_BYTES):
            parser.feed(content[start : start + HTML_PIECE_BYTES])
        parser.close()
    except etree.LxmlError as error:
        raise InvalidArgument("content", f"is not readable HTML: {error}") from error
    return " ".join(page.title), re.sub(r"[^\S\n]+", " ", "".join(page.text))


def _html_encoding(content: bytes) -> str | None:
    """Return a page's encoding; None leaves it to what the page declares. Content that reads as
    UTF-8 is UTF-8, whatever it declares; without a declaration it is windows-1252, as in
    browsers."""
    if content.startswith(codecs.BOM_UTF8):
        return "utf-8"
    try:
        content.decode()
    except UnicodeDecodeError:
        head = content[:DECLARATION_BYTES].lower()
        return None if b"charset" in head or b"encoding" in head else "windows-1252"
    return None if content.isascii() else "utf-8"


class _Page:
    """Told of tags and text by the parser, which closes what a page leaves open."""

    def __init__(self) -> None:
        self.title: list[str] = []
        """Words of the first title."""
        self.text: list[str] = []
        self._depth = 0
        self._hidden_below: int | None = None
        """The depth of the outermost element whose text is not shown."""
        self._in_title = self._had_title = False

    def start(self, tag: str, attributes: object) -> None:
        self._depth += 1
        if self._depth > MAX_HTML_DEPTH:
            why = f"more than {MAX_HTML_DEPTH} HTML elements are nested"
            raise InvalidArgument("content", why)
        if self._hidden_below is not None:
            return
        if tag == "title" and not self._had_title:
            self._in_title = self._had_title = True
            self._hidden_below = self._depth
        elif tag in _HIDDEN:
            self._hidden_below = self._depth
        elif tag in _BLOCKS:
            self._end_line()

    def end(self, tag: str) -> None:
        if self._hidden_below == self._depth:
            self._hidden_below = None
            self._in_title = False
        elif self._hidden_below is None and tag in _BLOCKS:
            self._end_line()
        self._depth -= 1

    def data(self, text: str) -> None:
        if self._hidden_below is None:
            self.text.append(text)
        elif self._in_title and (words := text.strip()):
            self.title.append(words)

    def _end_line(self) -> None:
        if not self.text or self.text[-1] != "\n\n":
            self.text.append("\n\n")

    def close(self) -> None:
        """Do nothing: the parser requires this method."""


_HIDDEN = frozenset(("script", "style", "template", "noscript"))
_BLOCKS = frozenset(
    (
        *("address", "article", "blockquote", "br", "dd", "div", "dl", "dt", "figure", "footer"),
        *("form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol"),
        *("p", "pre", "section", "table", "tr", "ul"),
    )
)


_PYTHON_ERRORS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError),
    *(OSError, RecursionError, TypeError, ValueError),
)
"""What pypdf lets through besides its own, for files that are broken or made to be."""


def _from_pdf(content: bytes) -> tuple[str, str]:
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    pages: list[str] = []
    length = 0
    try:
        reader = PdfReader(io.BytesIO(content))
        if reader.is_encrypted and not reader.decrypt(""):
            raise InvalidArgument("content", "is a PDF with a password")
        for page in reader.pages:
            pages.append(_page_text(page))
            length += len(pages[-1])
            if length > MAX_TEXT_LENGTH:
                break
        title = str((reader.metadata and reader.metadata.title) or "")
    except InvalidArgument:
        raise
    except (PyPdfError, *_PYTHON_ERRORS) as error:
        raise InvalidArgument("content", f"is not a readable PDF: {error}") from error
    return title, "\n\n".join(pages)


def _page_text(page: PageObject) -> str:
    """Return a page's text in the order of the file; columns whose lines alternate there are put
    one after the other."""
    from pypdf.errors import PyPdfError

    places = TextPlaces(float(page.mediabox.width))
    text = page.extract_text(visitor_operand_before=places.note)
    if not places.may_be_columns:
        return text
    try:
        layout = page.extract_text(extraction_mode="layout")
    except (PyPdfError, *_PYTHON_ERRORS):  # what it cannot lay out it may read all the same
        return text
    return by_columns(layout, text)


def _tidy(text: str) -> str:
    """Return the text without long runs of blanks; indentation is kept, for code. Raises
    InvalidArgument for a text that is too long."""
    if len(text) > MAX_TEXT_LENGTH:
        why = f"{len(text)} characters of text; the maximum is {MAX_TEXT_LENGTH}"
        raise InvalidArgument("content", why)
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    text = "\n".join([line.rstrip() for line in lines])  # a pattern reads each run from each blank
    text = re.sub(r"\n{3,}", "\n\n", text)
    return re.sub(r"[^\S\n]{17,}", " " * 16, text).strip()
