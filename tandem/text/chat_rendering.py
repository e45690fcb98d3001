"""How a conversation becomes a prompt, as its caller wants it: the variables of the model's chat
template. Invariant: a variable never stands for what rendering itself gives a template, such as the
messages, or tells it, such as which template to use."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

from tandem.core.errors import InvalidArgument
from tandem.core.prompt import Prompt, is_conversation
from tandem.core.reading import words_of

OF_VALUES = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)
"""What a template raises for values of a kind, or of a size, that it was not made for."""
NO_VARIABLES: Mapping[str, Any] = MappingProxyType({})
FIELD = "chat_template_kwargs"
MAX_CHARACTERS = 2**14
_GENERATION_PROMPT = "add_generation_prompt"
_CONTINUE = "continue_final_message"
_RESERVED = frozenset(
    {
        *("messages", "conversation", "conversations", "tools", "documents"),
        *("self", "chat_template", "raise_exception", "strftime_now"),
        *("tokenize", "tokenizer_kwargs", "sanitize_control_tokens", "padding", "truncation"),
        *("max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask"),
    }
)


@dataclass(frozen=True, slots=True)
class ChatRendering:
    """`add_generation_prompt`: the prompt ends with the beginning of an assistant's turn.
    `continue_final_message`: it ends with the last turn's text, which the answer continues.
    `variables`: what else the template may read, JSON values by name."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, variables: Mapping[str, Any]) -> Self:
        """Return the rendering that these variables ask for, both switches among them. Raises
        InvalidArgument naming the one that cannot be set."""
        rest = dict(variables)
        switches = {name: rest.pop(name, None) for name in (_GENERATION_PROMPT, _CONTINUE)}
        for name, value in switches.items():
            if not isinstance(value, bool | None):
                raise InvalidArgument(FIELD, f"{name} must be true or false")
        for name in rest:
            if not name.isidentifier() or name.startswith("_"):
                raise InvalidArgument(FIELD, f"{name[:64]!r} is no name of a variable")
            if name in _RESERVED or name.endswith("_token"):
                why = f"{name} is no variable of a template that callers set; leave it out"
                raise InvalidArgument(FIELD, why)
        continues = bool(switches[_CONTINUE])
        begins = switches[_GENERATION_PROMPT]
        if continues and begins:
            why = f"{_GENERATION_PROMPT} must be false to continue a message"
            raise InvalidArgument(FIELD, why)
        return cls(
            add_generation_prompt=not continues if begins is None else begins,
            continue_final_message=continues,
            variables=rest,
        )


def read_variables(text: str) -> Mapping[str, Any]:
    """Read a JSON object of template variables, and check it; an empty text has none. Raises
    InvalidArgument."""
    if not text:
        return NO_VARIABLES
    if len(text) > MAX_CHARACTERS:
        raise InvalidArgument(FIELD, f"at most {MAX_CHARACTERS} characters")
    try:
        variables = json.loads(text)
    except (ValueError, RecursionError):
        variables = None
    if not isinstance(variables, dict):
        raise InvalidArgument(FIELD, "must be a JSON object")
    ChatRendering.of(variables)
    return variables


def continued_tokens(
    prompt: Prompt, chat_template_kwargs: str, prompt_ids: Sequence[int]
) -> Sequence[int]:
    """Return the tokens whose text the answer to a prompt goes on with: the prompt's, but none
    where the answer begins a turn of a conversation."""
    begins = is_conversation(prompt)
    if begins and not ChatRendering.of(read_variables(chat_template_kwargs)).continue_final_message:
        return ()
    return prompt_ids


def tells_date(template: str) -> bool:
    """Return whether a template may write the date of today."""
    return "strftime_now" in template


def not_rendered(rendering: ChatRendering, error: Exception) -> InvalidArgument:
    """Return what to tell the caller whose rendering failed with `error`."""
    if rendering.continue_final_message and isinstance(error, ValueError):
        why = "the chat template does not write the last message in a way that can be continued"
        return InvalidArgument(_CONTINUE, why)
    field = FIELD if rendering.variables else "messages"
    return InvalidArgument(field, f"refused by the chat template: {words_of(error)}")
