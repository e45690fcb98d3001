"""What a person does on the page, and what there is to see then."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Locator, Page, Response, Route, expect

QUESTION = "Tom picks 12 apples. How many apples does he have?"
PICTURED = "How do I sort a list in Python? Give a short example."
CHAT_PATH = "**/v1/chat/completions"


def choose(
    page: Page, preset: str = "coupled", seed: int = 7, tokens: int = 64, temperature: float = 1.0
) -> None:
    unfold(page, "All methods")
    unfold(page, "More settings")
    page.get_by_label("Temperature").fill(f"{temperature:g}")
    page.get_by_label("Preset").select_option(preset)
    page.get_by_label("Seed").fill(str(seed))
    page.get_by_label("Maximum tokens").fill(str(tokens))


def unfold(page: Page, summary: str) -> None:
    """Open a part of the settings, unless it is open."""
    part = page.locator("details", has=page.locator("summary", has_text=summary))
    if part.get_attribute("open") is None:
        part.locator("summary").click()


def show_tokens(page: Page) -> None:
    page.get_by_role("radio", name="Tokens", exact=True).check(force=True)


def show_text(page: Page) -> None:
    page.get_by_role("radio", name="Text", exact=True).check(force=True)


def ask(page: Page, words: str = QUESTION) -> Locator:
    """The answer's card, as soon as it is there."""
    answers = page.locator(".answer")
    before = answers.count()
    field = page.get_by_label("Your question")
    field.fill(words)
    field.press("Enter")
    return answers.nth(before)


def ended(answer: Locator) -> Locator:
    expect(answer).to_have_attribute("aria-busy", "false")
    return answer


def chunks_of(response: Response) -> list[dict[str, Any]]:
    events = [line.removeprefix("data: ") for line in response.text().split("\n\n")]
    return [json.loads(event)["choices"][0] for event in events if event.startswith("{")]


def text_of(answer: Locator) -> str:
    return "".join(answer.locator(".tokens .token").all_text_contents())


def answer_with(
    page: Page, *pieces: str, ends: bool = True, **figures: Any
) -> list[dict[str, Any]]:
    """Let the server answer with these pieces, as a model with other manners than the demo's would.
    Returns the list that the bodies of the page's requests will be in. An answer that does not end
    breaks off; `figures` are some of those that it ends with."""
    asked: list[dict[str, Any]] = []

    def fulfill(route: Route) -> None:
        asked.append(json.loads(str(route.request.post_data)))
        route.fulfill(content_type="text/event-stream", body=stream_of(pieces, figures, ends))

    page.unroute(CHAT_PATH)
    page.route(CHAT_PATH, fulfill)
    return asked


def stream_of(pieces: Sequence[str], more: dict[str, Any], ends: bool = True) -> str:
    """What a server sends for an answer of these pieces, and `more` figures at its end."""
    events = []
    for piece in pieces:
        made = [{"source": "draft", "text": piece}]
        events.append({"delta": {"content": piece}, "tandem": {"provenance": made}})
    if ends:
        figures = {
            **{"preset": "coupled", "tokens": len(pieces), "drafted": 4, "accepted": len(pieces)},
            **{"ttft_s": 0.1, "tpot_s": 0.02, "acceptance_rate": 0.5, "target_passes": 1},
            **{"uplink_bytes": 10, "downlink_bytes": 10, "resumes": 0, "lossy": False},
            **more,
        }
        events.append({"delta": {}, "finish_reason": "stop", "tandem": figures})
    lines = [f"data: {json.dumps({'choices': [event]})}\n\n" for event in events]
    return "".join(lines) + ("data: [DONE]\n\n" if ends else "")


def picture(page: Page, folder: Path | None, name: str) -> None:
    """Write what the page shows, with the settings folded, where pictures are wanted."""
    if folder is not None:
        folder.mkdir(exist_ok=True)
        page.evaluate("document.querySelectorAll('.more').forEach(part => { part.open = false })")
        page.evaluate("document.querySelector('.panel.side')?.scrollTo(0, 0)")
        shown = Image.open(BytesIO(page.screenshot())).convert("RGB")
        # A third of the size: no colour is far from one of 256, and rare ones are kept.
        few = shown.quantize(256, method=Image.Quantize.MAXCOVERAGE, kmeans=1)
        few.save(folder / f"{name}.png", optimize=True)
