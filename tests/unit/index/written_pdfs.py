"""PDF files with texts that are known."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject


def pdf(words: str) -> bytes:
    """A page with these words on it."""
    return placed_pdf([(20, 100, words)])


def pdf_with_font(words: str, letters: Mapping[str, str]) -> bytes:
    """A page with these words, some of whose letters stand for others: UTF-16 in hex digits."""
    mapped = "".join(f"<{ord(one):02X}> <{code}> " for one, code in letters.items())
    table = DecodedStreamObject()
    table.set_data(
        b"/CIDInit /ProcSet findresource begin 12 dict begin begincmap"
        b" 1 begincodespacerange <00> <ff> endcodespacerange"
        + f" {len(letters)} beginbfchar {mapped} endbfchar endcmap end end".encode()
    )
    return placed_pdf([(20, 100, words)], table)


def placed_pdf(
    texts: Sequence[tuple[int, int, str]], unicode_table: DecodedStreamObject | None = None
) -> bytes:
    """A page with each text at its place, in this order in the file. `unicode_table`: which letters
    its codes stand for, where they are others than those of ASCII."""
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
    if unicode_table is not None:
        font[NameObject("/ToUnicode")] = writer._add_object(unicode_table)
    fonts = DictionaryObject({NameObject("/F1"): font})
    page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    written = io.BytesIO()
    writer.write(written)
    return written.getvalue()
