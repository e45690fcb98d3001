"""Prompts as token ids. Invariant: what cannot fit a context is refused before it is tokenised,
which would take seconds."""

from collections.abc import Mapping
from typing import Any

from tandem.core.errors import InvalidArgument
from tandem.core.prompt import Prompt, Turn
from tandem.text import Tokenizer
from tandem.text.chat_rendering import NO_VARIABLES
from tandem.text.tool_prompt import conversation_ids

MAX_CHARACTERS_PER_TOKEN = 64
"""On average over a text; few tokens of any vocabulary are longer, most of them runs of spaces."""


def prompt_ids(
    tokenizer: Tokenizer | None,
    prompt: Prompt,
    *,
    tools: str = "",
    images: int = 0,
    variables: Mapping[str, Any] = NO_VARIABLES,
) -> tuple[int, ...]:
    """Return the ids of a text or a conversation; a prompt that is ids already stays as it is. For
    the other arguments see `conversation_ids`. Raises InvalidArgument."""
    turns = [item for item in prompt if isinstance(item, Turn)]
    if not turns and not isinstance(prompt, str):
        return tuple(item for item in prompt if isinstance(item, int))
    if tokenizer is None:
        raise InvalidArgument("prompt", "this model has no tokenizer; send token ids")
    if isinstance(prompt, str):
        return tuple(tokenizer.encode(prompt))
    return tuple(conversation_ids(tokenizer, turns, tools, images, variables))


def characters_of(prompt: Prompt) -> int:
    """Return the number of characters that are to be read; 0 for token ids."""
    if isinstance(prompt, str):
        return len(prompt)
    return sum(
        len(item.role) + len(item.content) + len(item.tool_calls) + len(item.reasoning_content)
        for item in prompt
        if isinstance(item, Turn)
    )


def check_characters(characters: int, context_length: int, field: str) -> int:
    """Raise InvalidArgument(field) where the context has no room for so many; else return them."""
    if characters > MAX_CHARACTERS_PER_TOKEN * context_length:
        why = f"{characters} characters; the context holds {context_length} tokens"
        raise InvalidArgument(field, why)
    return characters
