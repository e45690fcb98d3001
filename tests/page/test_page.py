"""The web page in a real Chromium, against the demo suite: what a person sees and does."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, Route, expect

from tandem.net.access_keys import KEY_BYTES, key_line, new_key
from tandem.net.scopes import Scope
from tandem.suite.background import LoopThread
from tandem.suite.embedded import EmbeddedSuite
from tandem.suite.suite_documents import demo_documents
from tests.gateway.http_suite import http_suite
from tests.page.conftest import WAIT_MS, new_pair
from tests.page.person import (
    PICTURED,
    ask,
    choose,
    chunks_of,
    ended,
    picture,
    show_text,
    show_tokens,
    text_of,
    unfold,
)

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("in_tokens")]

KEY = new_key(bytes([9]) * KEY_BYTES)


@pytest.mark.parametrize("preset", ["coupled", "dssd"])
def test_tokens_come_as_a_stream_and_are_coloured_by_who_made_them(page: Page, preset: str) -> None:
    choose(page, preset)
    with page.expect_response("**/v1/chat/completions") as answering:
        answer = ask(page)
        expect(page.locator(".answer[aria-busy=true] .token").first).to_be_visible()
    ended(answer)
    told = chunks_of(answering.value)
    made = [each for chunk in told for each in chunk.get("tandem", {}).get("provenance", [])]
    shown = answer.locator(".tokens .token")
    kinds = shown.evaluate_all("all => all.map(each => each.className)")
    assert kinds == [f"token {each['source']}" for each in made]
    assert {"draft", "target"} <= {each["source"] for each in made}
    assert shown.all_text_contents() == [each["text"] for each in made]
    assert text_of(answer) == "".join(chunk["delta"].get("content", "") for chunk in told)
    rounds = [each for chunk in told for each in chunk.get("tandem", {}).get("rounds_ended", [])]
    assert answer.get_by_text(f"Rounds: {len(rounds)}").is_visible()
    assert len(rounds) == told[-1]["tandem"]["rounds"]
    assert sum(each["accepted"] for each in rounds) == told[-1]["tandem"]["accepted"]
    drafted = answer.locator(".legend li", has_text="accepted draft").locator("b")
    assert int(drafted.inner_text()) == sum(each["source"] == "draft" for each in made)


def test_a_token_tells_its_probability_to_pointer_and_keys(
    page: Page, pictures: Path | None
) -> None:
    choose(page, temperature=1 if pictures is None else 0.7)
    answer = ended(ask(page, PICTURED))
    card = page.locator(".looked-at")
    expect(card).to_have_count(0)
    answer.get_by_role("listbox").focus()
    page.keyboard.press("ArrowRight")
    tokens = answer.get_by_role("option")
    expect(tokens.nth(1)).to_have_attribute("aria-selected", "true")
    expect(answer.get_by_role("listbox")).to_have_attribute(
        "aria-activedescendant", str(tokens.nth(1).get_attribute("id"))
    )
    label = str(tokens.nth(1).get_attribute("aria-label"))
    assert re.fullmatch(r"“.*”, (accepted draft|target’s own token), [\d.]+ %", label)
    expect(card.locator(".spelt span")).to_have_text(label.rsplit(", ", 1)[1])
    assert card.locator(".alternatives li").count() == 5
    page.keyboard.press("Escape")
    expect(card).to_have_count(0)
    tokens.nth(4).hover()
    expect(card).to_be_visible()
    picture(page, pictures, "page-token")


def test_the_cloud_alone_gives_the_same_text_beside_it(page: Page, pictures: Path | None) -> None:
    choose(page, temperature=1 if pictures is None else 0.7)
    answer = ended(ask(page, PICTURED))
    picture(page, pictures, "page")
    page.get_by_role("button", name="Compare with the large model alone").click()
    other = page.locator(".answer").nth(1)
    expect(other.get_by_role("heading")).to_have_text("ar: the large model alone")
    ended(other)
    expect(answer.get_by_text("The texts are the same.")).to_be_visible()
    assert text_of(answer) == text_of(other)
    assert all(float(each[:-2]) > 0 for each in page.locator(".clock").all_text_contents())
    show_text(page)
    expect(answer.get_by_text("× as fast")).to_be_visible()
    picture(page, pictures, "page-compared")


def test_a_model_that_recommends_no_temperature_begins_below_1(page: Page) -> None:
    assert page.get_by_label("Temperature").input_value() == "0.7"


def test_a_toy_is_called_one_where_it_answers(page: Page) -> None:
    expect(page.get_by_role("note")).to_have_text(re.compile("^A toy of 8 million parameters"))

    def renamed(route: Route) -> None:
        fetched = route.fetch()
        route.fulfill(response=fetched, body=fetched.text().replace("demo-target", "qwen"))

    page.route("**/v1/models", renamed)
    page.reload()
    expect(page.locator(".pair")).to_contain_text("qwen")
    expect(page.get_by_role("note")).to_have_count(0)


def test_auto_is_chosen_first_and_says_what_it_chose(page: Page) -> None:
    unfold(page, "More settings")
    assert page.get_by_label("Preset").input_value() == "auto"
    answer = ended(ask(page))
    expect(answer.get_by_text("auto chose")).to_be_visible()


@pytest.mark.parametrize("preset", ["dssd", "fsd"])
def test_presets_whose_edge_draws_tell_probabilities_too(page: Page, preset: str) -> None:
    choose(page, preset, tokens=16)
    answer = ended(ask(page))
    label = str(answer.get_by_role("option").nth(1).get_attribute("aria-label"))
    assert re.search(r", [\d.]+ %$", label)


def test_what_grows_stays_in_view_until_the_person_goes_up(page: Page) -> None:
    choose(page, tokens=48)
    for _ in range(2):
        answer = ended(ask(page))
    assert answer.locator(".figures").evaluate("e => e.getBoundingClientRect().bottom") < 900
    choose(page, tokens=800, temperature=2)  # nonsense does not end by itself
    answer = ask(page)
    expect(answer.locator(".token").nth(3)).to_be_visible()
    page.evaluate("scrollTo(0, 0)")
    before = answer.locator(".token").count()
    expect(answer.locator(".token").nth(before + 8)).to_be_attached()
    assert page.evaluate("scrollY") == 0
    page.get_by_role("button", name="Stop").click()
    expect(answer.get_by_text("Stopped.")).to_be_visible()


def test_stop_cancels_the_answer_on_every_service(page: Page, suite: EmbeddedSuite) -> None:
    choose(page, tokens=800, temperature=2)  # nonsense does not end by itself
    answer = ask(page)
    expect(answer.locator(".token").nth(3)).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(answer.get_by_text("Stopped.")).to_be_visible()
    shown = text_of(answer)
    until = time.monotonic() + WAIT_MS / 1e3
    while suite.open_requests:
        assert time.monotonic() < until
        page.wait_for_timeout(20)
    assert text_of(answer) == shown
    assert answer.locator(".figures").count() == 0
    choose(page, tokens=4)
    ended(ask(page, "And now?"))


def test_a_cut_link_is_seen_and_the_answer_resumes_as_if_nothing_had_been(
    page: Page, suite: EmbeddedSuite, thread: LoopThread
) -> None:
    async def cut(is_cut: bool) -> None:
        link = suite.emulator
        assert link is not None
        link.cut() if is_cut else link.restore()

    choose(page, tokens=200, temperature=2)  # nonsense does not end by itself
    whole = text_of(ended(ask(page)))
    page.get_by_role("button", name="New chat").click()
    choose(page, tokens=200, temperature=2)
    answer = ask(page)
    expect(answer.locator(".token").nth(3)).to_be_visible()
    thread.run(cut(True))
    expect(answer.get_by_text("Nothing new for")).to_be_visible()
    page.wait_for_timeout(3000)  # the edge, too, finds the link dead, and opens others
    thread.run(cut(False))
    expect(answer.locator(".round.resumed")).to_have_count(1)
    ended(answer)
    expect(answer.get_by_text("the answer resumed")).to_be_visible()
    assert text_of(answer) == whole


@pytest.fixture(scope="module")
def of_documents(pytestconfig: pytest.Config, suite: EmbeddedSuite) -> Iterator[str]:
    """A server whose device answers from documents; a real pair's draft cannot."""
    if not pytestconfig.getoption("--real-pair"):
        yield suite.http_url
        return
    pair = new_pair(pytestconfig, answers=True)
    documents = demo_documents(embedding="lexical")
    thread, serving = LoopThread("documents"), EmbeddedSuite(pair, http=True, documents=documents)
    thread.enter(serving)
    yield serving.http_url
    thread.leave(serving)


