"""Engines on vLLM, which has an environment of its own: elsewhere these tests are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.backends.factory import load_model
from tandem.backends.interface import Engine
from tandem.backends.model_source import ONE_DEVICE, ModelChoice, Parallelism
from tandem.backends.vllm import installed_version
from tandem.demo import demo_folder

TARGET = str(demo_folder("demo-target"))
DRAFT = str(demo_folder("demo-draft"))
KV_BYTES = 2**24
"""Of one engine: enough for sessions over all of the demo target's context, several times."""
ENGINES = {
    "one worker": (TARGET, ONE_DEVICE),
    # The demo target's five heads cannot be halved.
    "tensor parallel": (DRAFT, Parallelism(tensor=2, executor="mp")),
    "pipeline parallel": (DRAFT, Parallelism(pipeline=2, executor="mp")),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(1500))  # vLLM alone takes long to import
            if installed_version() is None:
                why = "vLLM has an environment of its own: make test-vllm"
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session", params=ENGINES)
def served(request: pytest.FixtureRequest) -> Iterator[tuple[Engine, Engine]]:
    """An engine on vLLM, and the same model by the reference back end, which keeps no pages."""
    source, parallel = ENGINES[request.param]
    engine = load_model(
        ModelChoice(source, engine="vllm", parallel=parallel, kv_budget_bytes=KV_BYTES)
    ).engine
    yield engine, load_model(ModelChoice(source)).engine
    engine.shut_down()  # type: ignore[attr-defined]  # an engine of processes
