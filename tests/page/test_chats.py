"""The page as a chat that stays open: asking again, chats that the browser keeps, files of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, Route, expect

from tests.page.person import (
    CHAT_PATH,
    PICTURED,
    QUESTION,
    answer_with,
    ask,
    choose,
    ended,
    picture,
    show_tokens,
    stream_of,
    text_of,
    unfold,
)

pytestmark = pytest.mark.timeout(300)


def chats(page: Page) -> Locator:
    return page.locator(".chats .chat span")


def new_chat(page: Page) -> None:
    page.get_by_role("button", name="New chat").click()


def test_escape_stops_an_answer(page: Page) -> None:
    show_tokens(page)
    choose(page, tokens=800, temperature=2)  # nonsense does not end by itself
    answer = ask(page)
    expect(answer.locator(".token").nth(3)).to_be_visible()
    # In the tokens the first press closes the card of one.
    answer.get_by_role("listbox").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".looked-at")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".looked-at")).to_have_count(0)
    expect(answer).to_have_attribute("aria-busy", "true")
    page.keyboard.press("Escape")
    expect(answer.get_by_text("Stopped.")).to_be_visible()
    page.get_by_label("Your question").focus()
    choose(page, tokens=4)
    ended(ask(page, "And now?"))


def test_a_question_is_changed_and_asked_again(page: Page) -> None:
    asked = answer_with(page, "one")
    ended(ask(page, "First?"))
    ended(ask(page, "Second?"))
    ended(ask(page, "Third?"))
    expect(page.locator(".question")).to_have_count(3)
    page.get_by_role("button", name="Edit").nth(1).click()
    field = page.get_by_label("Edit the question")
    expect(field).to_be_focused()
    field.fill("never mind")
    page.keyboard.press("Escape")
    assert page.locator(".question").all_text_contents() == ["First?", "Second?", "Third?"]
    expect(page.get_by_role("button", name="Edit").nth(1)).to_be_focused()
    page.keyboard.press("Enter")
    field.fill("Second, in other words?")
    page.keyboard.press("Enter")
    expect(page.locator(".question")).to_have_count(2)
    ended(page.locator(".answer").nth(1))
    expect(page.locator(".question")).to_have_text(["First?", "Second, in other words?"])
    assert asked[-1]["messages"] == [
        {"role": "user", "content": "First?"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "Second, in other words?"},
    ]


def test_the_last_answer_is_given_again_with_another_seed(page: Page) -> None:
    asked = answer_with(page, "one")
    ended(ask(page, "First?"))
    ended(ask(page, "Second?"))
    again = page.get_by_role("button", name="Answer again")
    expect(again).to_have_count(1)
    answer_with(page, "two")
    again.click()
    expect(page.locator(".prose").nth(1)).to_have_text("two")
    expect(page.locator(".answer")).to_have_count(2)
    seeds = {each["seed"] for each in asked}
    assert len(seeds) == 2
    header = page.locator(".answer header").nth(1)
    assert "seed" not in header.inner_text(), "nobody asked for one"
    unfold(page, "More settings")
    page.get_by_label("Seed").fill("7")
    page.get_by_role("button", name="Answer again").click()
    expect(page.locator(".answer header").nth(1)).to_contain_text("seed 7")


def test_chats_are_kept_opened_and_deleted(page: Page) -> None:
    choose(page, tokens=16)
    first = ended(ask(page)).locator(".prose").inner_text()
    new_chat(page)
    expect(page.locator(".answer")).to_have_count(0)
    expect(page.get_by_label("Your question")).to_be_focused()
    answer_with(page, "**Two**")
    ended(ask(page, "A second chat?"))
    assert chats(page).all_text_contents() == ["A second chat?", QUESTION]
    page.reload()  # the chat of this tab is there again
    expect(page.locator(".prose strong")).to_have_text("Two")
    assert page.title() == "A second chat? – Tandem"
    chats(page).nth(1).click()
    expect(page.locator(".prose")).to_have_text(first)
    show_tokens(page)
    expect(page.locator(".tokens .token").first).to_be_visible()
    assert text_of(page.locator(".answer")).strip() == first.strip()
    assert Axe().run(page).violations_count == 0
    # What goes on with it has what was said.
    asked = answer_with(page, "Yes.")
    ended(ask(page, "Sure?"))
    assert [each["role"] for each in asked[0]["messages"]] == ["user", "assistant", "user"]
    assert chats(page).all_text_contents() == [QUESTION, "A second chat?"]
    page.get_by_role("button", name=f"Delete the chat “{QUESTION}”").click()
    expect(chats(page)).to_have_text(["A second chat?"])
    expect(page.locator(".answer")).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(chats(page)).to_have_text([QUESTION, "A second chat?"])
    chats(page).first.click()
    expect(page.locator(".answer")).to_have_count(2)
    page.get_by_role("button", name="Delete all chats").click()
    expect(chats(page)).to_have_count(2)  # it asks back
    page.get_by_role("button", name="Really delete all?").click()
    expect(chats(page)).to_have_count(0)
    page.reload()
    expect(page.get_by_text("Ask something, and see")).to_be_visible()
    assert page.evaluate("Object.keys(localStorage).filter(k => k.startsWith('tandem.chat'))") == []


def test_an_answer_that_a_reload_cut_short_is_there_as_stopped(page: Page) -> None:
    choose(page, tokens=800, temperature=2)
    answer = ask(page)
    expect(answer.locator(".shares i").nth(2)).to_be_attached()
    page.reload()
    expect(page.locator(".answer").get_by_text("Stopped.")).to_be_visible()
    assert page.locator(".prose").inner_text() != ""


def test_another_chat_stops_the_answer_of_the_one_that_is_left(page: Page) -> None:
    choose(page, tokens=8)
    ended(ask(page, "Before?"))
    new_chat(page)
    expect(page.locator(".answer")).to_have_count(0)
    choose(page, tokens=800, temperature=2)
    answer = ask(page)
    expect(answer.locator(".shares i").nth(2)).to_be_attached()
    chats(page).nth(1).click()
    expect(page.locator(".question")).to_have_text("Before?")
    expect(page.get_by_role("button", name="Ask", exact=True)).to_be_visible()
    assert chats(page).all_text_contents() == [QUESTION, "Before?"]  # opened is not changed
    chats(page).first.click()
    expect(page.locator(".answer").get_by_text("Stopped.")).to_be_visible()


def test_two_tabs_see_each_others_chats(page: Page) -> None:
    other = page.context.new_page()
    other.goto(page.url)
    other.get_by_role("button", name="New chat").wait_for()
    answer_with(page, "one")
    ended(ask(page, "From the first tab?"))
    expect(chats(other)).to_have_text(["From the first tab?"])
    expect(other.locator(".answer")).to_have_count(0)
    other.close()


KEEP_MANY = """async ([count, characters]) => {
    const { keepChat, listedChats } = await import("/page/chats.mjs");
    const { newAnswer } = await import("/page/conversation.mjs");
    const kept = [];
    for (let index = 0; index < count; index += 1) {
        const text = "x".repeat(characters);
        const answer = { ...newAnswer(index, "ar", 1), state: "done", text };
        const turn = { id: index, question: `Question ${index}`, chosen: {}, answers: [answer] };
        kept.push(keepChat({ id: `chat-${index}`, turns: [turn] }));
        await new Promise((soon) => setTimeout(soon, 2)); // another time to be sorted by
    }
    return [kept.every(Boolean), listedChats().map((each) => each.title)];
}"""


@pytest.mark.parametrize(("count", "characters", "left"), [(53, 10, 50), (9, 900_000, 4)])
def test_the_newest_chats_are_kept(page: Page, count: int, characters: int, left: int) -> None:
    kept, titles = page.evaluate(KEEP_MANY, [count, characters])
    assert kept
    assert titles == [f"Question {index}" for index in range(count - 1, count - 1 - left, -1)]


def fill_storage(page: Page, but: int) -> None:
    """Leave room for so many characters, as other pages of this host might."""
    page.evaluate(
        """but => {
            let size = 2 ** 22;
            for (let number = 0; size >= 1; ) {
                try { localStorage.setItem(`other${number}`, "x".repeat(size)); number += 1; }
                catch { size = Math.floor(size / 2); }
            }
            for (let number = 0; but > 0; number += 1) {
                const key = Object.keys(localStorage)
                    .filter((each) => each.startsWith("other"))
                    .sort((one, other) => localStorage[one].length - localStorage[other].length)[0];
                but -= localStorage[key].length;
                localStorage.removeItem(key);
            }
        }""",
        but,
    )


def test_a_full_browser_forgets_the_oldest_chat_and_says_when_it_can_keep_none(page: Page) -> None:
    answer_with(page, "x" * 3000)
    ended(ask(page, "Old?"))
    new_chat(page)
    fill_storage(page, 100)
    ended(ask(page, "New?"))
    expect(chats(page)).to_have_text(["New?"])
    expect(page.get_by_text("This browser has no room")).to_have_count(0)
    answer_with(page, "y" * 30_000)
    ended(ask(page, "Far more?"))
    expect(page.get_by_text("This browser has no room")).to_be_visible()
    expect(page.locator(".answer")).to_have_count(2)
    page.evaluate("localStorage.clear()")
    answer_with(page, "z")
    ended(ask(page, "Again?"))
    expect(page.get_by_text("This browser has no room")).to_have_count(0)
    expect(chats(page)).to_have_text(["New?"])


def test_what_is_kept_but_cannot_be_read_is_passed_over(page: Page) -> None:
    answer_with(page, "one")
    ended(ask(page, "Good?"))
    broken = ["", "{", "[]", "null", '{"version": 99, "title": "x", "turns": []}']
    page.evaluate(
        "all => all.forEach((each, index) => localStorage.setItem(`tandem.chat.${index}`, each))",
        broken,
    )
    half = '{"version": 1, "title": "Half", "savedMs": 1, "turns": [{"question": "x"}]}'
    page.evaluate("half => localStorage.setItem('tandem.chat.half', half)", half)
    page.evaluate("localStorage.setItem('tandem.settings', '[1')")
    page.evaluate("sessionStorage.setItem('tandem.open-chat', 'half')")
    page.reload()
    expect(chats(page)).to_have_text(["Good?", "Half"])
    expect(page.locator(".answer")).to_have_count(0)
    chats(page).nth(1).click()
    expect(page.locator(".answer")).to_have_count(0)
    chats(page).first.click()
    expect(page.locator(".prose")).to_have_text("one")


def test_the_system_prompt_comes_first_and_settings_are_kept(page: Page) -> None:
    asked = answer_with(page, "one")
    choose(page, tokens=33, temperature=0.3)
    page.get_by_label("System prompt").fill("Answer in one word.")
    ended(ask(page, "First?"))
    ended(ask(page, "Second?"))
    for body in asked:
        assert body["messages"][0] == {"role": "system", "content": "Answer in one word."}
        assert [each["role"] for each in body["messages"]].count("system") == 1
    page.reload()
    expect(page.get_by_label("System prompt")).to_have_value("Answer in one word.")
    assert page.get_by_label("Temperature").input_value() == "0.3"
    assert page.get_by_label("Maximum tokens").input_value() == "33"
    assert page.get_by_label("Seed").input_value() == ""
    kept = json.loads(page.evaluate("localStorage.getItem('tandem.settings')"))
    assert "lostCloud" not in kept  # which nobody chose
    page.get_by_label("System prompt").fill("")
    new_chat(page)
    asked = answer_with(page, "one")
    ended(ask(page, "First?"))
    assert [each["role"] for each in asked[0]["messages"]] == ["user"]


def saved(page: Page, kind: str) -> tuple[str, str]:
    """Name and text of the file that the browser saves."""
    with page.expect_download() as saving:
        page.get_by_role("button", name=kind, exact=True).click()
    return saving.value.suggested_filename, saving.value.path().read_text("utf-8")


def test_a_chat_is_saved_as_a_file(page: Page) -> None:
    expect(page.get_by_role("button", name="JSON", exact=True)).to_have_count(0)
    page.get_by_label("System prompt").fill("Be brief.")
    choose(page, tokens=8)
    said = ended(ask(page)).locator(".prose").inner_text()
    name, text = saved(page, "Markdown")
    assert name == "Tom-picks-12-apples-How-many-apples-does.md"
    assert text.startswith(f"# {QUESTION}\n")
    assert "**System prompt:** Be brief." in text
    assert said.strip() in text
    name, text = saved(page, "JSON")
    assert name.endswith(".json")
    told: dict[str, Any] = json.loads(text)
    assert [each["role"] for each in told["messages"]] == ["system", "user", "assistant"]
    assert told["messages"][1]["content"] == QUESTION
    (made,) = told["answers"]
    assert (made["preset"], made["seed"], made["state"]) == ("coupled", 7, "done")
    assert made["text"] == told["messages"][2]["content"]
    assert made["figures"]["tokens"] == 8


def in_view(page: Page, what: Locator) -> bool:
    box = what.bounding_box()
    size = page.viewport_size
    assert size is not None
    return box is not None and box["y"] >= 0 and box["y"] + box["height"] <= size["height"]


def test_the_panels_stay_in_view_while_the_conversation_scrolls(page: Page) -> None:
    page.set_viewport_size({"width": 1440, "height": 1000})
    answer_with(page, "\n\n".join(f"paragraph {index}" for index in range(40)))
    for _ in range(2):
        ended(ask(page))
    assert page.evaluate("scrollY") > 1000
    assert in_view(page, page.get_by_role("button", name="New chat"))
    assert in_view(page, page.get_by_role("radio", name="Tokens", exact=True))


def test_on_a_phone_settings_and_chats_are_a_press_away(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    answer_with(page, "\n\n".join(f"paragraph {index}" for index in range(60)))
    ended(ask(page, "First?"))
    assert page.evaluate("scrollY") > 500
    page.get_by_role("button", name="Settings").click()
    panel = page.get_by_role("dialog", name="Settings")
    expect(panel.get_by_label("System prompt")).to_be_visible()
    assert Axe().run(page).violations_count == 0
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()
    expect(page.get_by_role("button", name="Settings")).to_be_focused()
    page.get_by_role("button", name="Chats").click()
    panel = page.get_by_role("dialog", name="Chats")
    expect(panel.locator(".chat span")).to_have_text(["First?"])
    panel.get_by_role("button", name="New chat").click()
    expect(panel).to_be_hidden()
    expect(page.locator(".answer")).to_have_count(0)
    page.get_by_role("button", name="Chats").click()
    expect(panel).to_be_visible()
    page.mouse.click(380, 400)  # beside the panel
    expect(panel).to_be_hidden()


def test_three_methods_are_explained_and_the_others_can_be_chosen(page: Page) -> None:
    methods = page.locator(".method")
    expect(methods).to_have_count(3)
    for method in methods.all():
        assert len(method.locator("small").inner_text()) > 40
    assert page.get_by_role("radio", name="Automatic").is_checked()
    expect(page.get_by_label("Preset")).to_be_hidden()
    asked = answer_with(page, "one")
    page.get_by_role("radio", name="Large model alone").check()
    ended(ask(page))
    assert asked[-1]["tandem"]["preset"] == "ar"
    assert page.get_by_label("Preset").input_value() == "ar"
    page.get_by_text("All methods").click()
    page.get_by_label("Preset").select_option("dssd")
    ended(ask(page))
    assert asked[-1]["tandem"]["preset"] == "dssd"
    assert not any(each.is_checked() for each in page.locator(".method input").all())


def test_the_plain_line_says_speed_and_share_and_calls_an_estimate_one(page: Page) -> None:
    choice = {
        **{"schedule": "rounds of 8", "reason": "acceptance", "decisions": 2},
        **{"expected_tpot_s": 0.025, "cloud_alone_tpot_s": 0.05, "cloud_alone_measured": True},
    }
    answer_with(page, "one ", "two", tpot_s=0.02, tokens=4, accepted=1, choice=choice)
    answer = ended(ask(page))
    plain = "50 tokens/s · 25 % drafted on the device"
    estimate = " · about 2.5 × the speed of the large model alone (estimated)"
    expect(answer.locator("p.plain")).to_have_text(plain + estimate)
    show_tokens(page)
    expect(answer.get_by_text("because of how many drafts were accepted")).to_be_visible()
    expect(answer.get_by_text("Estimated per token: 25 ms")).to_be_visible()
    expect(answer.get_by_text("by the large model alone: 50 ms (measured earlier)")).to_be_visible()
    # Beside the cloud alone the two are compared as they were.
    answer_with(page, "one ", "two", preset="ar", tpot_s=0.01, accepted=0)
    page.get_by_role("button", name="Compare with the large model alone").click()
    expect(answer.get_by_text("The texts are the same.")).to_be_visible()
    expect(answer.locator("p.plain")).to_have_text(plain)
    # What was drafted from earlier text is not the small model's.
    answer_with(page, "one ", "two", tpot_s=0.02, tokens=4, accepted=3, accepted_memory_tokens=2)
    said = "50 tokens/s · 25 % drafted on the device · 50 % repeated from earlier text"
    expect(ended(ask(page)).locator("p.plain")).to_have_text(said)
    # A share that rounds to nothing is none.
    answer_with(page, "one", tpot_s=0.02, tokens=300, accepted=2, cloud_drafted=9, cloud_accepted=1)
    said = "50 tokens/s · 1 % drafted on the device"
    expect(ended(ask(page)).locator("p.plain")).to_have_text(said)
    # What has no part of the small model is no faster for it.
    answer_with(page, "one ", "two", tpot_s=0.02, accepted=0, choice=choice)
    expect(ended(ask(page)).locator("p.plain")).to_have_text(
        "50 tokens/s · by the large model alone"
    )


def test_a_comparison_is_of_turns_without_memory_and_says_whether_drafts_paid(page: Page) -> None:
    answer_with(page, "one ", "two", tpot_s=0.02, tokens=40)
    answer = ended(ask(page))
    asked: list[dict[str, Any]] = []
    choice = {
        **{"schedule": "rounds of 8", "reason": "acceptance", "decisions": 2},
        **{"expected_tpot_s": 0.025, "cloud_alone_tpot_s": 0.05, "cloud_alone_measured": True},
        **{"acceptance_rate": 0.9, "target_pass_s": 0.04, "round_trip_s": 0.05},
        **{"draft_step_s": 0.01, "per_draft_token_s": 0.02},
    }

    def fulfill(route: Route) -> None:
        body = json.loads(str(route.request.post_data))
        asked.append(body)
        is_alone = body["tandem"]["preset"] == "ar"
        own = {"preset": "coupled", "tpot_s": 0.05 + 0.01 * len(asked), "choice": choice}
        alone = {"preset": "ar", "tpot_s": 0.04, "drafted": 0, "accepted": 0}
        figures = {"tokens": 40, "target_passes": 40, **(alone if is_alone else own)}
        route.fulfill(content_type="text/event-stream", body=stream_of(["one ", "two"], figures))

    page.unroute(CHAT_PATH)
    page.route(CHAT_PATH, fulfill)
    page.get_by_role("button", name="Compare with the large model alone").click()
    said = answer.locator("p.note", has_text="The texts are the same.")
    expect(said).to_have_text(
        "The texts are the same. Per token: 80 ms (70 ms to 110 ms) by coupled,"
        " 40 ms (40 ms to 40 ms) by ar. Drafts did not pay here: 0.50 × as fast (0.36 to 0.57)."
        " The link’s round trip takes as long as 1.25 passes of the large model."
    )
    presets = [body["tandem"]["preset"] for body in asked]
    assert presets == ["ar", "coupled", "coupled", "ar", "ar", "coupled"]
    assert all(body["tandem"]["no_memory"] for body in asked)
    assert len({body["seed"] for body in asked}) == 1
    assert page.locator(".answer").count() == 2
    page.reload()  # it is kept with the chat
    expect(page.get_by_text("Drafts did not pay here")).to_be_visible()


def test_the_figures_say_whether_a_text_is_the_large_model_s_bit_for_bit(page: Page) -> None:
    for exactness, words in (("bit_for_bit", "bit for bit"), ("up_to_rounding", "up to rounding")):
        answer_with(page, "one", exactness=exactness)
        answer = ended(ask(page))
        show_tokens(page)
        expect(answer.get_by_text("The large model’s text")).to_be_visible()
        expect(answer.get_by_text(words)).to_be_visible()


def test_a_draft_model_that_read_the_end_alone_is_said_to_have(page: Page) -> None:
    answer_with(page, "one", draft_context=1024)
    answer = ended(ask(page))
    expect(answer.get_by_text("drafted from the last 1,024 tokens of the text")).to_be_visible()


def test_an_answer_that_ends_at_the_maximum_says_so(page: Page) -> None:
    choose(page, tokens=12)
    answer = ended(ask(page))
    expect(answer.get_by_text("Stopped at 12 tokens, the maximum length.")).to_be_visible()


def test_an_answer_that_the_model_gives_is_there_to_read(page: Page, pictures: Path | None) -> None:
    choose(page, "coupled", tokens=24, temperature=0)
    ended(ask(page, QUESTION))
    new_chat(page)
    expect(page.locator(".answer")).to_have_count(0)
    page.get_by_label("Maximum tokens").fill("24" if pictures is None else "160")
    ended(ask(page, PICTURED))
    expect(page.locator(".prose")).not_to_be_empty()
    expect(page.locator(".shares i").first).to_be_visible()
    page.get_by_label("Your question").blur()
    picture(page, pictures, "page-text")
