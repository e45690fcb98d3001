"""What tests of the gateway share; and what is done with its OpenAPI document: `make test-openapi`
does more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tandem.net.access_keys import key_line
from tandem.net.scopes import Scope
from tests.gateway.http_suite import KEY, HttpSuite, http_suite


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--openapi-cases", type=int, help="cases of each kind and operation")
    parser.addoption("--client-generator", help="path of openapi-python-client")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def served() -> AsyncIterator[HttpSuite]:
    """A suite that all tests have which leave it as they found it."""
    async with http_suite() as running:
        yield running


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A file of one key, which may ask for answers."""
    path = tmp_path / "keys"
    path.write_text(key_line("ann", KEY, {Scope.GENERATE}))
    return path
