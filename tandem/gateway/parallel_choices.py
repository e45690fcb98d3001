"""The choices of one HTTP request, answered side by side. Invariant: closing the iterator early
cancels every choice; a choice that fails ends all of them."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from tandem.gateway.catalog import ServingSuite
from tandem.generation.client import Generated
from tandem.generation.request import GenerationRequest

DELTAS_AHEAD = 16
"""What choices may have ready for a caller who reads slowly; beyond it they wait."""


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """What became final of choice `index` since its last piece, from the `begins_at`th token on.
    `answer` is the growing choice, which may be further by now; once `ended` it has its summary."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    begins_at: int
    answer: Generated
    ended: bool


async def deltas(
    suite: ServingSuite, requests: Sequence[GenerationRequest], timeout_s: float
) -> AsyncGenerator[ChoiceDelta]:
    """Pieces of all choices as they come; a choice's first has no text: it was admitted."""
    if len(requests) == 1:
        async with aclosing(_pieces_of(suite, 0, requests[0], timeout_s)) as own:
            async for delta in own:
                yield delta
        return
    ready: asyncio.Queue[ChoiceDelta | Exception | None] = asyncio.Queue(DELTAS_AHEAD)
    answering = [
        asyncio.create_task(_fill(ready, suite, index, request, timeout_s))
        for index, request in enumerate(requests)
    ]
    try:
        unfinished = len(requests)
        while unfinished:
            event = await ready.get()
            if isinstance(event, Exception):
                raise event
            if event is None:
                unfinished -= 1
            else:
                yield event
    finally:
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)


async def _fill(
    ready: asyncio.Queue[ChoiceDelta | Exception | None],
    suite: ServingSuite,
    index: int,
    request: GenerationRequest,
    timeout_s: float,
) -> None:
    try:
        async with aclosing(_pieces_of(suite, index, request, timeout_s)) as own:
            async for delta in own:
                await ready.put(delta)
        await ready.put(None)
    except Exception as error:  # raised again by who reads the queue
        await ready.put(error)


async def _pieces_of(
    suite: ServingSuite, index: int, request: GenerationRequest, timeout_s: float
) -> AsyncGenerator[ChoiceDelta]:
    characters = tokens = 0
    async with aclosing(suite.stream(request, timeout_s)) as stream:
        async for answer in stream:
            text, token_ids = answer.text[characters:], tuple(answer.token_ids[tokens:])
            ended = answer.summary is not None
            yield ChoiceDelta(index, text, token_ids, tokens, answer, ended)
            characters, tokens = len(answer.text), len(answer.token_ids)
