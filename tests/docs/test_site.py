"""The site builds without a warning, and loads nothing from another host."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.long_runs import LONG
from tests.programs import REPOSITORY
from tools.reference_site import site_text


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


@LONG  # `make docs` builds it, as strictly
def test_every_page_is_built(site: Path) -> None:
    for page in ("architecture", "presets", "reference/configuration", "internals/decoding"):
        assert (site / page / "index.html").exists(), page


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
    ("written", "shown"),
    [
        ("[Security](docs/security.md#keys)", "[Security](security.md#keys)"),
        ("[how](ARCHITECTURE.md#rooms)", "[how](architecture.md#rooms)"),
        ("[the card](models/README.md)", "the card (`models/README.md`)"),
        ("[paper](https://arxiv.org/abs/1)", "[paper](https://arxiv.org/abs/1)"),
        ("[above](#rooms)", "[above](#rooms)"),
        ("![a round](docs/diagrams/a.svg)", "![a round](diagrams/a.svg)"),
    ],
)
def test_links_and_images_of_root_files_work_on_the_site(written: str, shown: str) -> None:
    assert site_text(written) == shown
