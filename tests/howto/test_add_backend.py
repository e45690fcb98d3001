"""The how-to of `tandem.backends.interface`, followed step by step in a copy of the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.backends import interface

CHECKOUT = Path(__file__).parents[2]
PARTS = ("tandem", "gen", "tests/howto", "tests/unit/backends", "docs/internals")
STEPS = (
    "tandem/backends/bigram.py",
    "tandem/backends/factory.py",
    "tests/unit/backends/test_contract.py",
    "docs/internals/engine.md",
)
PROGRAM = """
import asyncio
from tandem.backends.model_source import ModelChoice
from tandem.core.probs import SamplingParams
from tandem.generation.client import AggregatorClient
from tandem.generation.request import GenerationRequest
from tandem.specdec.messages import GenerationParams
from tandem.suite.embedded import EmbeddedSuite
from tandem.suite.models import load_pair

async def main():
    draft, target = (ModelChoice(seed, engine="bigram") for seed in ("1", "2"))
    pair = load_pair(draft, target)
    async with EmbeddedSuite(pair) as suite, AggregatorClient(suite.target) as client:
        texts = {}
        for preset in ("ar", "coupled", "picospec"):
            greedy = SamplingParams(temperature=0.0)
            params = GenerationParams(sampling=greedy, max_tokens=30)
            request = GenerationRequest("toy", preset, params)
            texts[preset] = (await client.generate(request)).token_ids
    own, last = [], ord("y") % 64
    for _ in range(30):
        last = int(pair.target._table[last].argmax())
        own.append(last)
    assert all([*text] == own for text in texts.values()), (texts, own)
    print("generated", len(own))

asyncio.run(main())
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for part in PARTS:
        ignored = shutil.ignore_patterns("models")
        shutil.copytree(CHECKOUT / part, tmp_path / part, ignore=ignored)  # and what is compiled
    shutil.copy(CHECKOUT / "pyproject.toml", tmp_path)
    return tmp_path


def insert(path: Path, before: str, line: str) -> None:
    """A line of code before another, which must be there once."""
    text = path.read_text()
    assert text.count(before) == 1, f"{path}: {before!r}"
    path.write_text(text.replace(before, line + before))


def add_back_end(copy: Path) -> None:
    """What the how-to says, and nothing else."""
    module, factory, contract, docs = (copy / step for step in STEPS)
    shutil.copy(CHECKOUT / "tests" / "howto" / "bigram_backend.py", module)
    remote = '        "remote": _from("tandem.backends.remote"),'
    insert(factory, remote, '        "bigram": _from("tandem.backends.bigram"),\n')
    insert(contract, '    "remote": "a fake server",', '    "bigram": "3",\n')
    docs.write_text("".join(map(with_column, docs.read_text().splitlines(keepends=True))))


def with_column(line: str) -> str:
    """A line of the table of capabilities, of which it has none; any other line as it is."""
    if not line.startswith("|"):
        return line
    heads = {"| capability": " `bigram` |\n", "|---": "---|\n"}
    cell = next((heads[start] for start in heads if line.startswith(start)), " no |\n")
    return line.rstrip("\n") + cell


def run(copy: Path, *arguments: str) -> str:
    """The output of a Python process that sees the copy alone."""
    environment = {**os.environ, "PYTHONPATH": f"{copy}:{copy / 'gen'}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=copy, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def changed(copy: Path) -> set[str]:
    """Files that differ from the checkout's."""
    found = {
        path.relative_to(copy)
        for part in PARTS
        for path in (copy / part).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    return {
        str(path)
        for path in found
        if not (CHECKOUT / path).exists()
        or (copy / path).read_bytes() != (CHECKOUT / path).read_bytes()
    }


def test_the_how_to_names_every_file_that_changes(copy: Path) -> None:
    add_back_end(copy)
    assert changed(copy) == set(STEPS)
    for step in STEPS:
        assert step.replace("bigram", "NAME") in (interface.__doc__ or "")


def test_an_added_back_end_generates_its_target_s_text(copy: Path) -> None:
    add_back_end(copy)
    assert run(copy, "-c", PROGRAM) == "generated 30\n"


def test_an_added_back_end_keeps_the_contract(copy: Path) -> None:
    add_back_end(copy)
    contract = (
        "tests/unit/backends/test_contract.py",
        "-k",
        "bigram",
        "-q",
        "-p",
        "no:cacheprovider",
    )
    assert " passed" in run(copy, "-m", "pytest", *contract)
