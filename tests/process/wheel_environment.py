"""The wheel in environments of its own: whole, or without packages that extras bring."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.process.running_suite import TIMEOUT_S
from tests.programs import REPOSITORY

ENV = {
    name: text
    for name, text in os.environ.items()
    if not name.startswith(("TANDEM_", "PYTHON")) and name != "VIRTUAL_ENV"
} | {"OMP_NUM_THREADS": "1", "TANDEM_TARGET": "demo"}
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
SELF = PROJECT["name"]


@dataclass(frozen=True, slots=True)
class Installed:
    """A wheel in an environment of its own; programs run in an empty folder."""

    wheel: Path
    environment: Path
    folder: Path

    def run(
        self, program: str, *arguments: str, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        command = [str(self.environment / "bin" / program), *arguments]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            cwd=self.folder,
            env=ENV,
            input=stdin,
        )


def build_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the source distribution, and the wheel from that: once for all workers of a run."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # the run's own
    with (folder / "wheel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built = folder / "built-wheel"
        if not built.exists():
            built.mkdir()
            _build_wheel(built)
        (wheel,) = built.glob("*.whl")
    return wheel


def _build_wheel(folder: Path) -> None:
    _build("sdist", REPOSITORY, folder)
    (archived,) = folder.glob("*.tar.gz")
    with tarfile.open(archived) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.glob("tandem_edge-*/")
    _build("wheel", source, folder)


def _build(target: str, source: Path, folder: Path) -> None:
    command = (sys.executable, "-m", "hatchling", "build", "--target", target)
    subprocess.run([*command, "--directory", folder], cwd=source, check=True, env=ENV)


def install_wheel(wheel: Path, folder: Path, *packages: Path) -> Installed:
    """Install the wheel, and nothing else, in a new environment below `folder`. It also finds what
    lies in the folders `packages`. Their .pth files are not read: the checkout, an editable install
    of the environment of the tests, stays out of sight."""
    environment = folder / "environment"
    venv.create(environment)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--python")
    # What a test imports is compiled then; pip would compile all.
    offline = ("--no-deps", "--no-index", "--no-compile")
    install = (environment / "bin" / "python", "install", *offline, wheel)
    subprocess.run([*pip, *install], check=True, env=ENV)
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text("\n".join(map(str, packages)))
    (folder / "empty").mkdir()
    return Installed(wheel, environment, folder / "empty")


def required_by(*extras: str) -> list[Requirement]:
    """What pyproject.toml asks for: by itself, and for these extras; an extra that names others
    has theirs."""
    lines = [*PROJECT["dependencies"]]
    for extra in extras:
        lines += PROJECT["optional-dependencies"][extra]
    requirements = list(map(Requirement, lines))
    named = [one for one in requirements if one.name == SELF]
    inner = [each for one in named for each in required_by(*one.extras)]
    return [one for one in requirements if one.name != SELF] + inner


def names_with_all_they_need(requirements: Iterable[Requirement]) -> set[str]:
    """Names of installed distributions: those required, and what they require in turn."""
    found: set[str] = set()
    seen: set[tuple[str, frozenset[str]]] = set()
    left = list(requirements)
    while left:
        wanted = left.pop()
        key = (canonical(wanted.name), frozenset(wanted.extras))
        if key in seen:
            continue
        seen.add(key)
        try:
            needs = distribution(wanted.name).requires or []
        except PackageNotFoundError:
            continue  # of another platform, or an extra that is not installed here
        found.add(key[0])
        for one in map(Requirement, needs):
            extras = ("", *wanted.extras)
            if one.marker is None or any(one.marker.evaluate({"extra": each}) for each in extras):
                left.append(one)
    return found


def linked(names: Iterable[str], folder: Path, left_out: Iterable[str] = ()) -> Path:
    """Return a folder in which these distributions are installed, by links to where they are. Those
    `left_out` are not, nor what others have in the same top-level packages."""
    packages = Path(sysconfig.get_path("purelib"))
    folder.mkdir()
    for top in _tops(names) - _tops(left_out):
        if (packages / top).exists() and not top.endswith(".pth"):
            (folder / top).symlink_to(packages / top)
    return folder


def _tops(names: Iterable[str]) -> set[str]:
    return {
        file.parts[0]
        for name in names
        for file in distribution(name).files or ()
        if file.parts[0] not in ("..", "__pycache__")
    }


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
