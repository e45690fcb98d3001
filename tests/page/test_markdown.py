"""Answers as Markdown: what is drawn, what is never drawn, and what it takes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.page.person import answer_with, ask, ended, show_text, show_tokens

pytestmark = pytest.mark.timeout(300)

ANSWER = """# Lists in Python

A **list** holds values *in order*; see `append` and
[the tutorial](https://docs.python.org/3/tutorial/).

```python
primes = [2, 3, 5]
primes.append(7)  # **not bold**
```

1. first
2. second
   - inner

| call | makes it |
|:-----|---------:|
| `append(x)` | longer by 1 |
| `clear()` | empty |

> a quote
"""


def parsed(page: Page, text: str) -> Any:
    """The blocks that the page makes of a text."""
    script = 'async text => (await import("/page/markdown.mjs")).blocksOf(text)'
    return page.evaluate(script, text)


def p(*parts: Any) -> dict[str, Any]:
    return {"kind": "paragraph", "parts": list(parts)}


def code(text: str, language: str = "", is_open: bool = False) -> dict[str, Any]:
    return {"kind": "code", "language": language, "text": text, "isOpen": is_open}


def items(*texts: str, start: int | None = None) -> dict[str, Any]:
    return {
        "kind": "list",
        "start": start,
        "items": [[p(text)] for text in texts],
        "isLoose": False,
    }


STRONG = {"kind": "strong", "parts": ["b"]}
LINK = {"kind": "link", "href": "https://example.org/a_(b)", "parts": ["b"]}

CASES: list[tuple[str, list[dict[str, Any]]]] = [
    ("", []),
    ("a\nb", [p("a\nb")]),
    ("a  \nb", [p("a", {"kind": "break"}, "b")]),
    ("a\n\nb", [p("a"), p("b")]),
    ("## Two ##", [{"kind": "heading", "level": 2, "parts": ["Two"]}]),
    ("#hash", [p("#hash")]),
    ("a **b** c", [p("a ", STRONG, " c")]),
    ("a __b__ c", [p("a ", STRONG, " c")]),
    ("*b*", [p({"kind": "emphasis", "parts": ["b"]})]),
    ("~~b~~", [p({"kind": "deleted", "parts": ["b"]})]),
    ("***b***", [p({"kind": "both", "parts": ["b"]})]),
    (
        "**a *b* c**",
        [p({"kind": "strong", "parts": ["a ", {"kind": "emphasis", "parts": ["b"]}, " c"]})],
    ),
    ("2 * 3 * 4", [p("2 * 3 * 4")]),
    ("snake_case_name", [p("snake_case_name")]),
    ("**open", [p("**open")]),
    (r"\*b\*", [p("*b*")]),
    ("`a*b*`", [p({"kind": "code", "text": "a*b*"})]),
    ("``a`b``", [p({"kind": "code", "text": "a`b"})]),
    ("`open", [p("`open")]),
    ("[b](https://example.org/a_(b))", [p(LINK)]),
    ("[b](javascript:alert(1))", [p("[b](javascript:alert(1))")]),
    ("[b](/v1/models)", [p("[b](/v1/models)")]),
    (
        "see https://example.org/x.",
        [
            p(
                "see ",
                {
                    "kind": "link",
                    "href": "https://example.org/x",
                    "parts": ["https://example.org/x"],
                },
                ".",
            )
        ],
    ),
    (
        "![cat](https://example.org/c.png)",
        [p({"kind": "link", "href": "https://example.org/c.png", "parts": ["cat"]})],
    ),
    ("<b>x</b>", [p("<b>x</b>")]),
    ("```js\nx\n\ny\n```\nz", [code("x\n\ny", "js"), p("z")]),
    ("~~~\n```\n~~~", [code("```")]),
    ("```py\nx = 1", [code("x = 1", "py", is_open=True)]),
    ("a\n\n    x\n    y\n\nb", [p("a"), code("x\ny"), p("b")]),
    ("- a\n- b", [items("a", "b")]),
    ("3. a\n4. b", [items("a", "b", start=3)]),
    ("text\n- a", [p("text"), items("a")]),
    ("in\n1999. It", [p("in\n1999. It")]),
    ("---", [{"kind": "rule"}]),
    ("> a\n> b", [{"kind": "quote", "blocks": [p("a\nb")]}]),
    (
        "- a\n  - b\n- c",
        [
            {
                "kind": "list",
                "start": None,
                "isLoose": False,
                "items": [[p("a"), items("b")], [p("c")]],
            }
        ],
    ),
    (
        "- a\n\n- b",
        [{"kind": "list", "start": None, "isLoose": True, "items": [[p("a")], [p("b")]]}],
    ),
    (
        "1. a\n   ```\n   x\n   ```\n2. b",
        [
            {
                "kind": "list",
                "start": 1,
                "isLoose": False,
                "items": [[p("a"), code("x")], [p("b")]],
            }
        ],
    ),
    (
        "|a|b|\n|-|:-:|\n|1|2|",
        [
            {
                "kind": "table",
                "aligns": ["left", "center"],
                "head": [["a"], ["b"]],
                "rows": [[["1"], ["2"]]],
            }
        ],
    ),
    (
        "|a|b|\n|-|-|\n|1|",
        [{"kind": "table", "aligns": ["left"] * 2, "head": [["a"], ["b"]], "rows": [[["1"]]]}],
    ),
    ("a | b", [p("a | b")]),
    ("a|b\n-|", [p("a|b\n-|")]),
    ("# #", [{"kind": "heading", "level": 1, "parts": ["#"]}]),
    ("# a#", [{"kind": "heading", "level": 1, "parts": ["a#"]}]),
    ("``` js `x`", [p("``` js ", {"kind": "code", "text": "x"})]),
    ("~~~ js x\ny", [code("y", "js", is_open=True)]),
]


def test_texts_become_the_blocks_that_they_mean(page: Page) -> None:
    for text, blocks in CASES:
        assert parsed(page, text) == blocks, text


def test_an_answer_is_shown_as_it_is_meant(page: Page) -> None:
    answer_with(page, *ANSWER.splitlines(keepends=True))
    answer = ended(ask(page, "What is a list in Python?"))
    prose = answer.locator(".prose")
    expect(prose.get_by_role("heading")).to_have_text("Lists in Python")
    expect(prose.locator("strong")).to_have_text("list")
    expect(prose.locator("em")).to_have_text("in order")
    link = prose.get_by_role("link", name="the tutorial")
    assert link.get_attribute("href") == "https://docs.python.org/3/tutorial/"
    assert set(str(link.get_attribute("rel")).split()) >= {"noopener", "noreferrer"}
    expect(prose.locator("pre")).to_have_text(
        "primes = [2, 3, 5]\nprimes.append(7)  # **not bold**"
    )
    expect(prose.locator("ol > li")).to_have_count(2)
    expect(prose.locator("ol ul li")).to_have_text("inner")
    assert prose.locator("tbody td").all_text_contents() == [
        *("append(x)", "longer by 1"),
        *("clear()", "empty"),
    ]
    expect(prose.locator("blockquote")).to_have_text("a quote")
    assert Axe().run(page).violations_count == 0
    # The same answer by who wrote it, and back.
    show_tokens(page)
    expect(prose).to_have_count(0)
    assert "".join(answer.locator(".tokens .token").all_text_contents()) == ANSWER
    show_text(page)
    expect(prose.get_by_role("heading")).to_have_text("Lists in Python")


def test_the_view_that_was_chosen_is_kept(page: Page) -> None:
    assert page.get_by_role("radio", name="Text", exact=True).is_checked()
    show_tokens(page)
    page.reload()
    expect(page.get_by_role("radio", name="Tokens", exact=True)).to_be_checked()


def test_nothing_that_a_model_writes_is_run_or_fetched(page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    hostile = (
        "<script>window.hit = 1</script>\n\n<img src=x onerror='window.hit = 1'>\n\n"
        "![x](https://evil.example/x.png) [y](javascript:window.hit=1) "
        "[z](data:text/html,<script>window.hit=1</script>) <https://evil.example/> "
        "<style>body { display: none }</style>\n\n"
        '```"><img src=x onerror=window.hit=1>\nx\n```\n'
    )
    answer_with(page, hostile)
    answer = ended(ask(page, hostile))
    expect(answer.locator(".prose")).to_contain_text("<script>window.hit = 1</script>")
    assert page.evaluate("window.hit") is None
    assert page.locator("img").count() == 1  # the page's own
    for link in answer.locator("a").all():
        assert str(link.get_attribute("href")).startswith("https://evil.example/")
    answer_with(page, "x")
    page.reload()  # from what the browser kept
    expect(page.locator(".prose")).to_contain_text("<script>window.hit = 1</script>")
    assert page.evaluate("window.hit") is None
    assert [url for url in asked if "evil.example" in url] == []


HOSTILE = [
    *("*" * 20_000, "**a " * 8000, "*a " * 8000, "_a" * 8000, "`" * 20_000, "` `` " * 4000),
    *("[" * 20_000, "[a](" * 5000, "[a](b" * 5000, "](" * 8000, "![" * 8000, "\\" * 20_000),
    *("> " * 10_000, "- " * 10_000, "1. " * 8000, "> a\n" * 5000, "- a\n" * 5000),
    *("\n".join(" " * (index % 40) + "- a" for index in range(3000)), "|a" * 8000),
    *("|-" * 8000 + "\n" + "|-" * 8000, "<https://" * 4000, "http://a" * 3000, "~~~\n" * 5000),
    *(
        "#" * 20_000,
        "-\t" * 10_000,
        " " * 20_000,
        "a\n" * 10_000,
        "* * " * 8000,
        "***a** " * 4000,
    ),
    *("```" + "a" * 60_000 + "`", "~" * 2000 + "`", "```" + " " * 60_000 + "a`"),
    *("a|b\n-|-" + " " * 60_000 + "x", "# a" + " " * 60_000 + "b", "#" + " " * 60_000 + "\u2028"),
    *("a|" * 2500 + "\n" + "-|" * 2500 + "\n" + "|\n" * 5000, "https:// " * 20_000),
    *("[" * 60_000 + "](", "[](" * 20_000 + ")", "*x" + "*" * 60_000),
]


def test_no_text_takes_long(page: Page) -> None:
    script = """async texts => {
        const { blocksOf } = await import("/page/markdown.mjs");
        return texts.map((text) => {
            const began = performance.now();
            const blocks = blocksOf(text);
            return blocks.length ? performance.now() - began : 0;
        });
    }"""
    took_ms = page.evaluate(script, HOSTILE)
    assert [(text[:8], ms) for text, ms in zip(HOSTILE, took_ms, strict=True) if ms >= 1000] == []


def test_code_is_copied_also_where_it_was_broken_off(page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answer_with(page, "So:\n\n```python\nx = 1\n", ends=False)
    answer = ended(ask(page))
    expect(answer.locator("pre")).to_have_text("x = 1")
    answer.get_by_role("button", name="Copy the code").click()
    expect(answer.locator(".code [role=status]")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "x = 1"
    answer_with(page, "So:\n\n```python\nx = 1\ny = 2\n```\n", "Done.")
    answer = ended(ask(page))
    answer.get_by_role("button", name="Copy the code").click()
    expect(answer.locator(".code [role=status]")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "x = 1\ny = 2"
    answer.get_by_role("button", name="Copy the answer").click()
    expect(answer.locator(".actions [role=status]")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == (
        "So:\n\n```python\nx = 1\ny = 2\n```\nDone."
    )


def test_copying_works_where_a_page_has_no_clipboard(page: Page) -> None:
    """As over plain HTTP from another machine."""
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.evaluate(
        "document.addEventListener('copy', () => { window.copied = getSelection().toString()"
        " || document.activeElement.value })"
    )
    answer_with(page, "a **b**")
    answer = ended(ask(page))
    answer.get_by_role("button", name="Copy the answer").click()
    expect(answer.locator(".actions [role=status]")).to_have_text("Copied")
    assert page.evaluate("window.copied") == "a **b**"


def test_thinking_is_folded_away_from_the_answer(page: Page) -> None:
    def stream(route: Any) -> None:
        deltas = [{"reasoning_content": "Let me add. "}, {"content": "It is 20."}]
        lines = [json.dumps({"choices": [{"delta": delta}]}) for delta in deltas]
        body = "".join(f"data: {line}\n\n" for line in lines) + "data: [DONE]\n\n"
        route.fulfill(content_type="text/event-stream", body=body)

    page.route("**/v1/chat/completions", stream)
    answer = ended(ask(page))
    expect(answer.locator(".prose")).to_have_text("It is 20.")
    expect(answer.get_by_text("Let me add.")).to_be_hidden()
    answer.get_by_text("Thinking").click()
    expect(answer.get_by_text("Let me add.")).to_be_visible()
