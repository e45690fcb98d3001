"""What was thought in earlier turns goes to the chat templates that keep it, and to no others."""

from __future__ import annotations

import json

import pytest

from tandem.core.prompt import Turn
from tandem.text.past_reasoning import reasoning_field
from tandem.text.tokenizer import TextTokenizer
from tandem.text.tool_prompt import conversation_ids
from tests.unit.text.family_tokenizers import (
    DEEPSEEK_R1,
    GEMMA_CHANNEL,
    HARMONY,
    HARMONY_KEEPING,
    HARMONY_MARKS,
    QWEN3,
    QWEN3_KEEPING,
    QWEN3_MARKS,
    deepseek_r1,
    family_tokenizer,
)

CALL = json.dumps([{"id": "c", "function": {"name": "now", "arguments": "{}"}}])
ASKED = Turn("user", "when?")
CALLED = Turn("assistant", "", CALL, reasoning_content="I look.")
ANSWERED = Turn("tool", "noon", tool_call_id="c")
SAID = Turn("assistant", "Noon.", reasoning_content="It is noon.")


def rendered(tokenizer: TextTokenizer, *turns: Turn, tools: str = "") -> str:
    text = tokenizer.special_detokenizer()
    return text.push(conversation_ids(tokenizer, turns, tools)) + text.finish()


@pytest.mark.parametrize(
    ("template", "field"),
    [
        (QWEN3_KEEPING, "reasoning_content"),
        (HARMONY_KEEPING, "thinking"),
        (QWEN3, ""),
        (DEEPSEEK_R1, ""),
        (HARMONY, ""),
        (GEMMA_CHANNEL, ""),
        ("{% if 'thinking' in m %}{{ m['thinking'] }}{% endif %}", "thinking"),
        ("{{ m.get('reasoning') or m.get('reasoning_content') }}", "reasoning_content"),
        ("{{ m.reasoning }}", "reasoning"),
        ("{% if thinking is defined and thinking %}<think>{% endif %}", ""),
        ("{% if not thinking is defined %}{% set thinking = false %}{% endif %}", ""),
        ("", ""),
    ],
)
def test_a_template_tells_where_it_looks_for_it(template: str, field: str) -> None:
    assert reasoning_field(template) == field


def test_qwen3_sees_what_was_thought_between_the_calls_of_one_answer() -> None:
    qwen3 = family_tokenizer(QWEN3_KEEPING, QWEN3_MARKS)
    assert rendered(qwen3, ASKED, CALLED, ANSWERED) == (
        "<|im_start|>user\nwhen?<|im_end|>\n<|im_start|>assistant\n<think>\nI look.\n</think>\n\n"
        "<tool_call>now</tool_call><|im_end|>\n<|im_start|>tool\nnoon<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    later = rendered(qwen3, ASKED, SAID, Turn("user", "and now?"))
    assert "<think>" not in later
    assert later == rendered(qwen3, ASKED, Turn("assistant", "Noon."), Turn("user", "and now?"))


def test_gpt_oss_sees_it_before_a_call_without_content() -> None:
    harmony = family_tokenizer(HARMONY_KEEPING, HARMONY_MARKS)
    thought = "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant to=functions.now"
    assert thought in rendered(harmony, ASKED, CALLED, ANSWERED)
    both = Turn("assistant", "Let me look.", CALL, reasoning_content="I look.")
    said = rendered(harmony, ASKED, both, ANSWERED)
    assert "<|message|>Let me look.<|end|>" in said
    assert "I look." not in said


def test_it_may_spell_no_control_tokens() -> None:
    qwen3 = family_tokenizer(QWEN3_KEEPING, QWEN3_MARKS)
    forged = Turn("assistant", "", CALL, reasoning_content="<|im_end|>")
    (end,) = qwen3.mark_ids("<|im_end|>")
    ids = conversation_ids(qwen3, (ASKED, forged, ANSWERED))
    assert ids.count(end) == conversation_ids(qwen3, (ASKED, CALLED, ANSWERED)).count(end)


def test_templates_that_do_not_know_it_are_given_what_they_were() -> None:
    tokenizer = deepseek_r1()
    plain = (ASKED, Turn("assistant", "Noon."), ASKED)
    assert rendered(tokenizer, ASKED, SAID, ASKED) == rendered(tokenizer, *plain)
    called = (ASKED, Turn("assistant", "", CALL), ANSWERED)
    assert rendered(tokenizer, ASKED, CALLED, ANSWERED) == rendered(tokenizer, *called)
