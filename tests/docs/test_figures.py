"""Measured figures of README and docs/ come by name from docs/figures.json: what each is, the
command and the commit that it is of, and the numbers of the laboratory's pages that it is computed
from."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.docs.blocks import PAGES
from tests.programs import REPOSITORY

FIGURES: dict[str, dict[str, Any]] = json.loads(
    (REPOSITORY / "docs" / "figures.json").read_text(encoding="utf-8")
)
NOTEBOOK = "lab/docs/notebook.md"
FENCED = re.compile(r"^ *```.*?^ *```\s*$", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"<!-- figure: ([\w-]+) -->")
SIZE = re.compile(r"(\d\.\d and )?\d\.\d(B| billion)|Apache-2.0")
"""What nobody measured."""
DECIMAL = re.compile(r"(?<![\w.])\d+\.\d+(?![\d.])")


def measured_part(page: str) -> str:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    if page == "README.md":
        return text.partition("## Measured results")[2].partition("\n## ")[0]
    return text.partition("## Where each was measured")[0]


def blocks(text: str) -> list[str]:
    """The rows of tables and the paragraphs."""
    found = []
    for paragraph in text.split("\n\n"):
        rows = paragraph.splitlines()
        found += rows if rows and rows[0].startswith("|") else [paragraph]
    return found


RESULT = re.compile(r"times as (fast|many)|tokens (a|per) second|reconstruct")
PARTS = [
    block for page in ("README.md", "docs/performance.md") for block in blocks(measured_part(page))
] + [
    block
    for page in PAGES
    if page.parts[0] == "docs" and "reference" not in page.parts
    for block in blocks(FENCED.sub("", (REPOSITORY / page).read_text(encoding="utf-8")))
    if RESULT.search(block)
]


def section_of(page: str, anchor: str) -> str:
    """The section with that anchor, and those below it."""
    lines: list[str] = []
    level = 0
    for line in (REPOSITORY / page).read_text(encoding="utf-8").splitlines():
        if heading := re.match(r"(#+) (.+)", line):
            depth, words = len(heading[1]), re.sub(r"[^\w\s-]", "", heading[2].lower())
            if level and depth <= level:
                break
            if not level and re.sub(r"\s+", "-", words.strip()) == anchor:
                level = depth
        if level:
            lines.append(line)
    return "\n".join(lines)


@pytest.mark.parametrize("block", [each for each in PARTS if DECIMAL.search(each)], ids=repr)
def test_every_measured_number_has_a_name(block: str) -> None:
    plain = SIZE.sub("", block)
    names = NAME.findall(block)
    shown = {number for name in names for number in FIGURES[name]["shown"]}
    assert set(DECIMAL.findall(plain)) <= shown, names


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_shown_and_follows_from_the_laboratory_s_pages(name: str) -> None:
    figure = FIGURES[name]
    pages = [(REPOSITORY / page).read_text(encoding="utf-8") for page in PAGES]
    showing = [each for page in pages for each in blocks(page) if name in NAME.findall(each)]
    assert showing
    section = section_of(figure.get("page", NOTEBOOK), figure["section"])
    for number, source in figure["shown"].items():
        assert re.search(rf"(?<![\d.]){number}(?!\d)", "\n".join(showing)), number
        terms = [term.strip() for term in source.split("/")]
        for term in terms:
            found = re.search(rf"(?<![\d.]){re.escape(term)}(?!\d)", section)
            assert found or term == "1", f"{number}: {term} is not in {figure['section']}"
        if len(terms) == 2:
            digits = len(number.partition(".")[2])
            assert f"{float(terms[0]) / float(terms[1]):.{digits}f}" == number


def test_every_name_is_in_the_file() -> None:
    pages = "".join((REPOSITORY / page).read_text(encoding="utf-8") for page in PAGES)
    assert set(NAME.findall(pages)) == set(FIGURES)


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_says_what_it_is_of(name: str) -> None:
    figure = FIGURES[name]
    assert figure["what"]
    assert figure["command"].startswith("tandem bench ")
    commits = figure["commit"].split(", ")
    assert commits == ["not recorded"] or all(re.fullmatch("[0-9a-f]{8}", c) for c in commits)
