"""How much is asked of the gateway by its OpenAPI document."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--openapi-cases", type=int, help="cases of each kind and operation")
