"""Predicted outputs: the caller's text is drafted from, and changes nothing but the time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tandem.core.probs import SamplingParams
from tandem.generation.client import Generated
from tandem.generation.request import GenerationRequest
from tandem.net.status import Rejected
from tandem.specdec.liveness import LostCloud
from tandem.specdec.messages import GenerationParams
from tandem.specdec.presets import PRESETS
from tandem.testing.paced import PacedEngine
from tandem.text.prompt_reading import MAX_CHARACTERS_PER_TOKEN
from tests.long_runs import LONG
from tests.services.scripted_engines import NotingEngine
from tests.services.scripted_suite import (
    CONTEXT,
    VOCABULARY,
    Suite,
    scripted_suite,
    summary_of,
    target_engine,
)

GREEDY = SamplingParams(temperature=0.0)
DRAFTS_CHAINS = [name for name, preset in PRESETS.items() if preset.drafts_chains]
COUPLED = [name for name in DRAFTS_CHAINS if PRESETS[name].drafter_invariant]
EVERY_RUN = (
    *("dssd", "tslt", "picospec"),
    *("auto", "stream"),
)
"""Presets that `make test` asks: each way to send drafts and to judge, and all that measure, since
`make test-long` has builds beside it."""
PARAMS = GenerationParams(max_tokens=60, seed=3, ignore_eos=True)


def spelt(token_ids: list[int]) -> str:
    """A text of which the scripted tokenizer makes these ids."""
    return "".join(chr(VOCABULARY + token_id) for token_id in token_ids)


def counts(answer: Generated) -> tuple[int, int]:
    return summary_of(answer).accepted_prediction_tokens, summary_of(
        answer
    ).rejected_prediction_tokens


def passes(answer: Generated) -> int:
    return summary_of(answer).target_passes


async def asked(suite: Suite, preset: str, **more: Any) -> Generated:
    request = GenerationRequest("edit this", preset, PARAMS)
    return await suite.client.generate(replace(request, **more))


@pytest.mark.parametrize(
    ("preset", "sampling"),
    [
        *(
            pytest.param(
                name,
                SamplingParams() if name in COUPLED else GREEDY,
                marks=[] if name in EVERY_RUN else [LONG],
            )
            for name in DRAFTS_CHAINS
        ),
        ("coupled", GREEDY),
    ],
)
async def test_the_text_is_the_same_whatever_is_predicted(
    preset: str, sampling: SamplingParams
) -> None:
    """Greedy, or coupled by the seed: the target's own. Right predictions save its passes."""
    params = replace(PARAMS, sampling=sampling, max_tokens=40)
    # Presets that measure draft nothing for a target that takes no time.
    async with scripted_suite(target=PacedEngine(target_engine(), 0.006, 0.0)) as suite:
        own = await asked(suite, preset, params=params)
        right = await asked(suite, preset, params=params, prediction=spelt(own.token_ids))
        edited = [*own.token_ids[:14], 5, *own.token_ids[16:]]
        nearly = await asked(suite, preset, params=params, prediction=spelt(edited))
        wrong = await asked(suite, preset, params=params, prediction="\u0100" * 200)
    assert own.token_ids == right.token_ids == nearly.token_ids == wrong.token_ids
    assert counts(own) == (0, 0)
    assert counts(right)[0] > 20
    assert counts(nearly)[0] > 14
    assert passes(right) < passes(own)
    assert sum(counts(wrong)) < 100, "it is not proposed again and again"


async def test_a_chunk_takes_all_of_a_prediction_that_holds() -> None:
    """60 tokens are two passes or three, whatever the draft length: the first chunk may leave
    before the cloud has said how many drafts it takes."""
    async with scripted_suite() as suite:
        own = await asked(suite, "coupled")
        right = await asked(suite, "coupled", prediction=spelt(own.token_ids))
        assert right.token_ids == own.token_ids
        assert passes(right) <= 3 < passes(own)
        assert counts(right)[0] >= 58, "the target adds one after drafts that are all accepted"
        assert counts(right)[1] == 0
        assert suite.draft.sessions_open == 0


async def test_what_is_predicted_costs_the_draft_model_no_pass() -> None:
    draft = NotingEngine(target_engine())
    async with scripted_suite(draft=draft) as suite:
        params = replace(PARAMS, max_tokens=200)
        own = await asked(suite, "coupled", params=params)
        alone = draft.rows_read
        draft.batches.clear()
        right = await asked(suite, "coupled", params=params, prediction=spelt(own.token_ids))
        assert right.token_ids == own.token_ids
        assert draft.rows_read <= 2 < 100 < alone


@pytest.mark.parametrize("preset", ["ar", "mc-dsd"])
async def test_presets_that_draft_no_chains_ignore_it(preset: str) -> None:
    async with scripted_suite() as suite:
        params = replace(PARAMS, sampling=GREEDY)
        own = await asked(suite, preset, params=params)
        answer = await asked(suite, preset, params=params, prediction=spelt(own.token_ids))
        assert (answer.token_ids, counts(answer)) == (own.token_ids, (0, 0))


async def test_a_prediction_longer_than_any_answer_is_refused() -> None:
    async with scripted_suite() as suite:
        for length in (CONTEXT + 1, MAX_CHARACTERS_PER_TOKEN * CONTEXT + 1):
            with pytest.raises(Rejected, match=r"prediction: .* the context holds 512"):
                await asked(suite, "coupled", prediction="a" * length)
        assert suite.verifier.service.open_requests == 0


async def test_a_lost_cloud_s_place_is_not_taken_by_the_prediction() -> None:
    """Tokens that nobody verified are the draft model's, as they are without a prediction."""
    lost = replace(PARAMS, max_tokens=12, sampling=GREEDY)
    async with scripted_suite() as suite:
        await suite.verifier.drain(0.0)
        own = await asked(suite, "coupled", params=lost, lost_cloud=LostCloud.EDGE)
        answer = await asked(
            suite, "coupled", params=lost, lost_cloud=LostCloud.EDGE, prediction="\u0107" * 12
        )
        assert answer.unverified == own.unverified == [*range(12)]
        assert answer.token_ids == own.token_ids


async def test_a_prediction_is_in_no_log_line(capsys: pytest.CaptureFixture[str]) -> None:
    async with scripted_suite() as suite:
        await asked(suite, "auto", prediction="xyzzy" * 10)
        await suite.idle()
    captured = capsys.readouterr()
    assert "xyzzy" not in captured.out + captured.err
