"""Prompts become ids without holding up the drafter's event loop."""

from __future__ import annotations

import asyncio
import os
import sys
import threading

import pytest

from tandem.core.errors import InvalidArgument
from tandem.core.prompt import Prompt, Truncate, Turn
from tandem.generation.request import GenerationRequest
from tandem.services.drafter.tokenising import (
    LONG_CHARACTERS,
    NICENESS,
    THREADS,
    PromptTokens,
)
from tandem.specdec.messages import GenerationParams
from tandem.testing.scripted import ScriptedTokenizer
from tandem.text.prompt_reading import MAX_CHARACTERS_PER_TOKEN

CONTEXT = LONG_CHARACTERS


class Watched(ScriptedTokenizer):
    """Notes the threads it is used on, and how many texts it has at once; reads none before
    `begin`."""

    def __init__(self, waits: bool = False) -> None:
        super().__init__(64)
        self._may_begin = threading.Event()
        if not waits:
            self.begin()
        self.threads: set[threading.Thread] = set()
        self.niceness: set[int] = set()
        self.most_at_once = 0
        self._at_once = 0

    def begin(self) -> None:
        self._may_begin.set()

    def encode(self, text: str) -> list[int]:
        assert self._may_begin.wait(60), "nobody let it begin"
        self.threads.add(threading.current_thread())
        if sys.platform == "linux":
            self.niceness.add(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        ids = super().encode(text)
        self._at_once -= 1
        return ids


async def test_short_prompts_are_read_at_once_in_every_form() -> None:
    tokenizer = Watched()
    tokens = PromptTokens(tokenizer, CONTEXT)
    expected = tuple(ScriptedTokenizer(64).encode("abc"))
    assert await tokens.ids("abc") == expected
    assert await tokens.ids((Turn("user", "abc"),)) == expected
    assert await tokens.ids((1, 2, 3)) == (1, 2, 3)
    assert tokenizer.threads == {threading.current_thread()}


async def test_the_oldest_turns_are_left_out_where_that_is_asked_for() -> None:
    """Whole turns, from a user's on, and never the system's at the beginning."""
    tokens = PromptTokens(ScriptedTokenizer(64), 16)
    turns = (
        *(Turn("system", "ss"), Turn("user", "aaaa"), Turn("assistant", "bbbb")),
        *(Turn("user", "cccc"), Turn("assistant", "dddd"), Turn("user", "ee")),
    )

    async def kept(prompt: Prompt, max_tokens: int) -> str:
        oldest = Truncate.OLDEST
        request = GenerationRequest(
            prompt, params=GenerationParams(max_tokens=max_tokens), truncate=oldest
        )
        return "".join(chr(64 + token) for token in await tokens.of(request))

    assert await kept(turns[:3], 6) == "ssaaaabbbb"
    assert await kept(turns, 2) == "ssccccddddee"
    assert await kept(turns, 8) == "ssee"
    assert await kept(turns, 100) == "ssee", "half of the context is the answer's at most"
    assert await kept("abcdefghijklmnopqrstu", 4) == "jklmnopqrstu"
    assert await kept(tuple(range(20)), 4) == "".join(chr(64 + n) for n in range(8, 20))
    with pytest.raises(InvalidArgument, match=r"the last turn alone .* the context holds 16"):
        await kept((*turns, Turn("user", "f" * 20)), 4)
    with pytest.raises(InvalidArgument, match="requires the prompt to be a text"):
        GenerationRequest((1, 2), suffix="x").validate()
    with pytest.raises(InvalidArgument, match=r"^suffix: this model does not support filling"):
        await tokens.of(GenerationRequest("a", suffix="x"))


@pytest.mark.parametrize("kind", ["text", "conversation"])
async def test_long_ones_are_read_elsewhere_a_few_at_a_time(kind: str) -> None:
    tokenizer = Watched()
    tokens = PromptTokens(tokenizer, CONTEXT)
    text = "a" * (LONG_CHARACTERS + 1)
    prompts: list[Prompt] = [text if kind == "text" else (Turn("user", text),)] * 9
    found = await asyncio.gather(*(tokens.ids(prompt) for prompt in prompts))
    assert [len(ids) for ids in found] == [len(text)] * 9
    assert threading.current_thread() not in tokenizer.threads
    assert tokenizer.most_at_once <= THREADS


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no priority of its own")
async def test_long_texts_give_way_to_the_answers_of_others() -> None:
    """On two cores one key's long texts doubled the time of everybody's short ones. Conversations
    are rendered in Python, whose lock all others wait for."""
    tokenizer = Watched()
    await PromptTokens(tokenizer, CONTEXT).ids("a" * (LONG_CHARACTERS + 1))
    own = os.getpriority(os.PRIO_PROCESS, 0)
    least = 19  # of any thread
    assert tokenizer.niceness == {min(least, own + NICENESS)}
    turns = (Turn("user", "a" * (LONG_CHARACTERS + 1)),)
    await PromptTokens(tokenizer, CONTEXT).ids(turns)
    assert tokenizer.niceness == {min(least, own + NICENESS), own}


@pytest.mark.parametrize("role", ["user", "assistant"])
async def test_many_short_turns_are_long(role: str) -> None:
    """1,601 turns of a letter, 12,005 characters, held the event loop for 21 ms."""
    tokenizer = Watched()
    turns = tuple(Turn(role, "a") for _ in range(1601))
    assert await PromptTokens(tokenizer, CONTEXT).ids(turns)
    assert threading.current_thread() not in tokenizer.threads


async def test_more_turns_than_the_context_has_tokens_are_refused_unread() -> None:
    tokenizer = Watched()
    turns = tuple(Turn("user", "") for _ in range(101))
    with pytest.raises(InvalidArgument, match="prompt: 101 messages; the context holds 100 tokens"):
        await PromptTokens(tokenizer, 100).ids(turns)
    assert tokenizer.threads == set()


@pytest.mark.parametrize("conversation", [False, True])
async def test_what_cannot_fit_is_refused_unread(conversation: bool) -> None:
    tokenizer = Watched()
    text = "a" * (MAX_CHARACTERS_PER_TOKEN * 10 + 1)
    prompt: Prompt = (Turn("user", text),) if conversation else text
    with pytest.raises(InvalidArgument, match="the context holds 10 tokens") as refused:
        await PromptTokens(tokenizer, 10).ids(prompt)
    assert refused.value.field == "prompt"
    assert tokenizer.threads == set()


async def test_a_tenants_long_texts_wait_for_each_other_before_another_s_waits() -> None:
    """All tenants over HTTP come by the key of one aggregator."""
    tokenizer = Watched(waits=True)
    tokens = PromptTokens(tokenizer, CONTEXT)
    text = "a" * (LONG_CHARACTERS + 1)
    ended: list[bytes] = []

    async def read(tenant: bytes) -> None:
        await tokens.ids(text, tenant=tenant)
        ended.append(tenant)

    reading = asyncio.gather(*(read(tenant) for tenant in (b"a", b"a", b"a", b"a", b"b")))
    await asyncio.sleep(0)  # all are handed over, in this order, before the first is read
    tokenizer.begin()
    await reading
    assert ended.index(b"b") < 3
