"""What is done with the gateway's OpenAPI document: `make test-openapi` does more."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--openapi-cases", type=int, help="cases of each kind and operation")
    parser.addoption("--client-generator", help="path of openapi-python-client")
