"""The choices of one HTTP request, answered side by side.

Invariant: closing the iterator early cancels every choice; a choice that fails ends all of them.
Must not import grpc or torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from tandem.gateway.suite import Suite
from tandem.rpc.aggregator_client import Generated
from tandem.rpc.generation import GenerationRequest

PIECES_AHEAD = 16
"""What choices may have ready for a caller who reads slowly; beyond it they wait."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What became final of choice `index`: text and tokens since its last piece, from the
    `begins_at`th token on. `answer` is the choice as it grows, which may be further by now; `ended`
    with the last piece, whose answer has its summary."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    begins_at: int
    answer: Generated
    ended: bool


async def pieces(
    suite: Suite, requests: Sequence[GenerationRequest], timeout_s: float
) -> AsyncGenerator[Piece]:
    """Pieces of all choices as they come; the first of a choice has no text and says that it was
    admitted. Raises what the suite raises."""
    if len(requests) == 1:
        async with aclosing(_pieces_of(suite, 0, requests[0], timeout_s)) as own:
            async for piece in own:
                yield piece
        return
    ready: asyncio.Queue[Piece | Exception | None] = asyncio.Queue(PIECES_AHEAD)
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
    ready: asyncio.Queue[Piece | Exception | None],
    suite: Suite,
    index: int,
    request: GenerationRequest,
    timeout_s: float,
) -> None:
    try:
        async with aclosing(_pieces_of(suite, index, request, timeout_s)) as own:
            async for piece in own:
                await ready.put(piece)
        await ready.put(None)
    except Exception as error:  # raised again by who reads the queue
        await ready.put(error)


async def _pieces_of(
    suite: Suite, index: int, request: GenerationRequest, timeout_s: float
) -> AsyncGenerator[Piece]:
    characters = tokens = 0
    async with aclosing(suite.stream(request, timeout_s)) as stream:
        async for answer in stream:
            yield Piece(
                index,
                answer.text[characters:],
                tuple(answer.token_ids[tokens:]),
                tokens,
                answer,
                ended=answer.summary is not None,
            )
            characters, tokens = len(answer.text), len(answer.token_ids)
