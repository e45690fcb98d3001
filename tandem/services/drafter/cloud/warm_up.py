"""A session that is asked to leave has its text computed where it will go, and stays meanwhile: its
next round then waits for no more than the last tokens. Invariant: nothing of the answer comes from
it, so that it may fail; it ends in time for the session to leave. Used on the event loop."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from tandem.core.processors import NO_PROCESSORS
from tandem.net.session_runner import OpenStream
from tandem.specdec.messages import CloudMessage, EdgeMessage, Open, Tokens
from tandem.specdec.presets import PRESETS
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

GRACE_SHARE = 0.8
"""How long it may take, of the time after which the cloud stops."""


async def warm_up(
    opening: Callable[[], Open],
    open_stream: OpenStream[CloudMessage, EdgeMessage],
    turn: asyncio.Lock,
    rest_s: float,
    grace_s: float,
    closing_tasks: set[asyncio.Task[None]],
) -> None:
    """Have the text computed by the cloud where the session will go, which keeps it for the
    tenant's next session; return once that is done, or will not be. Sessions do this one after the
    other, each in its `turn`, since the rounds of all sessions there wait for it; the next turn
    begins `rest_s` later, so that this session's first round there does not wait for the next text.
    `opening` returns the text as it is by then. The session must be gone `grace_s` from now."""
    try:
        async with asyncio.timeout(GRACE_SHARE * grace_s):
            await turn.acquire()
            try:
                await _computed(asks_for_one(opening()), open_stream, closing_tasks)
            finally:
                asyncio.get_running_loop().call_later(rest_s, turn.release)
    except TimeoutError:
        log.warning("text not computed before the move", reason="out of time")


async def _computed(
    asked: Open,
    open_stream: OpenStream[CloudMessage, EdgeMessage],
    closing_tasks: set[asyncio.Task[None]],
) -> None:
    over = asyncio.Event()

    def heard(message: CloudMessage, size_bytes: int) -> None:
        if isinstance(message, Tokens):
            over.set()

    stream = open_stream(heard, lambda error: over.set())
    try:
        stream.send(asked)
        await over.wait()
    finally:
        stream.close_in_background(closing_tasks)


def asks_for_one(opening: Open) -> Open:
    """Return an opening with the same text that asks the cloud only for the next token, for which
    it computes all keys and values of the text."""
    params = replace(
        opening.params,
        max_tokens=len(opening.committed_ids) + 1,
        logprobs=False,
        top_logprobs=0,
        prompt_logprobs=False,
        processors=NO_PROCESSORS,
    )
    return replace(opening, params=params, settings=PRESETS["ar"].verify_settings)
