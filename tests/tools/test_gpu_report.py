"""The report on a GPU: what it says without one, and that it holds every section."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from tools.gpu_report import (
    LINES_KEPT,
    Section,
    _parser,
    facts,
    main,
    run_section,
    sections,
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


def test_the_last_lines_of_a_long_section_are_kept() -> None:
    text, exit_code = run_section(
        Section("steps", "Long", program("for n in range(900): print('line', n)"))
    )
    assert exit_code == 0
    assert f"[{900 - LINES_KEPT} lines before these]" in text
    assert "line 899" in text
    assert "line 9\n" not in text


def test_the_facts_name_the_machine() -> None:
    table = facts("cpu")
    for fact in (torch.__version__, "| commit |", "| device | cpu |", "| driver |"):
        assert fact in table


def test_a_machine_without_vllm_is_compared_with_the_others(tmp_path: Path) -> None:
    options = ["--device", "cpu", "--quick", "--vllm"]
    here = sections(_parser().parse_args([*options, str(tmp_path / "python")]))
    assert [section.key for section in here] == ["tests", "steps", "peers"]
    assert "--vllm" not in here[-1].command
    everywhere = sections(_parser().parse_args([*options, sys.executable]))
    assert everywhere[-1].command[-2:] == ("--vllm", sys.executable)
    assert "--quick" in everywhere[-1].command
    (steps,) = sections(_parser().parse_args(["--only", "steps"]))
    assert steps.command[-2:] == ("--device", "cuda")
