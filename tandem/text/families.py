"""Families of models: how each writes its thinking and its tool calls, as a table.

A row is chosen by the strings that a model's chat template must contain (`family_of`); the first
row that fits is the model's. To add a family, add a row.
"""
# ruff: noqa: RUF001  # DeepSeek's tokens are written with a wide vertical line

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThinkingFormat:
    """How thinking stands in the text of an answer.

    `begin` and `end` are around it. `repeats`: it may begin again later in the answer. `dropped`:
    what outside of the thinking is neither thinking nor answer, such as the header of a message.
    `forced` follows after `end` where a budget ends the thinking, for models that need more than
    `end` to begin their answer."""

    begin: str
    end: str
    repeats: bool = False
    dropped: tuple[str, ...] = ()
    forced: str = ""


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a tool call stands in the text of an answer.

    A call is `begin`, the tool's name, `middle`, its arguments as a JSON object, `end`; several
    stand between `first` and `last`, with `between` between them. That is how a grammar has them
    written. They are read more freely: a call begins with the string `mark`; `head` is a regular
    expression for what follows it up to the arguments, with the name as its group `name`; it ends
    with the string `tail`. `constrained`: a grammar can hold an answer to it; false where it needs
    special tokens."""

    begin: str
    middle: str
    end: str
    mark: str
    head: str
    tail: str
    first: str = ""
    last: str = ""
    between: str = "\n"
    constrained: bool = True

    def written(self, calls: Sequence[tuple[str, str]]) -> str:
        """Return calls as text; each is a name and its arguments as JSON."""
        each = [self.begin + name + self.middle + arguments + self.end for name, arguments in calls]
        return self.first + self.between.join(each) + self.last


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """One row. `announced_by`: the strings that the chat template must all contain."""

    name: str
    announced_by: tuple[str, ...]
    thinking: ThinkingFormat | None
    calls: CallFormat

    @property
    def marks(self) -> tuple[str, ...]:
        """Strings that may be special tokens, and are needed to read an answer."""
        thinking = self.thinking
        calls = self.calls
        marks = [calls.mark, calls.tail, calls.first, calls.last]
        if thinking is not None:
            marks += (thinking.begin, thinking.end, *thinking.dropped, thinking.forced)
        return tuple(mark for mark in marks if mark)


HERMES = CallFormat(
    begin='<tool_call>\n{"name": "',
    middle='", "arguments": ',
    end="}\n</tool_call>",
    mark="<tool_call>",
    head=r'\s*\{\s*"name"\s*:\s*"(?P<name>[^"\\]*)"\s*,\s*"arguments"\s*:\s*',
    tail="</tool_call>",
)
"""Hermes, Qwen2.5, Qwen3. Also for models whose templates know no tools."""

_DEEPSEEK_R1_CALLS = CallFormat(
    begin="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    middle="\n```json\n",
    end="\n```<｜tool▁call▁end｜>",
    mark="<｜tool▁call▁begin｜>",
    head=r"\s*function<｜tool▁sep｜>(?P<name>[^\n<]*)\n```json\s*",
    tail="<｜tool▁call▁end｜>",
    first="<｜tool▁calls▁begin｜>",
    last="<｜tool▁calls▁end｜>",
)
_DEEPSEEK_V3_1_CALLS = CallFormat(
    begin="<｜tool▁call▁begin｜>",
    middle="<｜tool▁sep｜>",
    end="<｜tool▁call▁end｜>",
    mark="<｜tool▁call▁begin｜>",
    head=r"(?P<name>[^\n<]*)<｜tool▁sep｜>\s*",
    tail="<｜tool▁call▁end｜>",
    first="<｜tool▁calls▁begin｜>",
    last="<｜tool▁calls▁end｜>",
    between="",
)
_TOOL_CODE_CALLS = CallFormat(
    begin='```tool_code\n{"name": "',
    middle='", "parameters": ',
    end="}\n```",
    mark="```tool_code",
    head=r'\s*\{\s*"name"\s*:\s*"(?P<name>[^"\\]*)"\s*,\s*"(?:parameters|arguments)"\s*:\s*',
    tail="```",
)
_HARMONY_CALLS = CallFormat(
    begin="<|channel|>commentary to=functions.",
    middle=" <|constrain|>json<|message|>",
    end="<|call|>",
    mark="<|channel|>commentary to=functions.",
    head=r"(?P<name>[\w.-]*)\s*(?:<\|constrain\|>)?\s*(?:json)?\s*<\|message\|>\s*",
    tail="<|call|>",
    between="<|start|>assistant",
    constrained=False,
)

_THINK = ThinkingFormat(begin="<think>", end="</think>")
_GEMMA_CHANNEL = ThinkingFormat(begin="<|channel>thought\n", end="<channel|>")
_HARMONY = ThinkingFormat(
    begin="<|channel|>analysis<|message|>",
    end="<|end|>",
    repeats=True,
    dropped=(
        *("<|start|>assistant", "<|channel|>final<|message|>", "<|channel|>commentary<|message|>"),
        *("<|end|>", "<|return|>"),
    ),
    forced="<|start|>assistant<|channel|>final<|message|>",
)

PLAIN = ModelFamily("", (), thinking=None, calls=HERMES)
"""A model of no known family: it does not think, and is asked to call tools as Hermes does."""

FAMILIES: tuple[ModelFamily, ...] = (
    ModelFamily("harmony", ("<|channel|>", "<|message|>"), _HARMONY, _HARMONY_CALLS),
    ModelFamily(
        "deepseek-r1", ("</think>", "<｜tool▁calls▁begin｜>", "```json"), _THINK, _DEEPSEEK_R1_CALLS
    ),
    ModelFamily(
        "deepseek-v3.1", ("</think>", "<｜tool▁calls▁begin｜>"), _THINK, _DEEPSEEK_V3_1_CALLS
    ),
    ModelFamily("qwen3", ("</think>",), _THINK, HERMES),
    ModelFamily("gemma-channel", ("<|channel>", "<channel|>"), _GEMMA_CHANNEL, HERMES),
    ModelFamily("tool-code", ("```tool_code",), None, _TOOL_CODE_CALLS),
)
"""In the order in which they are tried."""


def family_of(template: str) -> ModelFamily:
    """Return the family of a model with this chat template; `PLAIN` if no row fits."""
    for family in FAMILIES:
        if all(mark in template for mark in family.announced_by):
            return family
    return PLAIN


def family_named(name: str) -> ModelFamily:
    """Return the row with that name; `PLAIN` for a name that this version does not know."""
    return next((family for family in FAMILIES if family.name == name), PLAIN)
