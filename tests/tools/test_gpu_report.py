"""The report on a GPU: what it says without one, and that it holds every section."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from tools.gpu_report import (
    Section,
    main,
    write_report,
)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "report.md"
    assert main(["--out", str(out)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("gpu-report: no CUDA device can be used (torch ")
    assert not out.exists()


def program(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", text)


def test_a_section_that_fails_is_in_the_report_and_does_not_end_it(tmp_path: Path) -> None:
    out = tmp_path / "report.md"
    bad = Section("tests", "Bad", program("import sys; print('```'); sys.exit('no device')"))
    good = Section("steps", "Good", program("print('all well')"))
    assert write_report(out, "cpu", [bad, good]) == ["Bad"]
    text = out.read_text()
    assert text.startswith("# Tandem ")
    assert "## Bad\n\nFAILED, exit code 1, " in text
    assert "no device" in text
    assert "## Good\n\npassed, " in text
    assert text.count("```") == 4, "output ends no fence"
