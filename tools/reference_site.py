"""A hook of mkdocs: the documentation's site and, below it, the laboratory's.

Invariant: a link or an image works on the site as it does in the repository. Some files outside a
site's folder are pages of it; a page of the other site is linked there; a link to any other file of
the repository becomes its path.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Site:
    """A site's folder of pages, its place below the address, and the files from elsewhere that
    it shows, each with the page that it is."""

    folder: str
    place: str
    pages: Mapping[str, str]

    def page(self, path: str) -> str | None:
        """Return the page that shows a file of the repository, None if none does."""
        below = path.removeprefix(f"{self.folder}/")
        return below if below != path else self.pages.get(path)

    def file(self, page: str) -> str:
        """Return the file of the repository that a page shows."""
        shown = {name: path for path, name in self.pages.items()}
        return shown.get(page, f"{self.folder}/{page}")

    def address(self, page: str) -> str:
        """Return the folder that a page's HTML is in, below that of the main site."""
        folder, name = posixpath.split(page.removesuffix(".md"))
        return posixpath.join(self.place, folder, "" if name == "index" else name)


MAIN = Site(
    "docs",
    "",
    {
        "ARCHITECTURE.md": "architecture.md",
        "CONTRIBUTING.md": "contributing.md",
        "CHANGELOG.md": "changelog.md",
    },
)
LABORATORY = Site("lab/docs", "lab/", {"lab/README.md": "index.md"})
SITES = (MAIN, LABORATORY)

LINK = re.compile(
    r"(?P<image>!?)\[(?P<words>[^\]]+)\]\((?!\w+:)(?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)"
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by mkdocs with the files of a site's folder."""
    for path, page in _site_of(config).pages.items():
        text = (REPOSITORY / path).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Called by mkdocs with the text of each page."""
    return site_text(markdown, _site_of(config), page.file.src_uri)


def site_text(text: str, site: Site, page: str) -> str:
    """Return a page's text with its links and images as the site has them."""
    return LINK.sub(lambda link: _site_link(link, site, page), text)


def _site_of(config: MkDocsConfig) -> Site:
    folder = Path(config.docs_dir).resolve().relative_to(REPOSITORY).as_posix()
    return next(site for site in SITES if site.folder == folder)


def _site_link(link: re.Match[str], site: Site, page: str) -> str:
    words, anchor = link["words"], link["anchor"] or ""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(site.file(page)), link["target"]))
    if (there := site.page(path)) is not None:
        target = posixpath.relpath(there, posixpath.dirname(page) or ".")
        return f"{link['image']}[{words}]({target}{anchor})"
    for other in SITES:
        if path.endswith(".md") and (there := other.page(path)) is not None:
            here, target = (place or "." for place in (site.address(page), other.address(there)))
            address = posixpath.relpath(target, here)
            # As HTML: mkdocs knows the pages of one site only.
            return f'<a href="{address}/{anchor}">{words}</a>'
    if not (REPOSITORY / path).exists():
        return link[0]
    return words if words.strip("`") == link["target"] else f"{words} (`{path}`)"
