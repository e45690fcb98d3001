"""How a verifier ends a stream, checked to have harmed nobody else on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from tandem.backends.interface import ForwardRequest
from tandem.core.gumbel import coupled_token
from tandem.core.probs import SamplingParams, probs_from_logits
from tandem.generation.client import Generated
from tandem.generation.request import GenerationRequest
from tandem.services.verifier.servicer import VerifierLimits
from tandem.specdec.messages import GenerationParams
from tests.services.scripted_suite import Suite, scripted_suite, target_engine
from tests.services.verifier_peer import (
    Ending,
    edge_peer,
)

BESIDE_ONE = 8
BYSTANDER_PROMPT = tuple(range(1, 10))
BYSTANDER = GenerationRequest(
    BYSTANDER_PROMPT, "coupled", GenerationParams(max_tokens=80, seed=9, ignore_eos=True)
)


@cache
def own_text(prompt_ids: tuple[int, ...], seed: int, count: int) -> list[int]:
    """The target's own text under Gumbel coupling, without any service."""
    engine = target_engine()
    session = engine.open(len(prompt_ids) + count)
    token_ids, fed = list(prompt_ids), 0
    while len(token_ids) < len(prompt_ids) + count:
        (logits,) = engine.forward([ForwardRequest(session, tuple(token_ids[fed:]), 1)])
        probs = probs_from_logits(logits[0], SamplingParams())
        fed = len(token_ids)
        token_ids.append(coupled_token(probs, seed, fed))
    return token_ids[len(prompt_ids) :]


@asynccontextmanager
async def unharmed(suite: Suite) -> AsyncIterator[None]:
    """Another session generates meanwhile: its text is its own, and nothing is left behind."""
    stream = suite.client.stream(BYSTANDER)
    result = Generated()
    async for result in stream:
        if result.token_ids:
            break
    yield
    # The result grows in place.
    assert [_ async for _ in stream][-1] is result
    assert result.token_ids == own_text(
        BYSTANDER_PROMPT, BYSTANDER.params.seed, BYSTANDER.params.max_tokens
    )
    await suite.idle()


async def ending_of(*frames: Any, limits: VerifierLimits | None = None) -> Ending:
    """How a verifier ends a stream with these frames, checked to have harmed nobody."""
    (ending,) = await endings_of([frames], limits)
    return ending


async def endings_of(
    streams: Sequence[Sequence[Any]], limits: VerifierLimits | None = None
) -> list[Ending]:
    """How one verifier ends each of these streams, one after the other, with a bystander beside
    every few of them."""
    endings = []
    async with scripted_suite(verifier_limits=limits) as suite:
        for first in range(0, len(streams), BESIDE_ONE):
            async with unharmed(suite):
                for frames in streams[first : first + BESIDE_ONE]:
                    async with edge_peer(suite.verifier.target) as peer:
                        await peer.send(*frames)
                        endings.append(await peer.ending())
    return endings
