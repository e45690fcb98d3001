"""`tandem learning`: what was learned is shown, rolled back and deleted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tandem.cli import main
from tandem.learning.store import TEXTS, AdapterStore, Version, open_folder, read_state
from tandem.net.tenant import Tenant


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "learning"


def learned(root: Path, tenant: Tenant, versions: int = 2) -> Path:
    folder = open_folder(root, tenant)
    assert folder is not None
    kept = AdapterStore(folder, "model")
    state = kept.read()
    for number in range(versions):
        version = Version(0, 0.4, 0.4, 0.5 + number / 100, 500, 9000, 7.0, 6.5, "2026-01-01")
        added = kept.add(state, np.zeros(4, np.float32), version)
        assert added is not None
        state = added
    (folder / TEXTS).write_bytes(b"texts")
    return folder


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["learning", *arguments], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.output


def test_rolling_back_ends_with_the_draft_as_it_was_installed(root: Path) -> None:
    folder = learned(root, Tenant(""))
    assert json.loads(run("rollback", "--folder", str(root), "--json"))["used"] == 1
    assert "without an adapter" in run("rollback", "--folder", str(root))
    with pytest.raises(Exception, match="no adapter is in use"):
        run("rollback", "--folder", str(root))
    state = read_state(folder)
    assert state is not None
    assert state.used == 0
    assert (folder / TEXTS).exists()


def test_a_reset_deletes_texts_and_adapters_of_all_or_of_one(root: Path) -> None:
    mine, yours = learned(root, Tenant("me")), learned(root, Tenant("you"))
    run("reset", "--folder", str(root), "--tenant", yours.name)
    assert [path.name for path in yours.iterdir()] == ["learning.json"]
    assert (mine / TEXTS).exists()
    assert json.loads(run("reset", "--folder", str(root), "--json"))["reset"] == sorted(
        [mine.name, yours.name]
    )
    assert [path.name for path in mine.iterdir()] == ["learning.json"]
