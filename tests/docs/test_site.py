"""The site builds without a warning, and loads nothing from another host."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.long_runs import LONG
from tests.programs import REPOSITORY
from tools.reference_site import LABORATORY, MAIN, Site, site_text


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both sites, the laboratory's below the main one."""
    folder = tmp_path_factory.mktemp("site")
    for config, place in (("mkdocs.yml", folder), ("lab/mkdocs.yml", folder / "lab")):
        build = ("build", "--strict", "--config-file", config, "--site-dir", str(place))
        done = subprocess.run(
            [sys.executable, "-m", "mkdocs", *build],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    return folder


@LONG  # `make docs` builds it, as strictly
def test_every_page_is_built(site: Path) -> None:
    for page in ("architecture", "presets", "reference/configuration", "lab", "lab/papers/dssd"):
        assert (site / page / "index.html").exists(), page


@LONG
def test_links_between_the_sites_lead_to_pages(site: Path) -> None:
    found = 0
    for page in site.rglob("index.html"):
        for address, anchor in LEADS_ON.findall(page.read_text("utf-8")):
            there = (page.parent / address / "index.html").resolve()
            assert there.is_file(), f"{page}: {address}"
            assert not anchor or f'id="{anchor}"' in there.read_text("utf-8"), address
            found += ("lab" in page.relative_to(site).parts) != ("lab" in there.parts)
    assert found > 10


LEADS_ON = re.compile(r'<a href="((?:\.\./)*[\w/-]*/)(?:#([\w-]+))?">')


LOADED = re.compile(
    r"""<(?:script|img|source|iframe|embed|video|audio|object|input)\b[^>]*?
        \s(?:src|srcset|data|poster)\s*=\s*["']?\s*(?:https?:)?//
      | <link\b(?![^>]*\brel=["']?canonical)[^>]*?\shref\s*=\s*["']?\s*(?:https?:)?//
      | @import\s*(?:url\()?\s*["']?\s*(?:https?:)?//
      | url\(\s*["']?\s*(?:https?:)?//
      | <(?:image|use)\b[^>]*?href\s*=\s*["']?\s*(?:https?:)?//
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""Scripts, styles, fonts, images and frames that a browser would get from another host."""


@LONG
def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    files = [path for kind in ("html", "css", "svg") for path in site.rglob(f"*.{kind}")]
    assert {path.suffix for path in files} == {".html", ".css", ".svg"}
    found = {path: LOADED.findall(path.read_text("utf-8")) for path in files}
    assert {str(path): tags for path, tags in found.items() if tags} == {}


@pytest.mark.parametrize(
    ("text", "elsewhere"),
    [
        ('<script src="https://unpkg.com/mermaid.js">', True),
        ("<img alt='x' src=//example.com/x.png>", True),
        ('<link rel="stylesheet" href="https://fonts.example.com/css">', True),
        ("@font-face{src:url(https://fonts.example.com/a.woff2)}", True),
        ('@import "https://example.com/a.css"', True),
        ('<link rel="canonical" href="https://example.com/">', False),
        ('<a href="https://arxiv.org/abs/1">paper</a>', False),
        ('<img src="../diagrams/overview.svg">', False),
        ('<svg xmlns="http://www.w3.org/2000/svg">', False),
    ],
)
def test_what_is_loaded_is_told_from_what_a_reader_clicks(text: str, elsewhere: bool) -> None:
    assert bool(LOADED.search(text)) is elsewhere


@LONG
def test_no_page_needs_a_script_to_draw_its_diagrams(site: Path) -> None:
    """Where a page has a block of Mermaid, the theme fetches the drawing script from another host,
    and search waits for it."""
    pages = {page: page.read_text("utf-8") for page in site.rglob("*.html")}
    assert [page for page, text in pages.items() if 'class="mermaid"' in text] == []
    shown = re.findall(r'<img alt="[^"]+" src="([^"]+\.svg)"', pages[site / "index.html"])
    assert [(site / name).is_file() for name in shown] == [True]
    shown = re.findall(
        r'<img alt="[^"]+" src="([^"]+\.svg)"', pages[site / "architecture" / "index.html"]
    )
    assert [(site / "architecture" / name).is_file() for name in shown] == 6 * [True]


@pytest.mark.parametrize(
    ("site", "page", "written", "shown"),
    [
        (MAIN, "architecture.md", "[how](docs/usage.md#up)", "[how](usage.md#up)"),
        (MAIN, "architecture.md", "[x](CHANGELOG.md)", "[x](changelog.md)"),
        (MAIN, "architecture.md", "![a](docs/diagrams/a.svg)", "![a](diagrams/a.svg)"),
        (MAIN, "architecture.md", "[y](models/README.md)", "y (`models/README.md`)"),
        (MAIN, "usage.md", "[rooms](../ARCHITECTURE.md#rooms)", "[rooms](architecture.md#rooms)"),
        (MAIN, "recipes/vllm.md", "[how](../usage.md)", "[how](../usage.md)"),
        (MAIN, "usage.md", "[z](https://arxiv.org/abs/1)", "[z](https://arxiv.org/abs/1)"),
        (MAIN, "usage.md", "[above](#rooms)", "[above](#rooms)"),
        (MAIN, "usage.md", "[gone](gone.md)", "[gone](gone.md)"),
        (
            MAIN,
            "recipes/vllm.md",
            "[F](../../lab/docs/papers/fsd.md#a)",
            '<a href="../../lab/papers/fsd/#a">F</a>',
        ),
        (MAIN, "index.md", "[n](../lab/docs/notebook.md)", '<a href="lab/notebook/">n</a>'),
        (LABORATORY, "index.md", "[notes](docs/notebook.md)", "[notes](notebook.md)"),
        (LABORATORY, "index.md", "[pays](../docs/usage.md)", '<a href="../usage/">pays</a>'),
        (LABORATORY, "index.md", "[home](../docs/index.md)", '<a href="../">home</a>'),
        (LABORATORY, "papers/fsd.md", "[all](../../README.md)", "[all](../index.md)"),
    ],
)
def test_links_and_images_work_on_the_site(site: Site, page: str, written: str, shown: str) -> None:
    assert site_text(written, site, page) == shown
