"""`--prompts N`: how many held-out prompts the text-equality tests use; 125 make 1,000 cases."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--prompts", type=int, default=3, help="prompts of tests/pair (125: all)")
