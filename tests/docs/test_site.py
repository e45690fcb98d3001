"""The site builds without a warning, and needs no other host but for what a reader clicks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_every_page_is_built(site: Path) -> None:
    for page in ("architecture", "presets", "reference/configuration", "internals/decoding"):
        assert (site / page / "index.html").exists(), page


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|iframe|link)\b[^>]*>", page.read_text("utf-8"))
        elsewhere = [tag for tag in loaded if re.search(r'(?:src|href)="(?:https?:)?//', tag)]
        assert [tag for tag in elsewhere if "canonical" not in tag] == [], page


def test_diagrams_are_kept_for_the_browser(site: Path) -> None:
    assert (site / "architecture" / "index.html").read_text("utf-8").count('class="mermaid"') >= 6


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("[Security](docs/security.md#keys)", "[Security](security.md#keys)"),
        ("[how](ARCHITECTURE.md#rooms)", "[how](architecture.md#rooms)"),
        ("[the card](models/README.md)", "the card (`models/README.md`)"),
        ("[paper](https://arxiv.org/abs/1)", "[paper](https://arxiv.org/abs/1)"),
        ("[above](#rooms)", "[above](#rooms)"),
    ],
)
def test_links_of_root_files_work_on_the_site(written: str, shown: str) -> None:
    assert site_text(written) == shown
