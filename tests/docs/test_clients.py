"""The page of clients tells the versions that `make test-clients` installs."""

from __future__ import annotations

import json
import re

from tests.programs import REPOSITORY

CLIENTS = REPOSITORY / "tests" / "clients"
ROW = re.compile(r"^\|[^|]*\| `([^`]+)`( \(npm\))? \| (\S+) \|", re.MULTILINE)


def versions(name: str) -> dict[str, str]:
    """Of what a set names itself."""
    lines = (CLIENTS / f"{name}.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    wanted = (CLIENTS / f"{name}.in").read_text().splitlines()
    named = [line.partition("[")[0] for line in wanted if line and not line.startswith("#")]
    return {each: pinned[each] for each in named}


def test_the_matrix_has_every_client_in_the_version_that_is_tested() -> None:
    python = versions("requirements") | versions("load")
    locked = json.loads((CLIENTS / "package-lock.json").read_text())["packages"]
    node = {name: locked[f"node_modules/{name}"]["version"] for name in locked[""]["dependencies"]}
    rows = ROW.findall((REPOSITORY / "docs" / "clients.md").read_text())
    assert {name: version for name, npm, version in rows if not npm} == python
    assert {name: version for name, npm, version in rows if npm} == node
