"""Documents that tests read in this process."""

from __future__ import annotations

from tandem.index.extraction import Format, Refusal, extract
from tandem.index.records import Document


def read(content: bytes, form: Format, title: str = "") -> Document | Refusal:
    """The one document of a file, or why it is refused."""
    (found,) = extract(content, form, "doc", title)
    return found


def text_of(content: bytes, form: Format) -> str:
    document = read(content, form)
    assert isinstance(document, Document), document
    return document.text
