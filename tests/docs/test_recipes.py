"""The recipes against their table, which programs read."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.programs import REPOSITORY

FOLDER = REPOSITORY / "docs" / "recipes"
RECIPES = json.loads((FOLDER / "recipes.json").read_text(encoding="utf-8"))
FIRST_SCREEN = 12
"""Lines of a page."""


def table_of(page: Path) -> list[list[str]]:
    """The rows of the page's first table, without its head."""
    lines = [line for line in page.read_text("utf-8").splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_table_is_that_of_the_overview() -> None:
    told = [
        [f"[{one['recipe']}]({one['page']})"]
        + [one[key] for key in ("target", "draft", "exact", "gain", "status")]
        for one in RECIPES
    ]
    assert table_of(FOLDER / "index.md") == told


def test_every_page_says_first_what_the_table_says() -> None:
    pages = {path.name for path in FOLDER.glob("*.md")} - {"index.md"}
    assert {one["page"] for one in RECIPES} == pages
    for one in RECIPES:
        text = (FOLDER / one["page"]).read_text(encoding="utf-8")
        lines = text.splitlines()
        assert lines[0] == f"# {one['recipe']}"
        (status,) = re.findall(r"^\*\*Status:\*\* ([^.(,]+?)(?: \(|[.,]| with)", text, re.MULTILINE)
        assert status == one["status"]
        assert any(line.startswith("**Limits:**") for line in lines[:FIRST_SCREEN])
        assert status.startswith(("measured", "not run"))


def test_a_recipe_has_commands_and_says_what_to_gain() -> None:
    for one in RECIPES:
        text = (FOLDER / one["page"]).read_text(encoding="utf-8")
        assert "tandem " in "".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL))
        assert "**Expected gain:**" in text
