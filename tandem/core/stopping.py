"""The reasons for which a generation ends, and finding stop strings in text that arrives piece by
piece."""

from collections.abc import Sequence
from enum import StrEnum

from tandem.core.errors import InvalidArgument

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_STOP_TOKEN_IDS = 64


def check_stops(stops: Sequence[str]) -> None:
    """Raise InvalidArgument("stop") for too many, an empty one, or one too long."""
    if len(stops) > MAX_STOPS:
        raise InvalidArgument("stop", f"at most {MAX_STOPS} strings")
    if any(not 0 < len(stop) <= MAX_STOP_CHARACTERS for stop in stops):
        raise InvalidArgument("stop", f"each must have 1…{MAX_STOP_CHARACTERS} characters")


class FinishReason(StrEnum):
    """Reason why a generation ended, in the words of the HTTP interface if it has one."""

    STOP = "stop"
    """An end-of-sequence token or a stop string."""
    LENGTH = "length"
    """The token limit or the context length."""
    CANCELLED = "cancelled"
    ERROR = "error"


class StopStrings:
    """Incremental matcher that lets no part of a stop string out. Invariant: the text emitted and
    the match depend on the whole text only, not on how it was cut into pieces. The text ends before
    the stop string that is complete first; of several at once, the longest; or, if `included`,
    after it."""

    def __init__(self, stops: tuple[str, ...], included: bool = False) -> None:
        if not all(stops):
            raise InvalidArgument("stop", "has an empty string")
        self._stops = stops
        self._included = included
        self._held = ""
        self.matched = ""
        """The stop string that ended the text; empty before one did."""

    def push(self, text_delta: str, *, may_end: bool = True) -> tuple[str, bool]:
        """Take more text; return (text now safe to emit, whether a stop string is complete). One
        that is complete with this text counts only if the text `may_end` here; it may have begun
        where that could not be."""
        if self.matched:
            return "", True
        text = self._held + text_delta
        if may_end and (match := self._first_match(text, len(self._held))) is not None:
            end, start = match
            self._held = ""
            self.matched = text[start:end]
            return text[: end if self._included else start], True
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        safe = len(text) - keep
        self._held = text[safe:]
        return text[:safe], False

    def flush(self) -> str:
        """Return the text held back for a stop string that never became complete; ends the
        matching."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str, seen: int) -> tuple[int, int] | None:
        """Return where the first stop string that ends after the first `seen` letters ends, and
        where it starts."""
        positions = (
            (text.find(stop, max(0, seen - len(stop) + 1)), len(stop)) for stop in self._stops
        )
        ends = [(start + length, start) for start, length in positions if start >= 0]
        return min(ends) if ends else None


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest proper prefix of `stop` that ends `text`."""
    longest = min(len(stop) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
