"""A request's prompt as token ids, without holding up the event loop. Invariant: text that cannot
fit the context is refused before it is tokenised, and what takes more than a few milliseconds is
done on a thread, in its tenant's turn, so that other sessions go on."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from tandem.core.errors import InvalidArgument
from tandem.core.prompt import Prompt, Truncate, Turn
from tandem.generation.request import GenerationRequest
from tandem.net.tenant import paying_tenant
from tandem.net.turns import FairExecutor
from tandem.specdec.predicted_text import PredictedText
from tandem.text import ComparableTokenizer, FillingTokenizer, Tokenizer
from tandem.text.chat_rendering import read_variables
from tandem.text.prompt_reading import characters_of, check_characters, prompt_ids
from tandem.text.spelling import Spelling, SpeltToken

LONG_CHARACTERS = 2048
"""Some 3 ms of tokenising on one core, or 7 ms of letters that the vocabulary has no tokens for."""
CHARACTERS_OF_TURN = 64
"""What a turn of a conversation costs beside its text, in characters: 15 microseconds."""
LONG_SPELLING = 64
"""Tokens that are spelt in some 3 ms."""
THREADS = 2
"""So that a tenant's short prompts need not wait for another's long one."""
NICENESS = 5
"""Of what tokenises texts: who sends a long one waits for it, but answers in flight have more who
wait. Conversations are rendered and tokens spelt in Python: a thread that has the interpreter's
lock must not give way."""

AT_A_STRETCH_S = 0.001
PAUSE_S = 0.0001
"""Spelling is all Python: it would give the interpreter's lock away only every 5 ms, while event
loop and engine thread need it many times for each token of everybody's answers."""

MOST_WAITING = 256
"""Long prompts that wait for their turn."""

Found = TypeVar("Found")


