"""What the page says: in two languages, and of errors in words that are not the API's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, FilePayload, Locator, Page, expect

from tandem.control.controller import Reason
from tandem.suite.embedded import EmbeddedSuite
from tests.page.conftest import WAIT_MS
from tests.page.person import (
    CHAT_PATH,
    QUESTION,
    answer_with,
    ask,
    choose,
    ended,
    show_tokens,
    unfold,
)
from tests.unit.index.written_pdfs import pdf

pytestmark = pytest.mark.timeout(300)

SAID = re.compile(r"""\bsay\(\s*(?:[^()"]*\? )?"([\w-]+)"(?: : "([\w-]+)")?""")
NAMED = re.compile(r'"([a-z][\w-]*)"')


def test_every_reason_of_auto_has_words(page: Page) -> None:
    english = page.evaluate("async () => (await import('/page/english.mjs')).english")
    assert {f"reason-{each}" for each in Reason} == {
        name for name in english if name.startswith("reason-")
    }


def test_every_text_is_there_in_both_languages(page: Page) -> None:
    tables = page.evaluate("async () => (await import('/page/language.mjs')).TABLES")
    assert set(tables) == {"en", "de"}
    english, german = tables["en"], tables["de"]
    assert english.keys() == german.keys()

    def values(text: object) -> set[str]:
        return set(re.findall(r"\{(\w+)\}", str(text)))

    for name, text in english.items():
        assert values(text) == values(german[name]), name
        assert isinstance(text, dict) == isinstance(german[name], dict), name
        if isinstance(text, dict):
            assert text.keys() == german[name].keys() == {"one", "other"}
    same = {name for name in english if english[name] == german[name] and len(english[name]) > 12}
    assert same == set()
    folder = files("tandem.gateway") / "page"
    tables_of = ("english.mjs", "german.mjs")
    code = "".join(
        each.read_text("utf-8")
        for each in folder.iterdir()
        if each.name.endswith(".mjs") and each.name not in tables_of
    )
    said = {name for found in SAID.findall(code) for name in found if name}
    assert said <= english.keys()
    composed = {name for name in english if name.startswith(("method-", "view-", "reason-"))}
    assert english.keys() <= set(NAMED.findall(code)) | composed | {"method", "view"}


@pytest.fixture
def german(browser: Browser, suite: EmbeddedSuite) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, locale="de-AT")
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    page.goto(suite.http_url)
    page.get_by_label("Temperatur").wait_for()
    yield page
    context.close()


def test_the_browsers_language_decides_and_can_be_changed(german: Page) -> None:
    assert german.locator("html").get_attribute("lang") == "de"
    expect(german.locator(".method b").first).to_have_text("Automatisch")
    expect(german.get_by_text("Temperatur 0,7")).to_be_visible()
    answer_with(german, "eins")
    german.get_by_label("Deine Frage").fill("Wie viel ist eins?")
    german.keyboard.press("Enter")
    answer = ended(german.locator(".answer"))
    expect(answer.get_by_text("50 Tokens/s · 100 % auf dem Gerät entworfen")).to_be_visible()
    assert re.fullmatch(r"\d+,\d\d s", answer.locator(".clock").inner_text())
    assert Axe().run(german).violations_count == 0
    german.get_by_label("Sprache").select_option("en")
    expect(german.get_by_label("Your question")).to_be_visible()
    expect(answer.get_by_text("50 tokens/s · 100 % drafted on the device")).to_be_visible()
    expect(answer.get_by_role("button", name="Answer again")).to_be_visible()
    assert german.locator("html").get_attribute("lang") == "en"
    german.reload()
    expect(german.get_by_label("Your question")).to_be_visible()


@pytest.mark.parametrize("width", [1440, 1280, 640, 390, 320])
def test_german_words_fit(german: Page, width: int) -> None:
    german.set_viewport_size({"width": width, "height": 844})
    answer_with(german, "eins\n\n```\n" + "x" * 300 + "\n```\n\n" + "y" * 300)
    german.get_by_label("Deine Frage").fill("Wie viel ist eins?" + "z" * 200)
    german.keyboard.press("Enter")
    ended(german.locator(".answer"))
    script = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert german.evaluate(script) == 0
    assert german.locator(".top").evaluate("e => e.scrollWidth - e.clientWidth") <= 0


def trouble(answer: Locator) -> Locator:
    return ended(answer).get_by_role("alert")


def test_settings_that_cannot_be_used_are_called_as_the_page_calls_them(page: Page) -> None:
    choose(page, tokens=0)
    alert = trouble(ask(page))
    expect(alert).to_contain_text("“Maximum tokens” must be at least 1.")
    expect(alert).not_to_contain_text("max_tokens")
    page.get_by_label("Maximum tokens").fill("16")
    alert.get_by_role("button", name="Try again").click()  # with what is set now
    expect(page.locator(".answer .prose")).not_to_be_empty()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_conversation_that_is_too_long_says_what_can_be_done(page: Page) -> None:
    choose(page, tokens=8)
    alert = trouble(ask(page, "how many apples are there? " * 2000))
    expect(alert).to_contain_text("is longer than the")
    expect(alert).to_contain_text("begin a new chat")
    assert not re.search(r"prompt|context holds|messages", alert.inner_text())


def test_a_question_that_is_too_long_to_search_with_says_so(page: Page) -> None:
    choose(page, "dragon-coupled", tokens=8)
    alert = trouble(ask(page, "abc " * 2500))
    expect(alert).to_contain_text("With documents a question may have 8,192 characters at most.")
    assert not re.search(r"retriever|query", alert.inner_text())


def test_a_server_that_is_gone_or_leaves_is_said_to_be(page: Page) -> None:
    page.route(CHAT_PATH, lambda route: route.abort())
    expect(trouble(ask(page))).to_contain_text("The server cannot be reached.")
    answer_with(page, "one", ends=False)
    answer = ask(page)
    expect(trouble(answer)).to_contain_text("The connection was lost before")
    expect(answer.locator(".prose")).to_have_text("one")


def test_what_is_not_known_better_is_told_as_the_server_said_it(page: Page) -> None:
    error = {"message": "verifier: pool: shard 3 is gone", "code": "internal_error"}
    page.route(CHAT_PATH, lambda route: route.fulfill(status=500, json={"error": error}))
    alert = trouble(ask(page))
    expect(alert).to_contain_text("Something went wrong in the server.")
    expect(alert.get_by_text("shard 3")).to_be_hidden()
    alert.get_by_text("What the server said").click()
    expect(alert.get_by_text("verifier: pool: shard 3 is gone")).to_be_visible()
    busy = {"message": "quota of tokens", "code": "rate_limit_exceeded"}
    page.unroute(CHAT_PATH)
    page.route(
        CHAT_PATH,
        lambda route: route.fulfill(status=429, json={"error": busy}, headers={"Retry-After": "7"}),
    )
    expect(trouble(ask(page))).to_contain_text("Try again in 7 seconds.")


def drop(page: Page, name: str, content: bytes, kind: str = "") -> Locator:
    """What the page says of a file."""
    file = FilePayload(name=name, mimeType=kind or "application/octet-stream", buffer=content)
    page.get_by_label("Drop files here").set_input_files([file])
    said = page.locator(".added li", has_text=name)
    expect(said).not_to_contain_text("is being added")
    return said


def test_the_types_of_files_are_said_and_a_pdf_is_read(page: Page) -> None:
    expect(page.get_by_text("Text, Markdown, web pages, CSV, PDF, Word")).to_be_visible()
    words = "The axolotl Xerxes lives in the green bathtub of the second floor"
    expect(drop(page, "axolotl.pdf", pdf(words), "application/pdf")).to_have_text(
        "axolotl.pdf added"
    )
    show_tokens(page)
    choose(page, "dragon-coupled", tokens=8)
    answer = ended(ask(page, "Where does the axolotl Xerxes live?"))
    expect(answer.get_by_text("of the device (axolotl.pdf")).to_be_visible()


def test_text_of_another_encoding_is_read(page: Page) -> None:
    words = "Das Känguru Öttinger wohnt im größten Gehege. " * 3
    expect(drop(page, "tier.txt", words.encode("utf-16"))).to_have_text("tier.txt added")
    show_tokens(page)
    choose(page, "dragon-coupled", tokens=8)
    answer = ended(ask(page, "Wo wohnt das Känguru Öttinger?"))
    expect(answer.get_by_text("of the device (tier.txt")).to_be_visible()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("bytes.txt", b"abc\0def", "is not a text file"),
        ("broken.pdf", b"%PDF-1.7 no more", "is damaged, or is not what its name says"),
        ("broken.docx", b"PK no archive", "is damaged, or is not what its name says"),
        ("scanned.pdf", pdf(" "), "has pages that are pictures"),
        ("photo.jpg", b"\xff\xd8\xff", "is of a type that cannot be read here"),
        ("large.txt", b"x" * 1_500_001, "is too large; 1.5 MB is the most"),
    ],
)
def test_a_file_that_is_not_taken_is_declined_plainly(
    page: Page, name: str, content: bytes, said: str
) -> None:
    refused = drop(page, name, content)
    expect(refused).to_contain_text(said)
    assert "content" not in refused.inner_text()


def test_the_largest_file_that_the_page_offers_is_taken(page: Page) -> None:
    text = b"One line of a long report about nothing.\n" * 36_000
    assert 1_400_000 < len(text) < 1_500_000
    expect(drop(page, "report.txt", text)).to_have_text("report.txt added")


def test_a_server_without_a_reader_for_a_type_is_said_to_have_none(page: Page) -> None:
    message = (
        "content: docx needs a package (No module named 'lxml'):"
        " pip install 'tandem-edge[documents]'"
    )
    page.route(
        "**/v1/tandem/documents",
        lambda route: route.fulfill(status=400, json={"error": {"message": message}}),
    )
    expect(drop(page, "letter.docx", b"PK")).to_contain_text("which has no reader for this type")


def test_nothing_is_asked_of_another_host(page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    page.get_by_label("Temperature").wait_for()
    choose(page, tokens=8)
    ended(ask(page, QUESTION))
    unfold(page, "All methods")
    host = page.url.rstrip("/")
    assert len(asked) > 20
    assert [url for url in asked if not url.startswith((host, "blob:"))] == []
