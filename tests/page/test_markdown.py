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


DRAWN = """async text => {
    const [{ Markdown }, { render }, { html }] = await Promise.all([
        import("/page/markdown.mjs"), import("/page/vendor/preact.mjs"), import("/page/html.mjs"),
    ]);
    const Code = ({ language, text, isWritten }) =>
        html`<pre class=${language} data-open=${String(isWritten)}>${text}</pre>`;
    const box = document.createElement("div");
    render(html`<${Markdown} text=${text} code=${Code} grows=${true} />`, box);
    return box.firstChild.innerHTML;
}"""
REL = ' target="_blank" rel="noopener noreferrer nofollow"'


def drawn(page: Page, text: str) -> str:
    """The HTML that the page makes of a text."""
    return str(page.evaluate(DRAWN, text)).replace("\n<", "<")


def p(inner: str) -> str:
    return f"<p>{inner}</p>"


def a(href: str, words: str) -> str:
    return f'<a href="{href}"{REL}>{words}</a>'


def code(text: str, language: str = "", is_open: bool = False) -> str:
    return f'<pre class="{language}" data-open="{str(is_open).lower()}">{text}</pre>'


def table(*rows: str) -> str:
    group = '<div class="wide" tabindex="0" role="group" aria-label="Table">'
    return f"{group}<table>{''.join(rows)}</table></div>"


def row(kind: str, *cells: str, align: str = "left") -> str:
    inner = "".join(f'<{kind} class="{align}">{cell}</{kind}>' for cell in cells)
    return f"<tr>{inner}</tr>"


def heading(level: int, words: str) -> str:
    return f'<p class="heading level-{level}" role="heading" aria-level="{level + 2}">{words}</p>'


CASES: list[tuple[str, str]] = [
    ("", ""),
    ("a\nb", p("a\nb")),
    ("a  \nb", p("a<br>b")),
    ("a\n\nb", p("a") + p("b")),
    ("## Two ##", heading(2, "Two")),
    ("#hash", p("#hash")),
    ("a **b** c", p("a <strong>b</strong> c")),
    ("a __b__ c", p("a <strong>b</strong> c")),
    ("*b*", p("<em>b</em>")),
    ("~~b~~", p("<s>b</s>")),
    ("***b***", p("<em><strong>b</strong></em>")),
    ("**a *b* c**", p("<strong>a <em>b</em> c</strong>")),
    ("2 * 3 * 4", p("2 * 3 * 4")),
    ("snake_case_name", p("snake_case_name")),
    ("**open", p("**open")),
    (r"\*b\*", p("*b*")),
    ("`a*b*`", p("<code>a*b*</code>")),
    ("``a`b``", p("<code>a`b</code>")),
    ("`open", p("`open")),
    ("[b](https://example.org/a_(b))", p(a("https://example.org/a_(b)", "b"))),
    ("[b](javascript:alert(1))", p("[b](javascript:alert(1))")),
    ("[b](/v1/models)", p("[b](/v1/models)")),
    (
        "see https://example.org/x.",
        p(f"see {a('https://example.org/x', 'https://example.org/x')}."),
    ),
    ("see example.org", p("see example.org")),
    ("![cat](https://example.org/c.png)", p(a("https://example.org/c.png", "cat"))),
    ("[![cat](https://example.org/c.png)](https://b.org)", p(a("https://b.org", "cat"))),
    ("<b>x</b>", p("&lt;b&gt;x&lt;/b&gt;")),
    ("```js\nx\n\ny\n```\nz", code("x\n\ny", "js") + p("z")),
    ("~~~\n```\n~~~", code("```")),
    ("```py\nx = 1", code("x = 1", "py", is_open=True)),
    ("a\n\n    x\n    y\n\nb", p("a") + code("x\ny") + p("b")),
    ("- a\n- b", "<ul><li>a</li><li>b</li></ul>"),
    ("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
    ("text\n- a", p("text") + "<ul><li>a</li></ul>"),
    ("text\n-", p("text\n-")),
    ("in\n1999. It", p("in\n1999. It")),
    ("---", "<hr>"),
    ("> a\n> b", "<blockquote>" + p("a\nb") + "</blockquote>"),
    ("- a\n  - b\n- c", "<ul><li>a<ul><li>b</li></ul></li><li>c</li></ul>"),
    ("- a\n\n- b", f"<ul><li>{p('a')}</li><li>{p('b')}</li></ul>"),
    (
        "1. a\n   ```\n   x\n   ```\n2. b",
        f'<ol start="1"><li>a{code("x")}</li><li>b</li></ol>',
    ),
    (
        "|a|b|\n|-:|-:|\n|1|2|",
        table(
            f"<thead>{row('th', 'a', 'b', align='right')}</thead>",
            f"<tbody>{row('td', '1', '2', align='right')}</tbody>",
        ),
    ),
    (
        "|a|b|\n|-|-|\n|1|",
        table(
            f"<thead>{row('th', 'a', 'b')}</thead>",
            f"<tbody>{row('td', '1', '')}</tbody>",
        ),
    ),
    ("a | b", p("a | b")),
    ("a|b\n-|", p("a|b\n-|")),
    ("# #", heading(1, "")),
    ("# a#", heading(1, "a#")),
    ("``` js `x`", p("``` js <code>x</code>")),
    ("~~~ js x\ny", code("y", "js", is_open=True)),
]


def test_texts_become_the_elements_that_they_mean(page: Page) -> None:
    found = {text: drawn(page, text) for text, _ in CASES}
    assert found == dict(CASES)


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
        const { tokensOf } = await import("/page/markdown.mjs");
        return texts.map((text) => {
            const began = performance.now();
            tokensOf(text);
            return performance.now() - began;
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
