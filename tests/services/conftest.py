"""Paced engines sleep for all of a pass, and wake less often to see whether it was cancelled:
to be exact to parts of a millisecond is for measurements."""

from __future__ import annotations

import pytest

from tandem.testing import paced


@pytest.fixture(autouse=True)
def passes_that_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paced, "_SPIN_S", 0.0)
    monkeypatch.setattr(paced, "_NAP_S", 5e-3)
