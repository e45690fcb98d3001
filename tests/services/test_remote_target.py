"""A verifier whose target another server computes, between real services: every preset's text is
the server's own, or it is refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from tandem.backends.remote.dialects import Sglang, Vllm
from tandem.backends.remote.engine import RemoteEngine
from tandem.backends.remote.server import RemoteServer
from tandem.backends.requirements import missing_capabilities
from tandem.core.probs import Array, SamplingParams
from tandem.core.processors import Processors
from tandem.generation.request import GenerationRequest
from tandem.net.status import Rejected
from tandem.services.drafter.servicer import DrafterLimits
from tandem.specdec.liveness import LivenessTimes
from tandem.specdec.messages import GenerationParams
from tandem.specdec.presets import PRESETS
from tandem.testing.remote_server import FakeServer, serving
from tandem.testing.scripted import scripted_probs
from tests.chi_squared import assert_fits
from tests.long_runs import LONG
from tests.services.scripted_suite import (
    CONTEXT,
    EOS,
    VOCABULARY,
    Suite,
    scripted_suite,
    target_engine,
    until,
)
from tests.unit.backends.remote.test_remote_engine import (
    not_numbers,
    other_vocabulary,
    without_rows,
)

PROBS = scripted_probs(1, VOCABULARY, sharpness=9.0)
KNOWN = 20
TEXTS = 600
SOON_LOST = DrafterLimits(liveness=LivenessTimes(give_up_after_s=0.8))
SOME = ("ar", "coupled", "dssd", "tslt", "stream")
"""Of a dialect: how presets ask for rows is the same for all."""
GREEDY = SamplingParams(temperature=0.0)
CUT = SamplingParams(temperature=1.0, top_k=KNOWN)


@pytest.fixture(params=["vllm", "sglang"])
def fake(request: pytest.FixtureRequest) -> Iterator[FakeServer]:
    with serving(FakeServer(PROBS, VOCABULARY, dialect=request.param)) as server:
        yield server


@asynccontextmanager
async def suite_at(fake: FakeServer, limits: DrafterLimits | None = None) -> AsyncIterator[Suite]:
    engine = RemoteEngine(
        RemoteServer(fake.url, silent_s=10.0),
        Vllm() if fake.dialect == "vllm" else Sglang(),
        served_name=fake.model,
        model_name="fake",
        vocabulary_size=VOCABULARY,
        vocabulary_hash=target_engine().vocabulary_hash,
        context_length=CONTEXT,
        known_tokens=KNOWN,
        eos_token_ids=EOS,
    )
    try:
        async with scripted_suite(target=engine, drafter_limits=limits) as suite:
            yield suite
    finally:
        await asyncio.to_thread(engine.close)


def asked(preset: str, sampling: SamplingParams, tokens: int = 24, **more: Any) -> Any:
    params = GenerationParams(sampling=sampling, max_tokens=tokens, ignore_eos=True, **more)
    return GenerationRequest("remote", preset, params)


def able(suite: Suite) -> list[str]:
    """The presets that need no more than rows of logits."""
    has = suite.target.capabilities
    return [
        name for name, preset in PRESETS.items() if not missing_capabilities(preset, target=has)
    ]


async def texts_here(sampling: SamplingParams, presets: tuple[str, ...]) -> list[list[int]]:
    """The same model, computed by the verifier itself."""
    async with scripted_suite() as suite:
        answers = [
            await suite.client.generate(asked(preset, sampling, seed=3)) for preset in presets
        ]
    return [answer.token_ids for answer in answers]


async def test_greedy_texts_of_all_presets_are_the_model_s(fake: FakeServer) -> None:
    (expected,) = await texts_here(GREEDY, ("ar",))
    async with suite_at(fake) as suite:
        presets = able(suite) if fake.dialect == "vllm" else SOME
        for preset in presets:
            answer = await suite.client.generate(asked(preset, GREEDY, seed=3))
            assert answer.token_ids == expected, preset
        await suite.idle()


async def test_sampled_texts_of_a_seed_are_those_of_the_model_computed_here(
    fake: FakeServer,
) -> None:
    presets = ("ar", "coupled", "dssd")
    expected = await texts_here(CUT, presets)
    async with suite_at(fake) as suite:
        for preset, token_ids in zip(presets, expected, strict=True):
            answer = await suite.client.generate(asked(preset, CUT, seed=3))
            assert answer.token_ids == token_ids, preset


@pytest.mark.parametrize(
    ("sampling", "more", "field"),
    [
        (SamplingParams(temperature=1.0), {}, "top_k"),
        (SamplingParams(temperature=1.0, top_k=KNOWN + 1), {}, "top_k"),
        (GREEDY, {"prompt_logprobs": 2}, "prompt_logprobs"),
        (GREEDY, {"processors": Processors(logit_bias=((3, 4.0),))}, "logit_bias"),
    ],
)
async def test_what_the_server_does_not_tell_enough_for_is_refused(
    sampling: SamplingParams, more: dict[str, Any], field: str
) -> None:
    with serving(FakeServer(PROBS, VOCABULARY)) as fake:
        async with suite_at(fake) as suite:
            with pytest.raises(Rejected, match=field) as refused:
                await suite.client.generate(asked("coupled", sampling, **more))
            assert refused.value.code.name == "INVALID_ARGUMENT"
            assert not fake.asked


@pytest.mark.parametrize("preset", ["mc-dsd", "split"])
async def test_presets_that_need_more_of_the_target_than_rows_are_refused(preset: str) -> None:
    with serving(FakeServer(PROBS, VOCABULARY)) as fake:
        async with suite_at(fake) as suite:
            assert {*PRESETS} - {*able(suite)} == {"mc-dsd", "split"}
            with pytest.raises(Rejected, match="of the target model") as refused:
                await suite.client.generate(asked(preset, GREEDY))
            assert refused.value.code.name == "FAILED_PRECONDITION"
            assert not fake.asked


@pytest.mark.parametrize("preset", ["ar", "coupled"])
async def test_a_server_that_fails_never_gives_another_text(fake: FakeServer, preset: str) -> None:
    """It may fail before the text, or after any part of it: then the text so far is right."""
    (expected,) = await texts_here(GREEDY, ("ar",))
    async with suite_at(fake) as suite:
        fake.corrupt = lambda answer: {}
        with pytest.raises(Rejected) as refused:
            await suite.client.generate(asked(preset, GREEDY, seed=3))
        assert refused.value.code.name in ("UNAVAILABLE", "INTERNAL")
        fake.corrupt = lambda answer: answer
        fake.stream_ends_after = 5
        answer = await suite.client.generate(asked(preset, GREEDY, seed=3))
        assert answer.token_ids == expected
        await suite.idle()


def faulty(fault: Callable[[Any], Any]) -> dict[str, Any]:
    return {"corrupt": fault}


FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "key": ({"key": "another"}, "UNAVAILABLE", "refuses the key"),
    "error": ({"status": 500}, "UNAVAILABLE", "answers 500: come again"),
    "redirect": ({"status": 307, "location": "http://127.0.0.1:9"}, "UNAVAILABLE", "not followed"),
    "busy": ({"status": 429, "retry_after": "0.05"}, "RESOURCE_EXHAUSTED", "is busy"),
    "busy long": ({"status": 503, "retry_after": "30"}, "RESOURCE_EXHAUSTED", "try again in 30 s"),
    "NaN": (faulty(not_numbers), "UNAVAILABLE", "answers nonsense: nan is no log-probability"),
    "no rows": (faulty(without_rows), "UNAVAILABLE", "answers nonsense"),
    "vocabulary": (faulty(other_vocabulary), "UNAVAILABLE", "that the vocabulary does not have"),
}
"""What the server does, the status and the words that the caller reads."""


@pytest.mark.parametrize("preset", ["ar", "coupled"])
@pytest.mark.parametrize("name", FAULTS)
async def test_each_fault_has_a_status_that_says_it_and_the_server_s_address_stays_here(
    name: str, preset: str
) -> None:
    fault, code, words = FAULTS[name]
    with serving(FakeServer(PROBS, VOCABULARY)) as fake:
        async with suite_at(fake, SOON_LOST) as suite:
            for field, value in fault.items():
                setattr(fake, field, value)
            with pytest.raises(Rejected, match=words) as refused:
                await suite.client.generate(asked(preset, GREEDY, seed=3))
            assert refused.value.code.name == code
            assert fake.url not in str(refused.value)


@pytest.mark.parametrize("preset", ["ar", "coupled"])
async def test_a_server_that_restarts_within_an_answer_costs_no_token(
    fake: FakeServer, preset: str
) -> None:
    (expected,) = await texts_here(GREEDY, ("ar",))
    fake.pass_s = 0.02
    async with suite_at(fake) as suite:
        answer = asyncio.create_task(suite.client.generate(asked(preset, GREEDY, seed=3)))
        await until(lambda: len(fake.asked) >= 1)
        await asyncio.sleep(0.1)
        assert not answer.done()
        fake.hang_up()
        assert (await answer).token_ids == expected


def cut(probs: Array) -> Array:
    """The distribution of `CUT`."""
    least = np.sort(probs)[-KNOWN]
    kept: Array = np.where(probs >= least, probs, 0.0)
    kept /= kept.sum()
    return kept


@LONG  # above the texts of a seed are the model's own
async def test_sampled_tokens_have_the_model_s_distribution() -> None:
    """The second token's, after whatever the first was."""
    probs = scripted_probs(4, VOCABULARY, order=1, sharpness=5.0)
    with serving(FakeServer(probs, VOCABULARY)) as fake:
        async with suite_at(fake) as suite:
            seen = Counter[int]()
            firsts = Counter[int]()
            gate = asyncio.Semaphore(8)

            async def once(seed: int) -> None:
                async with gate:
                    answer = await suite.client.generate(asked("dssd", CUT, tokens=2, seed=seed))
                first, second = answer.token_ids
                firsts[first] += 1
                seen[second] += 1

            await asyncio.gather(*(once(seed) for seed in range(TEXTS)))
    transitions = np.stack([cut(np.asarray(probs((token,)))) for token in range(VOCABULARY)])
    expected = sum(count * transitions[first] for first, count in firsts.items()) / TEXTS
    pooled = expected * TEXTS < 5
    counts = np.array([seen[token] for token in range(VOCABULARY)], float)
    assert_fits(
        [*counts[~pooled], counts[pooled].sum()], [*expected[~pooled], expected[pooled].sum()]
    )
