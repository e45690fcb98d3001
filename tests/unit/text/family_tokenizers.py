"""Tiny tokenizers with the chat templates of families that think, made on the spot: one token for
each byte, and one for each mark, which are special tokens only where the family's are."""
# ruff: noqa: RUF001  # DeepSeek's tokens are written with a wide vertical line

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tandem.text.tokenizer import TextTokenizer

EOS = "<eos>"

QWEN3 = (
    "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content.split('</think>')[-1].lstrip('\n') }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}"
    "<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
QWEN3_MARKS = ("<|im_start|>", "<|im_end|>"), ("<think>", "</think>", "<tool_call>", "</tool_call>")

DEEPSEEK_R1 = (
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "<｜Assistant｜>{{ m.content.split('</think>')[-1] }}"
    "{% for call in m.tool_calls or [] %}<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function"
    "<｜tool▁sep｜>{{ call.function.name }}\n```json\n{{ call.function.arguments }}\n```"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>{% endfor %}"
    "{% else %}<｜User｜>{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<｜Assistant｜><think>\n{% endif %}"
)
DEEPSEEK_R1_MARKS = (
    (),
    (
        *("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "<｜tool▁calls▁begin｜>"),
        *("<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"),
    ),
)

HARMONY = (
    "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
HARMONY_MARKS = (
    (
        *("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>"),
        "<|return|>",
    ),
    (),
)

QWEN3_KEEPING = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and m.reasoning_content is string and loop.index0 > ns.last %}"
    "<think>\n{{ m.reasoning_content.strip('\n') }}\n</think>\n\n{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.name }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""As Qwen3's own, which keeps what was thought since the user's last turn."""

HARMONY_KEEPING = (
    "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"
    "{% for m in messages %}{% if m.role == 'assistant' and m.tool_calls %}"
    "{% if m.content and m.thinking %}{{ raise_exception('both content and thinking') }}"
    "{% elif m.content or m.thinking %}<|start|>assistant<|channel|>analysis<|message|>"
    "{{ m.content or m.thinking }}<|end|>{% endif %}"
    "<|start|>assistant to=functions.{{ m.tool_calls[0].function.name }}<|channel|>commentary"
    "<|message|>{}<|call|>{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
"""As that of gpt-oss, which keeps what was thought before a tool was called."""

GEMMA_CHANNEL = (
    "{% for m in messages %}<|turn>{{ m.role }}\n{{ m.content }}<turn|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn>model\n"
    "{% if enable_thinking is defined and enable_thinking is false %}"
    "<|channel>thought\n<channel|>{% endif %}{% endif %}"
)
GEMMA_CHANNEL_MARKS = ("<|turn>", "<turn|>", "<|channel>", "<channel|>"), ()


def family_tokenizer(template: str, marks: tuple[Sequence[str], Sequence[str]]) -> TextTokenizer:
    """`marks`: those that are special tokens, and those that are not."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={each: n for n, each in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special, plain = marks
    tokenizer.add_special_tokens([EOS, *special])
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in plain])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS)
    wrapped.chat_template = template
    return TextTokenizer(wrapped)


def qwen3() -> TextTokenizer:
    return family_tokenizer(QWEN3, QWEN3_MARKS)


def deepseek_r1() -> TextTokenizer:
    return family_tokenizer(DEEPSEEK_R1, DEEPSEEK_R1_MARKS)


def harmony() -> TextTokenizer:
    return family_tokenizer(HARMONY, HARMONY_MARKS)


def gemma_channel() -> TextTokenizer:
    return family_tokenizer(GEMMA_CHANNEL, GEMMA_CHANNEL_MARKS)
