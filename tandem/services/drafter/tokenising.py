"""A request's prompt as token ids, without holding up the event loop. Invariant: text that cannot
fit the context is refused before it is tokenised, and what takes long is done on a thread, one
prompt at a time, so that other sessions go on."""

import asyncio

from tandem.core.errors import InvalidArgument
from tandem.core.prompt import Prompt, Turn
from tandem.text import Tokenizer

LONG_CHARACTERS = 16_384
"""Some 20 ms of tokenising, at a few characters a microsecond on one core."""

MAX_CHARACTERS_PER_TOKEN = 64
"""On average over a prompt; few tokens of any vocabulary are longer."""


class PromptTokens:
    """Of one model; used on the event loop only."""

    def __init__(self, tokenizer: Tokenizer, context_length: int) -> None:
        self._tokenizer = tokenizer
        self._context_length = context_length
        self._turn = asyncio.Lock()

    async def ids(self, prompt: Prompt, images: int = 0) -> tuple[int, ...]:
        """Ids of a text or a conversation; given ids as they are. Raises InvalidArgument."""
        length = _characters(prompt)
        if length > MAX_CHARACTERS_PER_TOKEN * self._context_length:
            why = f"{length} characters; the context holds {self._context_length} tokens"
            raise InvalidArgument("prompt", why)
        if length <= LONG_CHARACTERS:
            return self._ids(prompt, images)
        async with self._turn:
            return await asyncio.to_thread(self._ids, prompt, images)

    def _ids(self, prompt: Prompt, images: int) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return tuple(self._tokenizer.encode(prompt))
        turns = [item for item in prompt if isinstance(item, Turn)]
        if turns:
            messages = [{"role": turn.role, "content": turn.content} for turn in turns]
            return tuple(self._tokenizer.chat(messages, images))
        return tuple(item for item in prompt if isinstance(item, int))


def _characters(prompt: Prompt) -> int:
    if isinstance(prompt, str):
        return len(prompt)
    return sum(len(item.role) + len(item.content) for item in prompt if isinstance(item, Turn))
