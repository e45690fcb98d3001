"""The demo suite over an emulated link, and a real Chromium that looks at its page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tandem.netem.link_model import shape_from
from tandem.suite.background import LoopThread
from tandem.suite.embedded import EmbeddedSuite
from tandem.suite.models import ModelPair, choose_model, demo_source, load_pair
from tandem.suite.suite_documents import demo_documents
from tests.page.person import show_tokens

RTT_MS = 40
WAIT_MS = 60_000
"""Longest that anything may take on a busy machine."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pictures", type=Path, help="folder that screenshots are written to")
    parser.addoption(
        "--real-pair", action="store_true", help="ask the pair of `make real-pair`, for pictures"
    )


@pytest.fixture
def pictures(pytestconfig: pytest.Config) -> Path | None:
    folder: Path | None = pytestconfig.getoption("--pictures")
    return folder


@pytest.fixture(autouse=True)
def patience() -> None:
    expect.set_options(timeout=WAIT_MS)


def new_pair(config: pytest.Config, *, answers: bool = False) -> ModelPair:
    """A pair for one suite, which uses it alone. `answers`: the device's model is one that can
    answer from documents, if the models are real ones."""
    real = Path("models/real") if config.getoption("--real-pair") else None
    names = ("smollm2" if answers else "smollm2-draft", "smollm2")
    demo = ("demo-draft", "demo-target")
    folders = [real / name for name in names] if real else map(demo_source, demo)
    return load_pair(*(choose_model(str(folder), dtype="float32") for folder in folders))


@pytest.fixture(scope="session")
def thread() -> LoopThread:
    """Where `suite` runs."""
    return LoopThread("page")


@pytest.fixture(scope="session")
def suite(pytestconfig: pytest.Config, thread: LoopThread) -> Iterator[EmbeddedSuite]:
    documents = demo_documents(embedding="lexical")
    link = shape_from(RTT_MS / 1e3, 20.0)
    serving = EmbeddedSuite(new_pair(pytestconfig), link=link, http=True, documents=documents)
    thread.enter(serving)
    yield serving
    thread.leave(serving)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program is not None, "needs Chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser, suite: EmbeddedSuite) -> Iterator[Page]:
    """Freshly loaded, and without a complaint of the browser at the end."""
    context = browser.new_context(viewport={"width": 1366, "height": 900})
    context.set_default_timeout(WAIT_MS)
    shown = context.new_page()
    said: list[str] = []

    def note(message: ConsoleMessage) -> None:
        """A refused request is the page's to explain; the browser notes it too."""
        if "Failed to load resource" not in message.text:
            said.append(message.text)

    shown.on("console", note)
    shown.on("pageerror", lambda error: said.append(str(error)))
    shown.goto(suite.http_url)
    shown.get_by_label("Preset").wait_for(state="attached")
    yield shown
    context.close()
    assert said == []


@pytest.fixture
def in_tokens(page: Page) -> None:
    """Answers are shown as tokens, with all figures."""
    show_tokens(page)