class PromptTokens:
    """Prompt tokens of one model; used on the event loop only. `context_length` may change: it is
    the target's, once that is known."""

    def __init__(self, tokenizer: Tokenizer, context_length: int) -> None:
        self._tokenizer = tokenizer
        self.context_length = context_length
        self._python = FairExecutor("tokenising", THREADS, MOST_WAITING)
        self._texts = FairExecutor("tokenising", THREADS, MOST_WAITING, niceness=NICENESS)

    async def of(self, request: GenerationRequest) -> tuple[int, ...]:
        """Tokenize the prompt of a completion. Raises InvalidArgument."""
        tenant = request.tenant
        if request.suffix:
            return await self._around(str(request.prompt), request.suffix, tenant)
        length = self._checked(request.prompt) + len(request.tools)
        variables = read_variables(request.chat_template_kwargs)
        if request.truncate is Truncate.NONE:
            images = len(request.params.images)
            whole = partial(
                prompt_ids,
                self._tokenizer,
                request.prompt,
                tools=request.tools,
                images=images,
                variables=variables,
            )
            return await self._soon(length, whole, tenant, isinstance(request.prompt, str))
        most = self.context_length - min(request.params.max_tokens, self.context_length // 2)
        newest = partial(self._newest, request.prompt, most, request.tools, variables)
        return await self._soon(length, newest, tenant)

    async def ids(
        self,
        prompt: Prompt,
        *,
        tools: str = "",
        chat_template_kwargs: str = "",
        tenant: bytes = b"",
    ) -> tuple[int, ...]:
        """Return the ids of a text or a conversation; a prompt that is ids already stays as it is.
        The other arguments are as in a `GenerationRequest`. Raises InvalidArgument."""
        variables = read_variables(chat_template_kwargs)
        work = partial(prompt_ids, self._tokenizer, prompt, tools=tools, variables=variables)
        length = self._checked(prompt) + len(tools)
        return await self._soon(length, work, tenant, isinstance(prompt, str))

    async def predicted(
        self, text: str, vocabulary_size: int, *, tenant: bytes = b""
    ) -> PredictedText:
        """Tokenize and index the text that a caller expects as the answer. Raises
        InvalidArgument("prediction") for one that no answer could be as long as."""
        length = check_characters(len(text), self.context_length, "prediction")
        work = partial(self._predicted, text, vocabulary_size)
        return await self._soon(length, work, tenant)

    async def spelt(self, token_ids: Sequence[int], *, tenant: bytes = b"") -> list[str]:
        """Return the text of each token after those before it; the last one gets the rest."""
        text = self._tokenizer.detokenizer()

        def spell(token_ids: Iterable[int]) -> list[str]:
            texts = [text.push((token_id,)) for token_id in token_ids]
            if texts:
                texts[-1] += text.finish()
            return texts

        return await self._spell(spell, token_ids, len(token_ids), tenant)

    async def spelt_with_others(
        self,
        token_ids: Sequence[int],
        instead: Sequence[Sequence[int]],
        *,
        tenant: bytes = b"",
    ) -> tuple[list[SpeltToken], list[list[SpeltToken]]]:
        """Return what each token spells after those before it, and what the tokens of `instead`
        would have spelt there."""
        spelling = Spelling(self._tokenizer)
        count = len(token_ids) + sum(map(len, instead))
        return await self._spell(lambda ids: spelling.spelt(ids, instead), token_ids, count, tenant)

    async def _spell(
        self,
        spell: Callable[[Iterable[int]], Found],
        token_ids: Sequence[int],
        count: int,
        tenant: bytes,
    ) -> Found:
        """Have tokens spelt, `count` in all."""
        if count <= LONG_SPELLING:
            return await self._soon(0, lambda: spell(token_ids), tenant)
        return await self._soon(LONG_CHARACTERS + 1, lambda: spell(_paused(token_ids)), tenant)

    async def _around(self, prompt: str, suffix: str, tenant: bytes) -> tuple[int, ...]:
        tokenizer = self._tokenizer
        if not isinstance(tokenizer, FillingTokenizer):
            raise InvalidArgument("suffix", "this model does not support filling in the middle")
        length = self._checked(prompt + suffix)
        return await self._soon(length, lambda: tuple(tokenizer.fill_in(prompt, suffix)), tenant)

    def _checked(self, prompt: Prompt) -> int:
        """Return what a prompt costs, in characters. Raises InvalidArgument if they are more than
        might fit."""
        turns = 0 if isinstance(prompt, str) else sum(isinstance(item, Turn) for item in prompt)
        if turns > self.context_length:  # each is one token at least
            why = f"{turns} messages; the context holds {self.context_length} tokens"
            raise InvalidArgument("prompt", why)
        length = check_characters(characters_of(prompt), self.context_length, "prompt")
        return length + CHARACTERS_OF_TURN * turns

    async def _soon(
        self, length: int, work: Callable[[], Found], tenant: bytes, is_text: bool = False
    ) -> Found:
        payer = paying_tenant(tenant)
        if length <= LONG_CHARACTERS:
            self._python.note(payer)
            self._texts.note(payer)
            return work()
        threads = self._texts if is_text else self._python
        return await asyncio.wrap_future(threads.submit(payer, work))

    def _predicted(self, text: str, vocabulary_size: int) -> PredictedText:
        tokenizer = self._tokenizer
        if isinstance(tokenizer, ComparableTokenizer):  # no beginning-of-text token
            ids = tokenizer.encode_piece(text)
        else:
            ids = tokenizer.encode(text)
        if len(ids) > self.context_length:
            why = f"{len(ids)} tokens; the context holds {self.context_length}"
            raise InvalidArgument("prediction", why)
        return PredictedText(ids, vocabulary_size)

    def _newest(
        self, prompt: Prompt, most: int, tools: str, variables: Mapping[str, Any]
    ) -> tuple[int, ...]:
        """Tokenize like `prompt_ids`, without the oldest part if there would be more than `most`
        tokens."""
        ids = prompt_ids(self._tokenizer, prompt, tools=tools, variables=variables)
        if len(ids) <= most:
            return ids
        turns = () if isinstance(prompt, str) else [t for t in prompt if isinstance(t, Turn)]
        if turns:
            return self._newest_turns(turns, most, tools, variables)
        mark = tuple(self._tokenizer.encode(""))  # the beginning-of-text token, where there is one
        begin = mark if ids[: len(mark)] == mark else ()
        return (*begin, *ids[len(ids) - most + len(begin) :])

    def _newest_turns(
        self, turns: Sequence[Turn], most: int, tools: str, variables: Mapping[str, Any]
    ) -> tuple[int, ...]:
        """Tokenize the system's turns at the beginning, and the longest rest that begins with a
        user's turn, with at most `most` tokens in all. Raises InvalidArgument if no rest is short
        enough."""
        system = next((n for n, turn in enumerate(turns) if turn.role != "system"), 0)
        begins = [n for n, turn in enumerate(turns) if turn.role == "user" and n > system]
        kept = None
        first = 0
        while first < len(begins):
            middle = (first + len(begins)) // 2
            kept_turns = (*turns[:system], *turns[begins[middle] :])
            ids = prompt_ids(self._tokenizer, kept_turns, tools=tools, variables=variables)
            if len(ids) <= most:
                kept = ids
                begins = begins[:middle]
            else:
                first = middle + 1
        if kept is None:
            why = f"the last turn alone has more than {most} tokens"
            raise InvalidArgument("prompt", f"{why}; the context holds {self.context_length}")
        return kept


def _paused(token_ids: Sequence[int]) -> Iterator[int]:
    """Yield the tokens with pauses."""
    paused_s = time.perf_counter()
    for token_id in token_ids:
        yield token_id
        if time.perf_counter() - paused_s > AT_A_STRETCH_S:
            time.sleep(PAUSE_S)
            paused_s = time.perf_counter()
