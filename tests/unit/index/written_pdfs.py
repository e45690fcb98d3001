"""PDF files with texts that are known."""

from __future__ import annotations

import io
from collections.abc import Sequence

from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject


def pdf(words: str) -> bytes:
    """A page with these words on it."""
    return placed_pdf([(20, 100, words)])


def placed_pdf(texts: Sequence[tuple[int, int, str]]) -> bytes:
    """A page with each text at its place, in this order in the file."""
    writer = PdfWriter()
    page = writer.add_blank_page(600, 800)
    content = DecodedStreamObject()
    shown = (f"BT /F1 10 Tf {x} {y} Td ({text}) Tj ET" for x, y, text in texts)
    content.set_data("\n".join(shown).encode())
    page[NameObject("/Contents")] = writer._add_object(content)
    font = DictionaryObject(
        {
            NameObject("/Type"): NameObject("/Font"),
            NameObject("/Subtype"): NameObject("/Type1"),
            NameObject("/BaseFont"): NameObject("/Helvetica"),
        }
    )
    fonts = DictionaryObject({NameObject("/F1"): font})
    page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    written = io.BytesIO()
    writer.write(written)
    return written.getvalue()
