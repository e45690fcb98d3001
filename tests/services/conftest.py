"""Paced engines sleep for all of a pass: to spin for its last part is for measurements."""

from __future__ import annotations

import pytest

from tandem.testing import paced


@pytest.fixture(autouse=True)
def passes_that_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paced, "_SPIN_S", 0.0)
