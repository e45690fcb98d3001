"""Documents out of files: plain text, Markdown, HTML, PDF, JSON lines, tables, office documents,
mails.

Invariant: a file that is not what it says, is too large, or has no text, is an InvalidArgument that
says so; in JSON lines only the line at fault is refused. Whoever's bytes these are, nothing of them
is run or fetched. All but PDF take a time that grows no faster than the file. What a PDF takes
nobody knows before, and libraries that read files are C; so `extractor` reads them in a process
that can be killed.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath
from typing import Any

from tandem.core.errors import InvalidArgument
from tandem.core.extras import install_command
from tandem.index.decoding import decoded_page, decoded_text
from tandem.index.mail_text import mail_text
from tandem.index.names import shown
from tandem.index.office import docx_text, pptx_text, xlsx_text
from tandem.index.page_text import page_text
from tandem.index.records import MAX_TITLE_LENGTH, Document
from tandem.index.tables import csv_text

MAX_DOCUMENT_BYTES = 16 * 2**20
"""Of a file as it comes, or of one line of JSON lines."""
MAX_TEXT_LENGTH = 16 * 2**20
"""Letters of what was extracted; a small PDF can hold very much."""


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
    EML = "eml"


_TEXT_SUFFIXES = """
    .txt .text .rst .log .adoc .org .tex .srt .vtt
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
    ".eml": Format.EML,
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A document that cannot be taken, and why."""

    id: str
    why: str

    def line(self) -> str:
        """Return a line for a person; whoever wrote the document chose its name."""
        return f"passed over {shown(self.id)}: {self.why}"


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
        why = f"content: {form} needs a package ({error}): {install_command('documents')}"
        yield Refusal(document_id, why)


def _extract_one(content: bytes, form: Format, document_id: str, title: str) -> Document:
    check_size(len(content))
    match form:
        case Format.HTML:
            heading, text = page_text(decoded_page(content))
        case Format.PDF:
            heading, text = _from_pdf(content)
        case Format.DOCX:
            heading, text = docx_text(content)
        case Format.XLSX:
            heading, text = xlsx_text(content)
        case Format.PPTX:
            heading, text = pptx_text(content)
        case Format.EML:
            heading, text = mail_text(content)
        case Format.CSV:
            heading, text = "", csv_text(decoded_text(content))
        case Format.MARKDOWN:
            text = decoded_text(content)
            heading = _first_heading(text)
        case _:
            heading = ""
            text = decoded_text(content)
    text, shown = _joined(_tidy(text)), _joined(title or heading).strip()[:MAX_TITLE_LENGTH]
    if not text.strip("\ufffd\n "):  # which nobody would ever find
        pictures = "is a PDF without text: its pages are pictures"
        raise InvalidArgument("content", pictures if form is Format.PDF else "has no text")
    document = Document(document_id, text, shown)
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
            fields: Any = json.loads(decoded_text(line))
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
        if not document.text:
            raise InvalidArgument("content", "has no text")
        document.validate()
    except InvalidArgument as error:
        return Refusal(place, str(error))
    return document


def _first_heading(text: str) -> str:
    """Return the first heading of a Markdown text, or an empty string."""
    for line in text.splitlines():
        if line.startswith(("# ", "#\t")) and (heading := line[1:].strip().rstrip("#").rstrip()):
            return heading
    return ""


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
            pages.append(page.extract_text())
            length += len(pages[-1])
            if length > MAX_TEXT_LENGTH:
                break
        title = str((reader.metadata and reader.metadata.title) or "")
    except InvalidArgument:
        raise
    except (PyPdfError, *_PYTHON_ERRORS) as error:
        raise InvalidArgument("content", f"is not a readable PDF: {error}") from error
    return title, "\n\n".join(pages)


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


def _joined(text: str) -> str:
    """Return the text with the halves of letters joined that a file has apart; a half without its
    other becomes U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
