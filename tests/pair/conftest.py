"""`--prompts N`: how many held-out prompts the text-equality tests use; 125 make 1,000 cases. And
the demo pair, loaded once for all that serve it one after another."""

from __future__ import annotations

import pytest

from tandem.suite.models import ModelPair, choose_model, demo_source, load_pair


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--prompts", type=int, default=3, help="prompts of tests/pair (125: all)")


@pytest.fixture(scope="session")
def pair() -> ModelPair:
    return load_pair(
        choose_model(demo_source("demo-draft")), choose_model(demo_source("demo-target"))
    )
