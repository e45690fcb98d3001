"""Which line of a service's log is shown where it ended unasked."""

from __future__ import annotations

import pytest

from tandem.suite.child_process import last_complaint

SERVING = '{"time": "…", "level": "info", "event": "serving"}'
FULL = '{"time": "…", "level": "error", "event": "no room"}'


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        ([], ""),
        ([SERVING], ""),
        ([SERVING, SERVING.replace("info", "debug")], ""),
        ([FULL, SERVING, ""], FULL),
        ([SERVING, "MemoryError", ""], "MemoryError"),
        ([SERVING, FULL.replace("error", "warning")], FULL.replace("error", "warning")),
    ],
)
def test_it_is_the_last_that_may_say_why(lines: list[str], shown: str) -> None:
    assert last_complaint("\n".join(lines)) == shown
