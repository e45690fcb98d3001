"""The documentation site in a real Chromium that reaches no other host: diagrams and search."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, TimeoutError

from tests.page.conftest import WAIT_MS
from tests.programs import REPOSITORY

pytestmark = pytest.mark.timeout(300)


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files without a line on standard error for each."""

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def site_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    subprocess.run(build, cwd=REPOSITORY, check=True, capture_output=True)
    handler = partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def elsewhere() -> list[str]:
    """Addresses of other hosts that a page asked for; none of them answers."""
    return []


@pytest.fixture
def reader(browser: Browser, site_url: str, elsewhere: list[str]) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(WAIT_MS)

    def only_here(route: Route) -> None:
        if route.request.url.startswith((site_url, "blob:", "data:")):
            route.continue_()
        else:
            elsewhere.append(route.request.url)
            route.abort()

    context.route("**/*", only_here)
    yield context.new_page()
    context.close()


def search(reader: Page, words: str) -> Locator:
    """Return the first result. Words that reach the theme's search before it has loaded its index
    are lost, with all that follow them on that page; no person is so quick."""
    result = reader.locator(".md-search-result__link").first
    for _ in range(8):
        reader.wait_for_timeout(1000)
        reader.locator("input.md-search__input").fill(words)
        with suppress(TimeoutError):
            result.wait_for(state="attached", timeout=5000)
            return result
        reader.reload()
    raise AssertionError(f"no results for {words!r}")


@pytest.mark.parametrize(("path", "diagrams"), [("/", 1), ("/architecture/", 6)])
def test_diagrams_are_drawn_and_search_works(
    reader: Page, site_url: str, elsewhere: list[str], path: str, diagrams: int
) -> None:
    reader.goto(site_url + path)
    pictures = reader.locator("article img[src$='.svg']")
    assert pictures.count() == diagrams
    for number in range(diagrams):
        assert pictures.nth(number).evaluate("picture => picture.decode().then(() => true)")
    result = search(reader, "raspberry")
    assert "small-boards" in (result.get_attribute("href") or "")
    assert elsewhere == []


def test_a_picture_is_no_wider_than_a_phone(reader: Page, site_url: str) -> None:
    reader.set_viewport_size({"width": 390, "height": 844})
    reader.goto(f"{site_url}/architecture/")
    widths = reader.locator("article img").evaluate_all("all => all.map(each => each.clientWidth)")
    assert len(widths) == 6
    assert all(0 < width <= 390 for width in widths)
