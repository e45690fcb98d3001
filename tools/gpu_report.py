"""One Markdown file about Tandem on this machine's GPU: `python -m tools.gpu_report`.

Runs every CUDA test, step times of both models, and the comparison with other software; writes what
they print, how they ended, and on what machine. Each section is in the file as soon as it has
ended, so that an interrupted run is worth sending, too. Exit code 1 where a section failed, or
there is no such device.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.machine import this_machine
from tandem.core.version import __version__
from tools.release_check import REPOSITORY

VLLM_PYTHON = REPOSITORY / ".venv-vllm" / "bin" / "python"
LINES_KEPT = 200
"""Of each section, the last ones: a failed test prints more."""
REAL_PAIR = (
    REPOSITORY / "models" / "real" / "smollm2-draft",
    REPOSITORY / "models" / "real" / "smollm2",
)


@dataclass(frozen=True, slots=True)
class Section:
    """A command whose output is a part of the report. `key`: how `--only` calls it."""

    key: str
    title: str
    command: tuple[str, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    options = _parser().parse_args(arguments)
    if (missing := missing_device(options.device)) is not None:
        print(f"gpu-report: {missing}", file=sys.stderr)
        return 1
    failed = write_report(options.out, options.device, sections(options))
    print(f"gpu-report: wrote {options.out}; please attach it to an issue, also if tests failed")
    for title in failed:
        print(f"gpu-report: failed: {title}", file=sys.stderr)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpu-report", description="Report on this machine's GPU.")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu to try the report")
    parser.add_argument("--quick", action="store_true", help="short measurements, in minutes")
    parser.add_argument("--out", type=Path, default=Path("gpu-report.md"))
    parser.add_argument("--vllm", type=Path, default=VLLM_PYTHON, help="a Python that has vLLM")
    parser.add_argument(
        "--only",
        action="append",
        choices=["tests", "steps", "peers"],
        help="this section alone; repeatable",
    )
    draft, target = REAL_PAIR
    parser.add_argument("--draft", default=str(draft) if draft.is_dir() else None)
    parser.add_argument("--target", default=str(target) if target.is_dir() else None)
    return parser


def missing_device(device: str) -> str | None:
    """Return why PyTorch cannot compute there, in one line; None if it can."""
    import torch

    if device.split(":")[0] == "cpu":
        return None
    if not torch.cuda.is_available():
        return (
            f"no CUDA device can be used (torch {torch.__version__}, CUDA {torch.version.cuda});"
            " 'make setup TORCH_INDEX=' installs the CUDA build; try the report with --device cpu"
        )
    try:
        torch.empty(0, device=device)
    except RuntimeError as error:
        return f"{device} cannot be used: {str(error).splitlines()[0]}"
    return None


def sections(options: argparse.Namespace) -> list[Section]:
    """Return what there is to run on this machine."""
    pytest = (sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    bench = (sys.executable, "-P", "-m", "lab.bench.main")
    pair: tuple[str, ...] = ()
    if options.draft and options.target:
        pair = ("--draft", options.draft, "--target", options.target)
    shared = (*pair, "--device", options.device, *(("--quick",) if options.quick else ()))
    wanted = [Section("tests", "CUDA tests", (*pytest, "-m", "gpu", "tests/gpu"))]
    wanted.append(Section("steps", "Step times", (*bench, "steps", *shared)))
    vllm = ("--vllm", str(options.vllm)) if options.vllm.exists() else ()
    wanted.append(Section("peers", "Beside other software", (*bench, "peers", *shared, *vllm)))
    return [section for section in wanted if not options.only or section.key in options.only]


def write_report(out: Path, device: str, wanted: Sequence[Section]) -> list[str]:
    """Run the sections and write them to `out`; return the titles of those that failed."""
    out.write_text(f"# Tandem {__version__} on {device}\n\n{facts(device)}\n", encoding="utf-8")
    failed = []
    for section in wanted:
        print(f"gpu-report: {section.title} …", file=sys.stderr)
        text, exit_code = run_section(section)
        with out.open("a", encoding="utf-8") as file:
            file.write(text)
        if exit_code:
            failed.append(section.title)
    return failed


def run_section(section: Section) -> tuple[str, int]:
    """Return the Markdown of a section, and the exit code of its command."""
    started_s = time.monotonic()
    environment = os.environ | {"PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'gen'}"}
    ended = subprocess.run(
        section.command,
        cwd=REPOSITORY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    took_s = time.monotonic() - started_s
    lines = ended.stdout.splitlines()
    shown = lines[-LINES_KEPT:]
    if len(lines) > len(shown):
        shown.insert(0, f"[{len(lines) - LINES_KEPT} lines before these]")
    command = shlex.join(_shortened(word) for word in section.command)
    body = "\n".join([f"$ {command}", *shown]).replace(str(REPOSITORY), ".")
    body = body.replace("```", "'''")  # which would end the fence
    outcome = "passed" if ended.returncode == 0 else f"FAILED, exit code {ended.returncode}"
    return (
        f"\n## {section.title}\n\n{outcome}, {took_s:.0f} s\n\n```text\n{body}\n```\n",
        ended.returncode,
    )


def facts(device: str) -> str:
    """Return a table of what a reader must know of the machine."""
    import torch

    machine = this_machine()
    rows = {
        "processor": f"{machine.processor}, {machine.cores} cores, load {machine.load:.2f}",
        "system": machine.system,
        "Python": machine.python,
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda}",
        "transformers": machine.transformers,
        "commit": machine.commit,
        "device": device if device.startswith("cpu") else _gpu(device),
        "driver": _driver(),
        "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
    }
    lines = ["| what | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows.items())]
    return "\n".join(lines)


def _gpu(device: str) -> str:
    import torch

    found = torch.cuda.get_device_properties(device)
    return (
        f"{found.name}, {found.total_memory / 1e9:.0f} GB,"
        f" compute capability {found.major}.{found.minor}"
    )


def _driver() -> str:
    command = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return f"none found ({platform.machine()})"
    return ", ".join(sorted(set(ended.stdout.split()))) or "none found"


def _shortened(word: str) -> str:
    return "python" if word == sys.executable else word.replace(str(REPOSITORY), ".")


if __name__ == "__main__":
    sys.exit(main())
