"""Which files begin first: those that take longest, so that no worker has one alone at the end.

The order changes nothing else: a file's tests stay together and in their order. What collecting has
loaded is kept from the garbage collector, which would look through a million objects again and
again, and it looks less often at what the tests make.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from tempfile import TemporaryDirectory

import pytest

import tests.properties  # noqa: F401  # its profile, for whichever tests are collected
from tests.programs import REPOSITORY

LONGEST_FIRST = (
    "tests/process/test_cli.py",
    "tests/process/test_services.py",
    "tests/docs/test_commands.py",
    "tests/lab/process/test_bench.py",
    "tests/process/test_wheel.py",
    "tests/process/test_chart_starts.py",
    "tests/examples/test_examples.py",
    "tests/services/test_several_clouds.py",
    "tests/virtual_time/test_exact_distribution.py",
    "tests/services/test_two_sides.py",
    "tests/services/test_generate.py",
    "tests/pair/test_text_equality.py",
    "tests/unit/index/test_extractor.py",
    "tests/virtual_time/test_text_equality.py",
    "tests/virtual_time/test_output_distribution.py",
    "tests/virtual_time/test_auto.py",
    "tests/unit/cli/test_different_tokenizers.py",
    "tests/virtual_time/test_stopping.py",
    "tests/pair/test_constrained_texts.py",
    "tests/virtual_time/test_stream.py",
    "tests/gateway/test_openapi.py",
    "tests/pair/test_privacy.py",
    "tests/services/test_thinking.py",
    "tests/lab/training/test_train_demo.py",
    "tests/unit/cli/test_generate.py",
    "tests/unit/backends/test_gguf_file.py",
    "tests/services/test_other_versions.py",
    "tests/pair/test_structured.py",
    "tests/unit/backends/test_contract.py",
    "tests/virtual_time/test_aggregation_distribution.py",
    "tests/virtual_time/test_aggregation_text.py",
    "tests/virtual_time/test_early_exits.py",
    "tests/virtual_time/test_liveness.py",
    "tests/virtual_time/test_predraft.py",
)
"""Measured; what follows them is short enough for any order."""
OBJECTS_BETWEEN_COLLECTIONS = 20_000
"""Python's own 700 take a twentieth of the time of tests that make many short-lived objects."""


def pytest_configure(config: pytest.Config) -> None:
    # What commands remember of texts is not the user's, and each worker's own.
    state = TemporaryDirectory(prefix="tandem-tests-")
    config.add_cleanup(state.cleanup)
    os.environ["XDG_STATE_HOME"] = state.name
    # Commands that are given no model take the demo pair, whatever is installed.
    os.environ["TANDEM_TARGET"] = "demo"
    os.environ["TANDEM_THREADS"] = "1"  # dozens of processes share two cores
    missing = [name for name in LONGEST_FIRST if not (REPOSITORY / name).is_file()]
    if missing:
        raise pytest.UsageError(f"tests/conftest.py names files that do not exist: {missing}")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {REPOSITORY / name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
