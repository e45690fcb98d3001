"""From the wheel, with the extra for people: how long it takes, how large it is, and whether
README's commands show what README says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import Block
from tests.newcomer.conftest import HELP, HOPED_S, INSTALLING
from tests.newcomer.newcomer import TIMEOUT_S, Newcomer, Shown, blocks_to_follow
from tests.newcomer.test_clone import promised_by
from tests.programs import REPOSITORY

pytestmark = pytest.mark.timeout(TIMEOUT_S)

BLOCKS = [
    block
    for block in blocks_to_follow("README.md")
    if not {"make", "source"} & {*block.text.split()}
]
"""All that is not about a clone."""
GENERATE = "tandem generate 'Why is the sky blue?'"


def test_its_size_and_parts_are_those_that_the_documentation_says(installer: Newcomer) -> None:
    page = (REPOSITORY / "docs" / "installation.md").read_text()
    on_disk = re.search(r"on disk, with bytecode \| (\d+) \|", page)
    packages = re.search(r"pulls (\d+) packages", page)
    assert on_disk is not None
    assert packages is not None
    (site,) = installer.programs.parent.glob("lib/python*/site-packages")
    there = {path.name.partition("-")[0] for path in site.glob("*.dist-info")} - {
        "pip",
        "setuptools",
    }
    assert abs(len(there) - 1 - int(packages[1])) <= 3, sorted(there)
    pip = sum(_bytes(site / name) for name in ("pip", "setuptools") if (site / name).exists())
    assert (_bytes(site) - pip) / 1e6 == pytest.approx(int(on_disk[1]), rel=0.15)
    assert not {"torch", "transformers"} & there


def test_times_are_of_the_order_that_is_hoped_for(installer: Newcomer) -> None:
    """A busy machine takes several times as long; ten times as long is another product."""
    installer.run(HELP, "tandem", "--help")  # compiles what it imports
    installer.run(HELP, "tandem", "--help")
    for done in (INSTALLING, HELP):
        assert installer.times[done] < 10 * HOPED_S[done]


def test_without_a_model_it_says_how_to_get_one(installer: Newcomer) -> None:
    failed = installer.run("tandem generate, without a model", "bash", "-c", f"! {GENERATE}")
    (line,) = failed.err.splitlines()
    assert "no chat model is on this machine" in line
    assert "'tandem pull Qwen/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M' gets one" in line


@pytest.fixture(scope="module")
def answered(installer: Newcomer, cloner: Newcomer) -> Newcomer:
    """The same person, with a model: the one that the clone's `make run` got."""
    (model,) = (cloner.folder / "models" / "real").glob("*.gguf")
    installer.variables["TANDEM_TARGET"] = str(model)
    return installer


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_of_readme_shows_what_it_says(block: Block, answered: Newcomer) -> None:
    promised_by(block)(answered.follow(block))


def test_an_answer_goes_to_standard_output_alone(answered: Newcomer) -> None:
    shown: Shown = answered.run(GENERATE, "bash", "-c", f"{GENERATE} --max-tokens 30")
    assert len(shown.out.split()) >= 8
    assert "model: " in shown.err
    assert answered.texts_kept() == []


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
