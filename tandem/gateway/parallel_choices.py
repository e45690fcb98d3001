"""The choices of one HTTP request, answered side by side, of which those of one prompt compute it
once. Invariant: closing the iterator early cancels every choice; a choice that fails ends all of
them."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from tandem.backends.interface import KV_BLOCK
from tandem.gateway.catalog import ServingSuite
from tandem.generation.client import Generated
from tandem.generation.request import GenerationRequest

DELTAS_AHEAD = 16
"""What choices may have ready for a caller who reads slowly; beyond it they wait."""


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """Tokens of choice `index` that became final since its last delta, from the `begins_at`th token
    on. `answer` is the growing choice, which may be further by now; once `ended` it has its
    summary."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    begins_at: int
    answer: Generated
    ended: bool


async def deltas(
    suite: ServingSuite, requests: Sequence[GenerationRequest], timeout_s: float
) -> AsyncGenerator[ChoiceDelta]:
    """Yield the pieces of all choices as they come. A choice's first piece has no text: it says
    that the choice was admitted."""
    if len(requests) == 1:
        async with aclosing(_pieces_of(suite, 0, requests[0], timeout_s)) as pieces:
            async for delta in pieces:
                yield delta
        return
    ready: asyncio.Queue[ChoiceDelta | Exception | None] = asyncio.Queue(DELTAS_AHEAD)
    prompts = {id(request.prompt): _SharedPrompt() for request in requests}
    answering = [
        asyncio.create_task(
            fill(
                ready,
                _after(
                    prompt=prompts[id(request.prompt)],
                    suite=suite,
                    index=index,
                    request=request,
                    timeout_s=timeout_s,
                ),
            )
        )
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


async def fill(
    ready: asyncio.Queue[ChoiceDelta | Exception | None], pieces: AsyncGenerator[ChoiceDelta]
) -> None:
    """Put all pieces into the queue, then None, or what ended them."""
    try:
        async with aclosing(pieces) as answering:
            async for delta in answering:
                await ready.put(delta)
        await ready.put(None)
    except Exception as error:  # raised again by who reads the queue
        await ready.put(error)


class _SharedPrompt:
    """Its first choice computes it; the others begin when that is done, and find it kept."""

    def __init__(self) -> None:
        self.taken = False
        self.computed = asyncio.Event()

    def progressed(self, delta: ChoiceDelta) -> None:
        """Note the progress of the first choice. The others do not wait for a prompt shorter than a
        cached block."""
        if delta.token_ids or delta.ended or delta.answer.prompt_tokens <= KV_BLOCK:
            self.computed.set()


async def _after(
    prompt: _SharedPrompt,
    suite: ServingSuite,
    index: int,
    request: GenerationRequest,
    timeout_s: float,
) -> AsyncGenerator[ChoiceDelta]:
    """Yield the pieces of a choice. The first choice of a prompt computes it; the others wait for
    that, unless there are images or two sides."""
    computes, prompt.taken = not prompt.taken, True
    if not computes and not request.params.images and not request.from_two_sides:
        await prompt.computed.wait()
    async with aclosing(_pieces_of(suite, index, request, timeout_s)) as pieces:
        async for delta in pieces:
            if computes:
                prompt.progressed(delta)
            yield delta


async def _pieces_of(
    suite: ServingSuite, index: int, request: GenerationRequest, timeout_s: float
) -> AsyncGenerator[ChoiceDelta]:
    characters = tokens = 0
    async with aclosing(suite.stream(request, timeout_s)) as stream:
        async for answer in stream:
            text = answer.text[characters:]
            token_ids = tuple(answer.token_ids[tokens:])
            ended = answer.summary is not None
            yield ChoiceDelta(
                index=index,
                text=text,
                token_ids=token_ids,
                begins_at=tokens,
                answer=answer,
                ended=ended,
            )
            characters = len(answer.text)
            tokens = len(answer.token_ids)