def test_documents_of_two_sides_have_their_colours(
    page: Page, of_documents: str, pictures: Path | None
) -> None:
    page.goto(of_documents)
    show_tokens(page)
    choose(page, "dragon-coupled", tokens=48, temperature=1 if pictures is None else 0)
    with page.expect_response("**/v1/chat/completions") as answering:
        answer = ask(page, "How long is the Python 3.X series maintained?")
    ended(answer)
    chunks = chunks_of(answering.value)
    made = [each for chunk in chunks for each in chunk.get("tandem", {}).get("provenance", [])]
    shown = answer.locator(".tokens .token")
    assert shown.all_text_contents() == [each["text"] for each in made]
    assert text_of(answer) == "".join(chunk["delta"].get("content", "") for chunk in chunks)
    kinds = answer.locator(".tokens .token").evaluate_all("all => all.map(e => e.className)")
    assert {"device", "cloud", "both"} & {each.split()[1] for each in kinds}
    expect(answer.get_by_text("What left the device")).to_be_visible()
    picture(page, pictures, "page-documents")


@pytest.fixture(scope="module")
def with_keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Another server, which asks for keys."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(key_line("ann", KEY, {Scope.GENERATE}))
    thread, serving = LoopThread("keys"), http_suite(key=KEY, http_keys_file=keys)
    thread.start()
    yield thread.run(serving.__aenter__()).url
    thread.run(serving.__aexit__(None, None, None))
    thread.stop()


