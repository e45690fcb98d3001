"""The wheel, built from the source distribution and installed where there is no checkout."""

from __future__ import annotations

import sysconfig
import zipfile
from pathlib import Path

import pytest

from tandem import __version__
from tests.process.running_suite import TIMEOUT_S
from tests.process.wheel_environment import Installed, build_wheel, install_wheel

pytestmark = pytest.mark.timeout(TIMEOUT_S)

LIBRARIES = ("preact", "htm", "markdown-it")
VENDORED = ("preact.mjs", "markdown-it.mjs", *(f"LICENSE.{name}" for name in LIBRARIES))
OF_THE_CHECKOUT = ("lab", "models", "tests", "tools")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """With all that is installed here."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel = build_wheel(tmp_path_factory)
    return install_wheel(wheel, folder, Path(sysconfig.get_path("purelib")))


def test_its_packages_and_metadata(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    packages = {name.split("/")[0] for name in names}
    assert packages == {"tandem", "tandem_api", metadata.split("/")[0]}
    page = "tandem/gateway/page/"
    vendored = {f"{page}vendor/{each}" for each in VENDORED}
    assert {"tandem/py.typed", f"{page}index.html", f"{page}main.mjs"} | vendored <= {*names}
    for line in ("Name: tandem-edge", f"Version: {__version__}", "License-Expression: Apache-2.0"):
        assert line in lines


def test_it_is_imported_without_what_only_a_checkout_has(installed: Installed) -> None:
    program = f"""
from importlib.util import find_spec
import sys, tandem
assert tandem.__file__.startswith({str(installed.environment)!r}), tandem.__file__
for name in {OF_THE_CHECKOUT}:
    assert find_spec(name) is None, find_spec(name)
"""
    ended = installed.run("python", "-c", program)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert installed.run("tandem", "--version").stdout == f"{__version__}\n"


def test_a_service_would_serve_the_demo_pair(installed: Installed) -> None:
    """Shown by its help; the demo below starts it, with all others."""
    shown = installed.run("tandem", "serve", "verifier", "--help").stdout.replace("\n", "")
    assert "tandem/demo/demo-target" in "".join(shown.split())


def test_the_demo_streams_two_answers_with_their_figures_and_stops(installed: Installed) -> None:
    """Once for all: a checkout's demo is this one."""
    ended = installed.run("tandem", "up", "--try")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("Question: ")
    plain, two_sided = (line for line in ended.stdout.splitlines() if " tokens/s" in line)
    assert "the large model alone: the same text" in ended.stdout
    ways = ("drafted on the device", "by the large model alone", "repeated from", "by drafts of")
    assert any(way in plain for way in ways)
    assert "documents: 2 from the device, 2 from the cloud" in two_sided
    assert "which ones does Heron support" in ended.stdout


@pytest.mark.parametrize(
    "command", ["bench", "distill", "plan", "sim", "train-exits", "verify-lossless"]
)
def test_the_laboratory_is_not_part_of_it(installed: Installed, command: str) -> None:
    ended = installed.run("tandem", command)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        f"error: 'tandem {command}' needs the laboratory;"
        " in a checkout of the repository: pip install --editable ./lab\n"
    )
