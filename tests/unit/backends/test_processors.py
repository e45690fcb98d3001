"""How many threads there are for a model."""

import os
from pathlib import Path

import pytest

from tandem.backends.processors import machine_threads


@pytest.fixture(autouse=True)
def eight_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


def written(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_all_processors_where_nothing_is_known_of_them(tmp_path: Path) -> None:
    assert machine_threads(tmp_path, tmp_path) == 8


def test_two_threads_of_one_core_count_once(tmp_path: Path) -> None:
    for cpu in range(8):
        siblings = f"{cpu % 4},{cpu % 4 + 4}\n"
        written(tmp_path, f"cpu{cpu}/topology/thread_siblings_list", siblings)
    assert machine_threads(tmp_path, tmp_path) == 4


@pytest.mark.parametrize(
    ("files", "threads"),
    [
        ({"cpu.max": "250000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
    ],
)
def test_a_container_s_limit_counts(tmp_path: Path, files: dict[str, str], threads: int) -> None:
    for name, text in files.items():
        written(tmp_path, name, text)
    assert machine_threads(tmp_path, tmp_path) == threads
