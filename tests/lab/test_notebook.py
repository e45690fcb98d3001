"""The notebook's tables that are made of kept rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab import notebook

REPORT = {
    "experiment": "bytes",
    "command": "main.py bytes --quick --seed 0 --json /tmp/bytes.json",
    "commit": "0123456789abcdef",
    "rows": [
        {
            "preset": "coupled",
            "variant": variant,
            "uplink_bytes_per_round": 1045.4,
            "uplink_bytes_per_round_max": 1047,
            "downlink_bytes_per_round": 37.96,
            "downlink_bytes_per_round_max": 39,
        }
        for variant in ("ids only", "of no table")
    ],
}
PAGE = "before\n\n<!-- rows: bytes -->\n\nold\n\n<!-- end of rows -->\n\nafter\n"


def test_the_notebook_s_tables_are_those_of_the_kept_rows() -> None:
    text = notebook.PAGE.read_text(encoding="utf-8")
    assert text.count("<!-- rows: ") == len(notebook.TABLES)
    assert notebook.with_rows(text) == text, "run 'python -m lab.notebook'"


def test_a_report_is_kept_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "RESULTS", tmp_path)
    monkeypatch.setattr(notebook, "PAGE", tmp_path / "page.md")
    (tmp_path / "page.md").write_text(PAGE)
    (tmp_path / "report.json").write_text(json.dumps(REPORT))
    notebook.main([str(tmp_path / "report.json")])
    lines = (tmp_path / "page.md").read_text().splitlines()
    assert "`tandem bench bytes --quick --seed 0`, commit 01234567:" in lines
    assert "| `coupled`, ids only | 1,045 (1,047) | 38 (39) |" in lines
    assert "old" not in lines
    assert lines[-1] == "after"
    assert len(json.loads((tmp_path / "bytes.json").read_text())["rows"]) == 1
    assert "/tmp" not in (tmp_path / "bytes.json").read_text()
