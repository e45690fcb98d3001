"""What newcomers begin with, made once: a clone in which `make run` ran, and the wheel installed as
a person installs it. The times are shown at the end of the run, beside what is hoped for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.newcomer.newcomer import Newcomer, Shown
from tests.process.wheel_environment import build_wheel
from tests.programs import REPOSITORY

MAKE_RUN = "make run, from a bare clone"
INSTALLING = "pip install tandem-edge[local]"
HELP = "tandem --help"
HOPED_S = {MAKE_RUN: 90.0, INSTALLING: 60.0, HELP: 0.3}
"""On a quiet machine, with a quiet index."""
TIMES = pytest.StashKey[dict[str, float]]()


@pytest.fixture(scope="session")
def times(request: pytest.FixtureRequest) -> dict[str, float]:
    """Seconds of all that newcomers did."""
    return request.config.stash.setdefault(TIMES, {})


@pytest.fixture(scope="session")
def cloner(tmp_path_factory: pytest.TempPathFactory, times: dict[str, float]) -> Iterator[Newcomer]:
    """Has a clone of what is committed, and nothing else."""
    folder = tmp_path_factory.mktemp("clone")
    clone = ("git", "clone", "--quiet", f"file://{REPOSITORY}", folder / "tandem")
    subprocess.run(clone, check=True)
    (folder / "home").mkdir()
    person = Newcomer(
        folder / "tandem", folder / "home", folder / "tandem" / ".venv" / "bin", times
    )
    yield person
    person.kill()


@pytest.fixture(scope="session")
def made(cloner: Newcomer) -> Shown:
    """What the first `make run` shows."""
    return cloner.run(MAKE_RUN, "make", "run")


@pytest.fixture(scope="session")
def installer(
    cloner: Newcomer, made: Shown, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Newcomer]:
    """Has the wheel with the extra for people in an environment, and no model that is found."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("home", "work"):
        (folder / name).mkdir()
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    person = replace(
        cloner,
        folder=folder / "work",
        home=folder / "home",
        programs=folder / "venv" / "bin",
        variables={},
    )
    wheel = build_wheel(tmp_path_factory)
    person.run(INSTALLING, "pip", "install", "--quiet", f"{wheel}[local]")
    yield person
    person.kill()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    taken = config.stash.get(TIMES, {})
    if not taken:
        return
    terminalreporter.section("seconds that a newcomer waited")
    for done, seconds in taken.items():
        hoped = f"  (hoped: {HOPED_S[done]:g})" if done in HOPED_S else ""
        terminalreporter.write_line(f"{seconds:8.1f}  {done}{hoped}")
