"""Names that tenants give to documents, and names as they are shown."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.core.errors import InvalidArgument
from tandem.index.names import MAX_NAME_BYTES, clean_name, shown

HOSTILE = {
    "empty": "",
    "blank": " \u3000 ",
    "nul": "a\0.md",
    "newline": "a\nb.md",
    "carriage return": "invoice.md\rx",
    "tab": "a\tb",
    "escape": "\x1b[2Ja.md",
    "one-byte CSI": "\x9b31ma.md",
    "title of a terminal": "\x1b]0;root\x07.md",
    "backspace": "good\b\b\b\bbad.md",
    "delete": "a\x7f.md",
    "right-to-left override": "\u202egpj.exe",
    "left-to-right embedding": "\u202aa.md",
    "isolate": "a\u2066b\u2069.md",
    "left-to-right mark": "a\u200e.md",
    "Arabic letter mark": "a\u061c.md",
    "zero-width space": "notes\u200b.md",
    "zero-width joiner": "notes\u200d.md",
    "byte-order mark": "\ufeffnotes.md",
    "soft hyphen": "no\u00adtes.md",
    "word joiner": "a\u2060b.md",
    "tags": "a\U000e0041\U000e0042.md",
    "Hangul filler": "\u3164",
    "braille blank": "a\u2800.md",
    "line separator": "a\u2028b.md",
    "paragraph separator": "a\u2029b.md",
    "private use": "a\ue000.md",
    "half a surrogate pair": "a\ud800.md",
    "slash": "notes/a.md",
    "absolute": "/etc/passwd",
    "backslash": "..\\a.md",
    "parent": "..",
    "here": " . ",
    "parent's file": "../a.md",
    "full-width slash": "notes\uff0fa.md",
    "one-dot leaders": "\u2024\u2024",
    "long": "a" * (MAX_NAME_BYTES + 1),
    "long in bytes": "é" * (MAX_NAME_BYTES // 2 + 1),
    "long once composed": "\u0958" * 67,  # which NFC takes apart
}


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_a_name_that_is_not_what_it_looks_like_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        clean_name(name)
    assert refused.value.field == "name"
    said = str(refused.value)
    assert shown(said) == said, "the refusal itself is safe to show"


@pytest.mark.parametrize(
    ("name", "cleaned"),
    [
        ("a.md", "a.md"),
        ("  My notes (2).md ", "My notes (2).md"),
        ("Re\u0301sume\u0301.md", "Résumé.md"),
        ("Résumé.md", "Résumé.md"),
        ("報告.html", "報告.html"),
        ("تقرير.md", "تقرير.md"),
        ("🦩.md", "🦩.md"),
        ("..hidden..", "..hidden.."),
        ("a:b#c?.md", "a:b#c?.md"),
        ("é" * (MAX_NAME_BYTES // 2), "é" * (MAX_NAME_BYTES // 2)),
    ],
)
def test_other_names_are_taken_trimmed_and_in_one_form(name: str, cleaned: str) -> None:
    assert clean_name(name) == cleaned


@given(st.text())
def test_a_clean_name_is_clean_and_what_is_shown_is_one_line_without_marks(text: str) -> None:
    assert not {unicodedata.category(each) for each in shown(text)} & {
        *("Cc", "Cf", "Co", "Cs", "Zl", "Zp")
    }
    assert len(shown(text)) == len(text)
    try:
        cleaned = clean_name(text)
    except InvalidArgument:
        return
    assert clean_name(cleaned) == cleaned == shown(cleaned)
    assert 0 < len(cleaned.encode()) <= MAX_NAME_BYTES
    assert "/" not in cleaned
    assert "\\" not in cleaned
