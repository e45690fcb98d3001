"""What a person sees while models load, and what a pipe does not."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from tandem.backends.model_source import ModelChoice
from tandem.commands.loading_line import loading_line
from tests.unit.cli.screen import Screen, Terminal

HUB = ModelChoice("org/model", "0" * 40)


@pytest.fixture
def folder(tmp_path: Path) -> ModelChoice:
    (tmp_path / "smollm2").mkdir()
    return ModelChoice(str(tmp_path / "smollm2"))


def test_a_terminal_shows_what_loads_until_it_is_there(
    folder: ModelChoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal(Screen(3, 60))
    monkeypatch.setattr(sys, "stderr", terminal)
    with loading_line(folder, HUB, folder) as loaded:
        assert terminal.getvalue() == "loading smollm2, org/model ..."
        loaded()
        assert terminal.getvalue().endswith("\r\x1b[K")
        before = terminal.getvalue()
    assert terminal.getvalue() == before


def test_the_line_is_gone_when_loading_fails(
    folder: ModelChoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal(Screen(3, 60))
    monkeypatch.setattr(sys, "stderr", terminal)
    with pytest.raises(OSError, match="broken"), loading_line(folder):
        raise OSError("broken")
    assert terminal.getvalue() == "loading smollm2 ...\r\x1b[K"


def test_what_is_no_terminal_gets_nothing(
    folder: ModelChoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    with loading_line(folder) as loaded:
        loaded()
    assert pipe.getvalue() == ""
