"""The page of error codes has every code that the program can answer with, and its statuses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from grpc import StatusCode

from tandem.gateway.errors import api_error
from tandem.net.status import Rejected
from tests.programs import REPOSITORY

PAGE = (REPOSITORY / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
CODES = re.compile(r"`([a-z]+(?:_[a-z]+)*)`")


def rows() -> Iterator[list[str]]:
    """The cells of each row of the page's tables."""
    for line in PAGE.splitlines():
        if line.startswith("| ") and not line.startswith(("| gRPC", "| status")):
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


def test_statuses_of_grpc_are_those_of_http() -> None:
    told: dict[str, tuple[int, str]] = {}
    for names, status, code, *_ in (row for row in rows() if len(row) == 5):
        for name in names.split(", "):
            told.setdefault(name, (int(status), code.strip("`")))
    del told["the same"]
    for name, row in told.items():
        error = api_error(Rejected(StatusCode[name], "why"))
        assert (error.status, error.code) == row, name
    others = {code.name for code in StatusCode} - told.keys()
    assert {api_error(Rejected(StatusCode[name], "why")).status for name in others} == {500}


def codes_in_the_gateway() -> dict[str, set[int]]:
    """The codes of the errors that the gateway makes itself, with their statuses."""
    found: dict[str, set[int]] = {}
    for path in (REPOSITORY / "tandem" / "gateway").glob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
                continue
            texts = [each for each in call.args if isinstance(each, ast.Constant)]
            named = [each.value for each in call.keywords if each.arg == "code"]
            match call.func.id:
                case "ApiError" if texts and named and isinstance(named[0], ast.Constant):
                    found.setdefault(str(named[0].value), set()).add(int(str(texts[0].value)))
                case "invalid" if len(call.args) == 3 and isinstance(call.args[2], ast.Constant):
                    found.setdefault(str(call.args[2].value), set()).add(400)
    return found


CODES_IN_THE_GATEWAY = codes_in_the_gateway()


@pytest.mark.parametrize("code", CODES_IN_THE_GATEWAY)
def test_codes_of_http_are_on_the_page(code: str) -> None:
    told = {
        int(status)
        for row in rows()
        for status in re.findall(r"\b[45]\d\d\b", " ".join(row[:2]))
        if code in CODES.findall(" ".join(row[1:3]))
    }
    assert CODES_IN_THE_GATEWAY[code] <= told, code


def test_the_codes_were_found() -> None:
    assert len(CODES_IN_THE_GATEWAY) > 10
