"""Which files begin first: those that take longest, so that no worker has one alone at the end.

The order changes nothing else: a file's tests stay together and in their order. What collecting has
loaded is kept from the garbage collector, which would look through a million objects again and
again, and it looks less often at what the tests make.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Generator
from tempfile import TemporaryDirectory

import pytest

import tests.properties  # noqa: F401  # its profile, for whichever tests are collected
from tests.programs import REPOSITORY

DURATIONS = REPOSITORY / "tests" / "durations.json"
"""Seconds by file, the longest first; `python -m tools.durations` writes it."""
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
    longest_first = json.loads(DURATIONS.read_text(encoding="utf-8"))
    places = {REPOSITORY / name: place for place, name in enumerate(longest_first)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
