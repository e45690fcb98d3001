"""A hook of mkdocs: shows files of the repository's root as pages of the site.

Invariant: a link between a root file and docs/ works on the site as in the repository, and so does
an image. A link to another file of the repository, which the site does not have, becomes its path.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

REPOSITORY = Path(__file__).resolve().parents[1]

ROOT_PAGES = {
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Root file: its page."""

IMAGE = re.compile(r"(!\[[^\]]*\]\()docs/([^)\s]+\))")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?://|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by mkdocs with the files of docs/."""
    for name, page in ROOT_PAGES.items():
        text = (REPOSITORY / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=site_text(text)))
    return files


def site_text(text: str) -> str:
    """A root file's text with its links and images as the site has them."""
    return LINK.sub(_site_link, IMAGE.sub(r"\1\2", text))


def _site_link(link: re.Match[str]) -> str:
    words = link[1]
    target = link[2]
    anchor = link[3] or ""
    if target in ROOT_PAGES:
        return f"[{words}]({ROOT_PAGES[target]}{anchor})"
    if target.startswith("docs/"):
        return f"[{words}]({target.removeprefix('docs/')}{anchor})"
    return words if words.strip("`") == target else f"{words} (`{target}`)"
