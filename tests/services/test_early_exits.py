"""Early verdicts over real streams: heard before the verdict, and no text depends on them."""

from __future__ import annotations

import numpy as np

from tandem.generation.request import GenerationRequest
from tandem.specdec.messages import GenerationParams
from tandem.testing.paced import PacedEngine
from tandem.testing.scripted import ScriptedEngine, noisy_probs, scripted_probs
from tests.services.scripted_suite import (
    CONTEXT,
    EOS,
    VOCABULARY,
    scripted_suite,
    summary_of,
    target_engine,
)


def target_with_exits() -> PacedEngine:
    probs = scripted_probs(1, VOCABULARY, sharpness=9.0)
    other = scripted_probs(5, VOCABULARY, sharpness=9.0)
    engine = ScriptedEngine(
        VOCABULARY,
        probs,
        context_length=CONTEXT,
        eos_token_ids=EOS,
        exit_distributions=[noisy_probs(probs, other, noise) for noise in (0.5, 0.2, 0.0)],
    )
    return PacedEngine(engine, 0.015, 0.0)


async def test_the_same_text_with_fewer_waits() -> None:
    async with scripted_suite(target=target_with_exits()) as suite:
        heard = hits = 0
        for seed in range(3):
            asked = [
                GenerationRequest(
                    "a", preset, GenerationParams(max_tokens=40, ignore_eos=True, seed=seed)
                )
                for preset in ("dssd", "fsd")
            ]
            plain, early = [await suite.client.generate(request) for request in asked]
            assert early.token_ids == plain.token_ids
            assert summary_of(plain).early_verdicts == 0
            heard += summary_of(early).early_verdicts
            hits += summary_of(early).predraft_hits
        assert heard > 15  # fewer than all say: the edge chooses whom it asks
        assert hits > 4  # a busy machine pre-drafts less
        await suite.idle()


async def test_a_verifier_without_exits_serves_fsd_as_dssd() -> None:
    async with scripted_suite() as suite:
        texts = []
        for preset in ("dssd", "fsd"):
            request = GenerationRequest("b", preset, GenerationParams(max_tokens=20, seed=2))
            generated = await suite.client.generate(request)
            assert summary_of(generated).early_verdicts == 0
            texts.append(generated.token_ids)
        assert texts[0] == texts[1]


async def test_an_exit_that_says_nothing_of_use_fails_nobody() -> None:
    probs = scripted_probs(1, VOCABULARY, sharpness=9.0)
    target = target_engine()
    broken = ScriptedEngine(
        VOCABULARY,
        probs,
        context_length=CONTEXT,
        eos_token_ids=EOS,
        exit_distributions=[lambda context: np.full(VOCABULARY, np.nan)],
    )
    texts = []
    for engine in (target, broken):
        async with scripted_suite(target=engine) as suite:
            request = GenerationRequest("c", "fsd", GenerationParams(max_tokens=20, seed=4))
            texts.append((await suite.client.generate(request)).token_ids)
    assert texts[0] == texts[1]
