"""Thinking apart from the answer: by family, by what the prompt says, however the text comes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.text.answer_text import AnswerText
from tandem.text.families import FAMILIES, PLAIN, ThinkingFormat, family_named, family_of
from tandem.text.thinking import TextPart, ThinkingSplitter, ThinkingStart, thinking_start
from tandem.text.tokenizer import TextTokenizer
from tests.unit.text.family_tokenizers import deepseek_r1, gemma_channel, harmony, qwen3

MESSAGES = [{"role": "user", "content": "why </think> ?"}]
THINK = ThinkingFormat("<think>", "</think>")


def thinking_of(name: str) -> ThinkingFormat:
    found = family_named(name).thinking
    assert found is not None
    return found


def split(
    texts: Iterable[str],
    thinking: ThinkingFormat = THINK,
    start: ThinkingStart = ThinkingStart.OPENED,
) -> tuple[str, str]:
    splitter = ThinkingSplitter(thinking, ThinkingStart(start))
    parts = [part for text in texts for part in splitter.push(text)] + splitter.finish()
    assert all(part.text for part in parts)
    return (
        "".join(part.text for part in parts if part.thinks),
        "".join(part.text for part in parts if not part.thinks),
    )


@pytest.mark.parametrize(
    ("make", "name", "start", "quiet"),
    [
        (qwen3, "qwen3", "possible", "none"),
        (deepseek_r1, "deepseek-r1", "opened", "opened"),
        (harmony, "harmony", "possible", "possible"),
        (gemma_channel, "gemma-channel", "possible", "none"),
    ],
)
def test_a_template_tells_the_family_and_a_prompt_whether_the_answer_thinks(
    make: Callable[[], TextTokenizer], name: str, start: str, quiet: str
) -> None:
    tokenizer = make()
    assert tokenizer.family.name == name
    thinking = tokenizer.family.thinking
    for variables, expected in (({}, start), ({"enable_thinking": False}, quiet)):
        prompt = tokenizer.chat(MESSAGES, variables=variables)
        assert thinking_start(thinking, tokenizer.prompt_end(prompt)) == expected


def test_an_unknown_template_does_not_think() -> None:
    assert family_of("{{ messages[0].content }}") is PLAIN
    assert thinking_start(None, "<think>") is ThinkingStart.NONE
    assert split(["<think>", "a</think>b"], start=ThinkingStart.NONE) == ("", "<think>a</think>b")
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


@pytest.mark.parametrize(
    ("text", "start", "thinking", "answer"),
    [
        ("<think>\nwell\n\n</think>\n\nyes\n", "possible", "well", "yes\n"),
        ("\n<think>well</think>yes", "possible", "well", "yes"),
        ("well\n</think>\n\nyes", "opened", "well", "yes"),
        ("<think>\nwell</think>yes", "opened", "well", "yes"),
        ("no tags at all\n", "possible", "", "no tags at all\n"),
        ("a <think>b</think>", "possible", "", "a <think>b</think>"),
        ("cut in the mid", "opened", "cut in the mid", ""),
        ("cut before the end </thi", "opened", "cut before the end </thi", ""),
        ("<think>\n\n</think>\n\nyes", "possible", "", "yes"),
        ("<thin", "possible", "", "<thin"),
        ("a</think>b</think>c", "opened", "a", "b</think>c"),
        ("a < b\n\nc</think>d", "opened", "a < b\n\nc", "d"),
        ("", "opened", "", ""),
    ],
)
def test_the_tags_part_thinking_and_answer(
    text: str, start: str, thinking: str, answer: str
) -> None:
    assert split([text], start=ThinkingStart(start)) == (thinking, answer)
    assert split(text, start=ThinkingStart(start)) == (thinking, answer)


def test_channels_of_harmony() -> None:
    text = (
        "<|channel|>analysis<|message|>Let me see.<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>I look it up.<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>Found.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>It is 7 < 8.<|return|>"
    )
    expected = ("Let me see.Found.", "I look it up.It is 7 < 8.")
    assert split([text], thinking_of("harmony"), ThinkingStart.POSSIBLE) == expected
    assert split(text, thinking_of("harmony"), ThinkingStart.POSSIBLE) == expected


def test_parts_come_in_the_order_of_the_text() -> None:
    splitter = ThinkingSplitter(thinking_of("harmony"), ThinkingStart.POSSIBLE)
    text = "<|channel|>commentary<|message|>a<|end|><|channel|>analysis<|message|>b<|end|>c"
    assert splitter.push(text) == [TextPart("a"), TextPart("b", thinks=True), TextPart("c")]


@st.composite
def texts_in_pieces(draw: st.DrawFn) -> tuple[list[str], str, ThinkingStart]:
    """A text of marks, parts of marks and others, cut anywhere."""
    name = draw(st.sampled_from([family.name for family in FAMILIES if family.thinking]))
    own = thinking_of(name)
    marks = [own.begin, own.end, *own.dropped]
    bits = st.sampled_from([*marks, *(mark[:-1] for mark in marks), "\n", "a", "<", "ü", " b"])
    text = "".join(draw(st.lists(bits, max_size=12)))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    return pieces, name, draw(st.sampled_from(ThinkingStart))


@given(texts_in_pieces())
def test_any_cut_gives_the_same_parts(case: tuple[list[str], str, ThinkingStart]) -> None:
    pieces, name, start = case
    whole = split(["".join(pieces)], thinking_of(name), start)
    assert split(pieces, thinking_of(name), start) == whole
    assert split("".join(pieces), thinking_of(name), start) == whole


@pytest.mark.parametrize(
    ("make", "text", "count"),
    [
        (qwen3, "<think>\nab</think>\n\nyes", 5),
        (qwen3, "yes, no tags", 0),
        (deepseek_r1, "ab</think>yes", 3),
        (deepseek_r1, "é cut", 6),
        (harmony, "<|channel|>analysis<|message|>ab<|end|><|start|>assistant", 13),
    ],
)
def test_tokens_of_thinking_are_counted_with_their_tags(
    make: Callable[[], TextTokenizer], text: str, count: int
) -> None:
    tokenizer = make()
    start = thinking_start(
        tokenizer.family.thinking, tokenizer.prompt_end(tokenizer.chat(MESSAGES))
    )
    token_ids = tokenizer.mark_ids(text)
    for stops in ((), ("never",)):
        answer = AnswerText(
            tokenizer,
            stops,
            detokenizer=tokenizer.marked_detokenizer(),
            splitter=ThinkingSplitter(tokenizer.family.thinking, start),
        )
        assert not any(map(answer.completes_stop, token_ids))
        read = "".join(answer.take(1) for _ in token_ids) + answer.rest()
        assert (read, answer.reasoning_tokens) == (text, count)


def test_special_marks_are_text_where_they_are_needed_and_nowhere_else() -> None:
    tokenizer = harmony()
    token_ids = tokenizer.mark_ids("<|channel|>final<|message|>é<eos>!")
    marked = tokenizer.marked_detokenizer()
    assert "".join(marked.push((each,)) for each in token_ids) == "<|channel|>final<|message|>é!"
    assert tokenizer.detokenizer().push(token_ids) == "finalé!"
