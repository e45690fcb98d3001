"""Published figures made again: the list, and what counts as agreement."""

from __future__ import annotations

import pytest

from lab import reproduce
from lab.bench.harness.models import ROOT
from lab.bench.papers.paper_report import chosen_tables


def test_the_readme_has_every_claim() -> None:
    text = (ROOT / "lab" / "README.md").read_text(encoding="utf-8")
    listed = "\n".join(line.rsplit("|", 2)[0] for line in reproduce.markdown())
    assert listed in "\n".join(line.rsplit("|", 2)[0] for line in text.splitlines())


def test_a_formula_agrees_with_what_is_published(capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce.main(["dssd-table-1"]) == 0
    assert capsys.readouterr().out.count("agrees: ") == 24


def test_a_row_that_differs_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (table,) = chosen_tables(["dssd-table-1"])
    wrong = [(f"{row.labels}", number > 0) for number, row in enumerate(table.rows)]
    monkeypatch.setattr(reproduce, "reproduce_table", lambda table: iter(wrong))
    assert reproduce.main(["dssd-table-1"]) == 1
    assert capsys.readouterr().out.startswith("DIFFERS: ")
    assert reproduce.main(["no-such-claim"]) == 2
    assert "dssd-table-1" in capsys.readouterr().err


def test_a_row_whose_models_are_missing_says_which_command_brings_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (table,) = chosen_tables(["tslt-theorem-4-14"])
    monkeypatch.setattr(type(table), "ours", lambda *_: (None,) * len(table.figures))
    assert reproduce.main([table.key]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(table.rows)
    assert all(line.startswith("NO FIGURE: ") and "make real-pair" in line for line in lines)


def test_a_claim_s_figure_is_of_its_row_and_within_its_tolerance() -> None:
    claim = reproduce.CLAIMS["bytes"]
    rows = [{"preset": "dsd", claim.figure: 1}, {"preset": "dssd", claim.figure: 103}]
    assert claim.found(rows) == 103.0
    assert claim.holds(103.0)
    assert not claim.holds(110.0)
    with pytest.raises(LookupError, match="dssd"):
        claim.found(rows[:1])
