"""Engines on vLLM, which has an environment of its own: elsewhere these tests are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.backends.factory import load_model
from tandem.backends.interface import Engine
from tandem.backends.model_source import ONE_DEVICE, LoadedModel, ModelChoice, Parallelism
from tandem.backends.vllm import installed_version
from tandem.demo import demo_folder

TARGET = str(demo_folder("demo-target"))
KV_BYTES = 2**24
"""Of one engine: enough for sessions over all of the demo target's context, several times."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(1500))  # vLLM alone takes long to import
            if installed_version() is None:
                why = "vLLM has an environment of its own: make test-vllm"
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def on_vllm() -> Iterator[LoadedModel]:
    """The demo target in this process."""
    yield from started(TARGET)


@pytest.fixture(scope="module")
def on_torch() -> Engine:
    """The same model by the reference back end."""
    return load_model(ModelChoice(TARGET)).engine


def started(source: str, parallel: Parallelism = ONE_DEVICE) -> Iterator[LoadedModel]:
    loaded = load_model(
        ModelChoice(source, engine="vllm", parallel=parallel, kv_budget_bytes=KV_BYTES)
    )
    yield loaded
    loaded.engine.shut_down()  # type: ignore[attr-defined]  # an engine of processes
