"""The file of keys of a running service. Invariants: what a well-formed line says counts from the
next call on, whatever the other lines are; a malformed line lets nobody in, at no time; a file that
cannot be read lets nobody in from `UNREADABLE_S` on, since nobody knows who has been taken out of
it. The content of a line is never logged: it may hold a key by mistake."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tandem.net.access_keys import KeyLines, KeyRing, read_lines
from tandem.net.reloaded import BadFile, Reloaded, read_file
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

UNREADABLE_S = 300.0
"""How long the keys last read stay in force while the file is missing or cannot be read: long
enough for a volume to be mounted anew or a file to be brought again, and for an alert to be heard;
short enough that no key which was taken back lives on with the fault."""


class CurrentKeys(Protocol):
    """Source of the currently known keys."""

    def current(self) -> KeyRing:
        """Return the keys that are valid now. It is called for every call."""


@dataclass(frozen=True, slots=True)
class KeysFileState:
    """Problems of a keys file, if it has any."""

    malformed_lines: tuple[int, ...] = ()
    """Their numbers, from 1."""
    unreadable_s: float = 0.0
    """For how long it could not be read; 0 for a file that can be."""

    @property
    def closed(self) -> bool:
        """True if no key is accepted any more."""
        return self.unreadable_s >= UNREADABLE_S

    @property
    def warning(self) -> str:
        """A warning for the operator, without content or path; empty where there is nothing."""
        if self.unreadable_s and self.closed:
            return f"the keys file has been unreadable for {UNREADABLE_S:g} s: no key is accepted"
        if self.unreadable_s:
            return "the keys file cannot be read: the last known keys are still used"
        if self.malformed_lines:
            return f"malformed lines of the keys file are ignored: {_numbers(self.malformed_lines)}"
        return ""


class KeysFile:
    """The keys in the file at `path`; may be used on any thread."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the file at `path`. Raises BadFile for one that cannot be read, or that has a
        malformed line, which it names: at the start somebody is there to mend it. For `clock` see
        `Reloaded`."""
        self._path = path
        self._closed = False
        self._lines = Reloaded((path,), self._read, clock)
        if malformed := self._lines.current().malformed:
            raise BadFile(path, malformed[0].why)

    def current(self) -> KeyRing:
        """Return the keys known now; none once the file has been unreadable for `UNREADABLE_S`."""
        lines, state = self._look()
        return KeyRing() if state.closed else lines.ring

    def state(self) -> KeysFileState:
        return self._look()[1]

    def _look(self) -> tuple[KeyLines, KeysFileState]:
        lines, failure = self._lines.current_and_failure()
        numbers = tuple(line.number for line in lines.malformed)
        # A failure of this moment is one, too.
        unreadable_s = 0.0 if failure is None else max(failure.for_s, 1e-3)
        state = KeysFileState(numbers, unreadable_s)
        if state.closed and not self._closed:
            log.error("no key is accepted: the keys file cannot be read", file=str(self._path))
        self._closed = state.closed
        return lines, state

    def _read(self) -> KeyLines:
        # A line that is no text is a malformed one; with these bytes in it none is well-formed.
        lines = read_lines(read_file(self._path).decode(errors="surrogateescape"))
        if lines.malformed:
            numbers = [line.number for line in lines.malformed]
            log.warning("malformed lines of the keys file", file=str(self._path), lines=numbers)
        return lines


def _numbers(lines: tuple[int, ...], most: int = 8) -> str:
    """Return the first `most` of them."""
    more = f" and {len(lines) - most} more" if len(lines) > most else ""
    return ", ".join(map(str, lines[:most])) + more
