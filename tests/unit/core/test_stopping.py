"""Stop strings: nothing of a stop string gets out, nothing else is lost, however text is cut."""

import random

import pytest

from tandem.core.stopping import StopStrings

WORDS = (" one", " two", " three", " four")


def read(stops: tuple[str, ...], pieces: list[str]) -> tuple[str, bool]:
    matcher = StopStrings(stops)
    emitted, matched = "", False
    for piece in pieces:
        text, matched = matcher.push(piece)
        emitted += text
    return emitted + matcher.flush(), matched


def reference(stops: tuple[str, ...], text: str) -> tuple[str, bool]:
    """Character by character: cut before the longest stop string that is complete first."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


@pytest.mark.parametrize("letters", ["ab", "abc"])
def test_the_result_does_not_depend_on_the_cuts(letters: str) -> None:
    for seed in range(1000):
        check_random_cuts(random.Random(seed), letters)


def check_random_cuts(source: random.Random, letters: str) -> None:
    stops = tuple(
        "".join(source.choices(letters, k=source.randint(1, 4)))
        for _ in range(source.randint(0, 3))
    )
    text = "".join(source.choices(letters, k=source.randint(0, 20)))
    pieces = []
    rest = text
    while rest:
        size = source.randint(0, 8)
        pieces.append(rest[:size])
        rest = rest[size:]
    assert read(stops, pieces) == reference(stops, text)


@pytest.mark.parametrize("pieces", [["xaba"], ["xa", "ba"], list("xaba")])
def test_the_stop_string_complete_first_wins(pieces: list[str]) -> None:
    assert read(("aba", "b"), pieces) == ("xa", True)
    assert read(("ab", "b"), pieces) == ("x", True)


@pytest.mark.parametrize("pieces", [["xENDy"], ["xE", "NDy"], list("xENDy")])
def test_the_text_may_end_with_the_stop_string(pieces: list[str]) -> None:
    matcher = StopStrings(("END",), included=True)
    assert "".join(matcher.push(piece)[0] for piece in pieces) == "xEND"


def test_a_stop_string_may_begin_where_the_text_may_not_end() -> None:
    matcher = StopStrings((" two three",))
    pushed = [matcher.push(piece, may_end=n > 2) for n, piece in enumerate(WORDS, 1)]
    assert pushed == [(" one", False), ("", False), ("", True), ("", True)]
    early = StopStrings((" two",))
    pushed = [early.push(piece, may_end=n > 2) for n, piece in enumerate(WORDS, 1)]
    assert pushed == [(" one", False), (" two", False), (" three", False), (" four", False)]


def test_where_the_text_may_not_end_at_first() -> None:
    """Against every way to cut: what is complete after a piece where the text may end counts."""
    for seed in range(1000):
        source = random.Random(seed)
        stops = tuple(
            "".join(source.choices("ab", k=source.randint(1, 4)))
            for _ in range(source.randint(1, 3))
        )
        pieces = ["".join(source.choices("ab", k=source.randint(0, 3))) for _ in range(8)]
        least = source.randint(0, 8)
        matcher = StopStrings(stops)
        text = "".join(
            matcher.push(piece, may_end=number > least)[0] for number, piece in enumerate(pieces, 1)
        )
        begin = len("".join(pieces[:least]))
        whole = "".join(pieces)
        found = [
            (end, -len(stop))
            for end in range(begin + 1, len(whole) + 1)
            for stop in stops
            if whole[:end].endswith(stop)
        ]
        end, length = min(found, default=(len(whole), 0))
        assert text + matcher.flush() == whole[: end + length]


def test_a_possible_beginning_is_held_back_and_then_released() -> None:
    matcher = StopStrings(("\n\nUser:",))
    assert matcher.push("yes\n") == ("yes", False)
    assert matcher.push("\nUs") == ("", False)
    assert matcher.push("ed") == ("\n\nUsed", False)
    assert matcher.push("\n") == ("", False)
    assert matcher.flush() == "\n"
    assert matcher.flush() == ""
