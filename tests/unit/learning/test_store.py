"""Adapters on disk: versions, rolling back, resetting, and files that are not whole."""

from __future__ import annotations

import json
import logging
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from tandem.learning.store import (
    MAX_TENANTS,
    MAX_VERSIONS,
    STATE,
    TEXTS,
    TRAINING,
    AdapterStore,
    LearningState,
    Version,
    open_folder,
    tenant_folders,
)
from tandem.net.tenant import Tenant

VERSION = Version(0, 0.4, 0.4, 0.5, 1000, 20000, 12.5, 11.0, "2026-01-01T00:00:00+00:00")


def weights(value: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.full(8, value, np.float32)


def added(folder: Path, count: int, model: str = "m") -> tuple[AdapterStore, LearningState]:
    versions = AdapterStore(folder, model)
    state = versions.read()
    for number in range(count):
        after = versions.add(state, weights(number + 1), VERSION)
        assert after is not None
        state = after
    return versions, state


def test_a_version_is_used_from_the_next_reading_on(tmp_path: Path) -> None:
    _, state = added(tmp_path, 2)
    other = AdapterStore(tmp_path, "m")
    assert other.changed
    assert other.read() == state
    assert not other.changed
    assert state.used == 2
    found = other.weights(2)
    assert found is not None
    assert found.tolist() == [2.0] * 8


def test_only_the_last_versions_are_kept_and_all_are_private(tmp_path: Path) -> None:
    _, state = added(tmp_path / "tenant", MAX_VERSIONS + 2)
    assert [each.number for each in state.versions] == [3, 4, 5, 6, 7]
    files = sorted(path.name for path in (tmp_path / "tenant").iterdir())
    assert files == [*(f"adapter-{number}.safetensors" for number in range(3, 8)), STATE]
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "tenant").iterdir()}
    assert modes == {0o600}
    assert stat.S_IMODE((tmp_path / "tenant").stat().st_mode) == 0o700


def test_rolling_back_goes_one_version_at_a_time(tmp_path: Path) -> None:
    versions, _ = added(tmp_path, 2)
    used = []
    while (state := versions.roll_back()) is not None:
        used.append(state.used)
    assert used == [1, 0]
    # A later version has a number of its own: nothing is confused with what was rolled back.
    after = versions.add(versions.read(), weights(9), VERSION)
    assert after is not None
    assert after.used == 3


def test_nothing_is_adopted_that_began_before_a_rollback_or_a_reset(tmp_path: Path) -> None:
    versions, state = added(tmp_path, 2)
    AdapterStore(tmp_path, "m").roll_back()
    assert versions.add(state, weights(9), VERSION) is None
    state = versions.read()
    AdapterStore(tmp_path, "m").reset()
    assert versions.changed
    assert versions.add(state, weights(9), VERSION) is None
    versions.keep_training(state, {"logits": weights(1)})
    assert [path.name for path in tmp_path.iterdir()] == [STATE]


def test_a_reset_deletes_everything(tmp_path: Path) -> None:
    versions, state = added(tmp_path, 2)
    versions.keep_training(state, {"logits": weights(1)})
    (tmp_path / TEXTS).write_bytes(b"texts")
    versions.reset()
    assert [path.name for path in tmp_path.iterdir()] == [STATE]
    after = versions.read()
    assert after.used == 0
    assert not after.versions
    assert after.generation != state.generation


def test_adapters_of_another_model_are_not_used(tmp_path: Path) -> None:
    added(tmp_path, 2)
    other = AdapterStore(tmp_path, "another model")
    state = other.read()
    assert state.used == 0
    assert state.versions == ()
    other.keep_training(state, {"logits": weights(3)})
    assert other.training(state)["logits"].tolist() == [3.0] * 8
    after = other.add(state, weights(1), VERSION)
    assert after is not None
    assert AdapterStore(tmp_path, "another model").read() == after