def test_a_key_is_asked_for_and_kept_for_the_tab(page: Page, with_keys: str) -> None:
    page.goto(with_keys)
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    expect(dialog.get_by_role("alert")).to_be_empty()  # nobody has given a key yet
    assert Axe().run(page).violations_count == 0
    dialog.get_by_role("textbox").fill("wrong")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_have_text("The server does not know this key.")
    dialog.get_by_role("textbox").fill(KEY)
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    show_tokens(page)
    choose(page, tokens=8)
    ended(ask(page))
    assert text_of(page.locator(".answer")) != ""
    page.reload()
    page.get_by_label("Preset").wait_for()
    expect(dialog).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(page: Page, scheme: str, pictures: Path | None) -> None:
    """On the empty page, with an answer, with a token looked at, with two answers."""
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")

    def found() -> str:
        report = Axe().run(page)
        return str(report.generate_report()) if report.violations_count else ""

    assert found() == ""
    choose(page, temperature=1 if pictures is None else 0.7)
    answer = ended(ask(page, PICTURED))
    answer.get_by_role("option").nth(2).hover()
    if scheme == "dark":
        picture(page, pictures, "page-dark")
    assert found() == ""
    page.get_by_role("button", name="Compare with the large model alone").click()
    ended(page.locator(".answer").nth(1))
    assert found() == ""


@pytest.mark.parametrize(("width", "height"), [(640, 450), (390, 844), (320, 640)])
def test_narrow_and_magnified_pages_need_no_sideways_scrolling(
    page: Page, width: int, height: int, pictures: Path | None
) -> None:
    """640 pixels are 1280 at 200 %."""

    def overflow() -> int:
        script = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        return int(page.evaluate(script))

    page.set_viewport_size({"width": width, "height": height})
    assert overflow() == 0
    page.get_by_role("button", name="Settings").click()
    choose(page, temperature=1 if pictures is None else 0.7)
    assert overflow() == 0
    page.get_by_role("button", name="Close").click()
    expect(page.locator("dialog[open]")).to_have_count(0)  # nothing can be typed behind one
    answer = ended(ask(page, PICTURED))
    page.get_by_role("button", name="Compare with the large model alone").click()
    ended(page.locator(".answer").nth(1))
    answer.get_by_role("option").nth(1).hover()
    assert overflow() == 0
    if width == 390 and pictures is not None:
        expect(page.get_by_role("button", name="Ask", exact=True)).to_be_visible()  # all turns over
        answer.get_by_role("option").nth(1).hover()
        picture(page, pictures, "page-narrow")


def test_everything_can_be_reached_by_the_tab_key(page: Page) -> None:
    choose(page, tokens=16)
    ended(ask(page))
    reached = set()
    page.locator("body").click(position={"x": 2, "y": 2})
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.textContent.trim().slice(0, 12)"))
        reached.add(page.evaluate("document.activeElement.getAttribute('role') ?? ''"))
    names = {"New chat", "Markdown", "Edit", "listbox", "Copy", "Answer again", "Compare with"}
    assert names | {"All methods"} <= {each.strip() for each in reached}
