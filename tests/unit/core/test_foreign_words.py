"""Words of strangers, before they are shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.core.foreign_words import (
    MOST_CHARACTERS,
    cleaned,
    in_quotes,
    quoted,
    without_addresses,
)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("no room", "no room"),
        ("größer als 漢字", "größer als 漢字"),
        ("\x1b[31;1mred\x1b[0m", "red"),
        ("\x9b2Jcleared", "cleared"),
        ("\x1b]0;a title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\a link\x1b]8;;\x1b\\", "a link"),
        ("\x1b(Bset\x1bc", "set"),
        ("one\r\n\ttwo\0\0three", "one two three"),
        ("left\u202eright\u2066!\u200b", "left right !"),
        ("\u2028line\u2029", "line"),
        ("\udcff\ue000\ufeff", ""),
        ("", ""),
        ("\x1b", ""),
        ("\x1b[", ""),
    ],
)
def test_what_is_not_printable_goes(words: str, shown: str) -> None:
    assert cleaned(words) == shown


def test_long_words_end_with_an_ellipsis() -> None:
    assert cleaned("a" * MOST_CHARACTERS) == "a" * MOST_CHARACTERS
    assert cleaned("a" * (MOST_CHARACTERS + 1)) == "a" * (MOST_CHARACTERS - 1) + "…"
    assert cleaned("some words", 6) == "some…"


def test_a_quotation_says_whose_it_is_and_cannot_be_ended() -> None:
    assert quoted("the cloud at a:1", 'no "room"') == "the cloud at a:1 says: \"no 'room'\""
    assert quoted("the cloud at a:1", "\0") == "the cloud at a:1 gives no reason"
    assert in_quotes("\n") == ""


@given(st.text(max_size=600))
def test_whatever_is_said_is_one_short_printable_line(words: str) -> None:
    shown = cleaned(words)
    assert shown.isprintable()
    assert len(shown) <= MOST_CHARACTERS
    assert cleaned(shown) == shown


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ('the cloud at localhost:57010 says: "no"', 'the cloud says: "no"'),
        ('the cloud at [::1]:57010 says: "no"', 'the cloud says: "no"'),
        (
            "the call to the cloud at 127.0.0.1:5 ended with: x",
            "the call to the cloud ended with: x",
        ),
        ("the service at dns:///cloud.svc:50051 gives no reason", "the service gives no reason"),
        (
            "the cloud is lost: 127.0.0.1:1 cannot be reached: Connection refused",
            "the cloud is lost: a service behind this one cannot be reached: Connection refused",
        ),
        ("b:2 cannot be reached", "a service behind this one cannot be reached"),
        ("last error: ipv4:127.0.0.1:1: reset", "last error: an address: reset"),
        ("at the end, the cloud at a:1.", "at the end, the cloud."),
        ("the model llama3:8 is unknown", "the model llama3:8 is unknown"),
        ("a verdict at 17", "a verdict at 17"),
        ("http://hub.example:80 cannot be reached", "http://hub.example:80 cannot be reached"),
    ],
)
def test_callers_are_told_no_addresses(words: str, shown: str) -> None:
    assert without_addresses(words) == shown