def test_training_goes_on_only_from_where_it_began(tmp_path: Path) -> None:
    versions, state = added(tmp_path, 1)
    versions.keep_training(state, {"logits": weights(5)})
    assert versions.training(state)["logits"].tolist() == [5.0] * 8
    after = versions.add(state, weights(2), VERSION)
    assert after is not None
    assert versions.training(after) == {}


@pytest.mark.parametrize("cut", [0, 1, 5, 60])
def test_files_that_are_not_whole_are_left_out(
    cut: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    versions, state = added(tmp_path, 1)
    versions.keep_training(state, {"logits": weights(5)})
    for path in (tmp_path / "adapter-1.safetensors", tmp_path / TRAINING):
        path.write_bytes(path.read_bytes()[:cut])
    with caplog.at_level(logging.WARNING):
        assert versions.weights(1) is None
        assert versions.training(state) == {}
    assert len(caplog.records) == 2
    assert all("left out" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(
    "tensors",
    [
        {"adapter": np.zeros(8, np.float64)},
        {"adapter": np.zeros((2, 4), np.float32)},
        {"another": np.zeros(8, np.float32)},
        None,
    ],
)
def test_an_adapter_of_something_else_is_left_out_with_one_warning(
    tensors: dict[str, np.ndarray[Any, Any]] | None,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    versions, _ = added(tmp_path, 1)
    path = tmp_path / "adapter-1.safetensors"
    if tensors is None:
        path.unlink()
    else:
        path.write_bytes(save(tensors))
    with caplog.at_level(logging.WARNING):
        assert versions.weights(1) is None
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", '{"format": 1}', '{"format": 2, "versions": [{"number": 1}]}'),
        pytest.param("[" * 100_000, id="nests deeply"),
        pytest.param('{"a":' * 100_000, id="objects nest deeply"),
        '{"format": 2, "model": "m", "generation": "g", "used": "1", "versions": []}',
        '{"format": 2, "model": "m", "generation": "g", "used": [1], "versions": []}',
        '{"format": 2, "model": "m", "generation": "g", "used": true, "versions": []}',
        '{"format": 2, "model": "m", "generation": "g", "newest": -1, "versions": []}',
        '{"format": 2, "model": "m", "generation": 7, "versions": []}',
    ],
)
def test_a_state_that_cannot_be_read_is_an_empty_one(
    content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    added(tmp_path, 1)
    (tmp_path / STATE).write_text(content)
    versions = AdapterStore(tmp_path, "m")
    with caplog.at_level(logging.WARNING):
        state = versions.read()
    assert state.used == 0
    assert len(caplog.records) == 1
    assert versions.add(state, weights(1), VERSION) is not None
    assert json.loads((tmp_path / STATE).read_text())["used"] == 1


def test_a_version_of_another_type_is_not_rolled_back_to(tmp_path: Path) -> None:
    versions, _ = added(tmp_path, 2)
    path = tmp_path / STATE
    path.write_text(path.read_text().replace('"number": 1', '"number": "1"'))
    assert versions.read().versions == ()
    assert versions.roll_back() is None


def test_each_tenant_has_a_folder_of_its_own(tmp_path: Path) -> None:
    root = tmp_path / "learning"
    tenants = [Tenant(""), Tenant("a"), Tenant("a", b"1"), Tenant("a", b"2"), Tenant("b", b"1")]
    opened = [open_folder(root, tenant) for tenant in tenants]
    assert len(set(opened)) == len(tenants)
    assert None not in opened
    assert [open_folder(root, tenant) for tenant in tenants] == opened
    assert {stat.S_IMODE(path.stat().st_mode) for path in tenant_folders(root)} == {0o700}


def test_a_caller_with_many_tenants_displaces_its_own_alone(tmp_path: Path) -> None:
    other = open_folder(tmp_path, Tenant("other"))
    for number in range(MAX_TENANTS + 5):
        assert open_folder(tmp_path, Tenant("crowd", str(number).encode())) is not None
    assert other is not None
    assert other.is_dir()
    assert len(tenant_folders(tmp_path)) == MAX_TENANTS
    assert open_folder(tmp_path, Tenant("late")) is None, (
        "there is no room, and nobody else gives way"
    )
