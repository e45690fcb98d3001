"""What the scripts that train a pair have in common. Invariant: a run that was interrupted, or
lacks a file, says so in a line and goes on from there when it is run again."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

import torch

ALL = "all"


def stages_parser(about: str, stages: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser with the options that every training has."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--stage", choices=(*stages, ALL), default=ALL)
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=1.6,
        help="a stage also ends after its budget times this in wall time (busy machine)",
    )
    parser.add_argument("--seed", type=int, default=0)
    return parser


def use_device(name: str) -> torch.device:
    """Return the device; on a CPU, use as many threads as OMP_NUM_THREADS says, or else one."""
    if name == "cpu":
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    return torch.device(name)


def run_stages(stage: str, stages: Sequence[str], run: Callable[[str], None]) -> int:
    """Run one of the stages, or all; return the exit code."""
    try:
        for name in stages if stage == ALL else (stage,):
            run(name)
    except (FileNotFoundError, ValueError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted; run the same command again to go on\n")
        return 130
    return 0
