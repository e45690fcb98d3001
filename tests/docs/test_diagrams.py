"""Diagrams of the documentation are those that `tools/diagrams.py` draws, and can be read."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tests.programs import REPOSITORY
from tools.diagrams import DIAGRAMS, FOLDER
from tools.svg import START, Arrow, Box, BoxDiagram, LaneDiagram

SVG = "{http://www.w3.org/2000/svg}"
LETTER_PX = 6.0
"""Less than any label's letters take on average: what overlaps by this estimate does so for all."""


@pytest.mark.parametrize("name", DIAGRAMS)
def test_files_are_current(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == DIAGRAMS[name].svg(), "run 'make docs'"


def test_every_file_is_drawn_by_the_module() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(DIAGRAMS)


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_diagram_says_what_it_shows_and_is_for_light_and_dark(name: str) -> None:
    text = DIAGRAMS[name].svg()
    root = ElementTree.fromstring(text)
    assert len(root.findtext(f"{SVG}title") or "") > 40
    assert "prefers-color-scheme:dark" in (root.findtext(f"{SVG}style") or "")
    assert re.findall(r"(?:href|src)=", text) == []


def rectangles(root: ElementTree.Element) -> list[tuple[float, float, float, float]]:
    """Left, top, right and bottom of each text, whose letters are taken for narrow ones."""
    found = []
    for text in root.iter(f"{SVG}text"):
        width = len(text.text or "") * LETTER_PX
        x, y = float(text.attrib["x"]), float(text.attrib["y"])
        left = x - width / 2 if text.attrib["text-anchor"] == "middle" else x
        found.append((left, y - 10, left + width, y + 2))
    return found


@pytest.mark.parametrize("name", DIAGRAMS)
def test_no_text_covers_another_or_leaves_the_page(name: str) -> None:
    root = ElementTree.fromstring(DIAGRAMS[name].svg())
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    texts = rectangles(root)
    for place, (left, top, right, bottom) in enumerate(texts):
        assert left >= 0 <= top
        assert right <= width
        assert bottom <= height
        for other in texts[place + 1 :]:
            apart = right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
            assert apart, (name, texts[place], other)


def test_labels_are_escaped_and_arrows_end_at_their_boxes() -> None:
    boxes = (Box("a", ("a < b",), 60, 40), Box("b", ("b",), 300, 40))
    drawn = BoxDiagram("two", boxes, (Arrow("a", "b", "x & y"),)).svg()
    assert "a &lt; b" in drawn
    assert "x &amp; y" in drawn
    (head,) = ElementTree.fromstring(drawn).findall(f"{SVG}polygon")
    point = head.attrib["points"].split()[0]
    assert float(point.split(",")[0]) == pytest.approx(300 - boxes[1].half_width - 1, abs=0.1)


def test_lanes_stand_apart_far_enough_for_their_labels() -> None:
    def gap(label: str) -> float:
        arrows = (Arrow(START, "a"), Arrow("a", "b", label))
        root = ElementTree.fromstring(LaneDiagram("lanes", ("a", "b"), arrows).svg())
        lanes = [
            float(e.attrib["x1"]) for e in root.iter(f"{SVG}line") if "lane" in e.attrib["class"]
        ]
        return lanes[1] - lanes[0]

    assert gap("a long label that needs its room") > gap("short")


def test_pages_show_every_diagram() -> None:
    pages = [REPOSITORY / "README.md", REPOSITORY / "ARCHITECTURE.md"]
    pages += (REPOSITORY / "docs").glob("**/*.md")
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    assert set(re.findall(r"!\[[^\]]+\]\((?:docs/)?diagrams/([\w-]+\.svg)\)", text)) == set(
        DIAGRAMS
    )
