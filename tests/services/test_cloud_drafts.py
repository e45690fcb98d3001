"""A verifier that drafts itself, through the services, with scripted models."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import grpc
import pytest

from tandem.backends.interface import ForwardRequest, Logits, never
from tandem.core.probs import SamplingParams
from tandem.core.processors import Processors
from tandem.generation.request import GenerationRequest
from tandem.net.status import Rejected
from tandem.services.verifier.servicer import VerifierLimits
from tandem.specdec.messages import GenerationParams
from tandem.testing.paced import PacedEngine
from tandem.testing.scripted import ScriptedEngine
from tandem_api.verifier.v1 import verifier_pb2 as pb
from tandem_api.verifier.v1.verifier_pb2_grpc import VerifierServiceStub
from tests.services.scripted_engines import NotingEngine
from tests.services.scripted_suite import (
    CONTEXT,
    VOCABULARY,
    draft_engine,
    draft_probs,
    sample,
    scripted_suite,
    summary_of,
    target_engine,
)

REPEATING = "one two one two one two"
LOOKUP = ("cloud-draft", "cloud_drafts=lookup")
BOTH = ("stream", "cloud_drafts=model")


def asking(
    preset: str = "cloud-draft",
    *overrides: str,
    prompt: str = REPEATING,
    max_tokens: int = 40,
    temperature: float = 1.0,
    **params: Any,
) -> GenerationRequest:
    sampling = SamplingParams(temperature=temperature)
    asked = GenerationParams(
        sampling=sampling, max_tokens=max_tokens, seed=5, ignore_eos=True, **params
    )
    request = GenerationRequest(prompt, preset, asked)
    return request.with_fields(overrides=overrides) if overrides else request


def slow_target() -> PacedEngine:
    """A target whose passes take so long that drafts pay."""
    return PacedEngine(target_engine(), 0.01, 0.0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_texts_are_those_of_the_cloud_alone_and_take_fewer_passes(temperature: float) -> None:
    async with scripted_suite(target=slow_target(), cloud_draft=draft_engine()) as suite:
        alone = await suite.client.generate(asking("ar", temperature=temperature))
        for asked in (("cloud-draft",), LOOKUP, BOTH):
            answer = await suite.client.generate(asking(*asked, temperature=temperature))
            assert answer.token_ids == alone.token_ids, asked
        by_model = await suite.client.generate(asking(temperature=temperature))
        await suite.idle()
    summary = summary_of(by_model)
    assert 0 < summary.cloud_accepted < summary.cloud_drafted
    assert (summary.drafted, summary.accepted, summary.rounds) == (0, 0, 0)
    assert summary.target_passes <= 40 - summary.cloud_accepted
    assert by_model.token_sources.count("cloud_draft") == summary.cloud_accepted
    assert by_model.token_sources.count("target") == 40 - summary.cloud_accepted


async def test_no_draft_crosses_the_link() -> None:
    async with scripted_suite(target=slow_target(), cloud_draft=draft_engine()) as suite:
        alone = summary_of(await suite.client.generate(asking("ar")))
        drafted = summary_of(await suite.client.generate(asking()))
    assert drafted.uplink_bytes - alone.uplink_bytes <= 16, "what the opening asks for"
    assert drafted.downlink_bytes < alone.downlink_bytes, "fewer messages with more tokens"
    told = partial(sample, suite.cloud_metrics, model_name="scripted", preset="cloud-draft")
    judged = told("tandem_spec_decode_num_cloud_draft_tokens_total")
    accepted = told("tandem_spec_decode_num_cloud_accepted_tokens_total")
    assert (judged, accepted) == (drafted.cloud_drafted, drafted.cloud_accepted)


async def test_what_was_looked_up_stands_where_the_text_repeats_itself() -> None:
    def follows(context: Sequence[int]) -> list[float]:
        """The text goes round in a circle of five."""
        probs = [0.0] * VOCABULARY
        probs[1 + context[-1] % 5] = 1.0
        return probs

    target = ScriptedEngine(VOCABULARY, follows, context_length=CONTEXT)
    async with scripted_suite(target=PacedEngine(target, 0.01, 0.0)) as suite:
        answer = await suite.client.generate(asking(*LOOKUP, prompt="abcde"))
        await suite.idle()
    assert summary_of(answer).cloud_accepted > 20
    assert summary_of(answer).target_passes < 20
    assert "cloud_draft" in answer.token_sources


@pytest.mark.parametrize("asked", [("cloud-draft",), BOTH])
async def test_a_verifier_without_a_draft_model_names_the_flag(asked: tuple[str, ...]) -> None:
    async with scripted_suite(drafts_in_cloud=False) as suite:
        with pytest.raises(Rejected, match="--cloud-draft MODEL") as refused:
            await suite.client.generate(asking(*asked))
        assert refused.value.code is grpc.StatusCode.FAILED_PRECONDITION
        looked_up = await suite.client.generate(asking(*LOOKUP))
        assert len(looked_up.token_ids) == 40, "which needs no model"
        await suite.idle()


async def test_a_draft_model_of_another_vocabulary_is_refused() -> None:
    async with scripted_suite(cloud_draft=draft_engine(VOCABULARY + 1)) as suite:
        with pytest.raises(Rejected, match=r"cloud_draft: .* do not share a vocabulary") as refused:
            await suite.client.generate(asking())
        assert refused.value.code is grpc.StatusCode.FAILED_PRECONDITION
        assert len((await suite.client.generate(asking("ar"))).token_ids) == 40


async def test_penalties_change_both_models_alike() -> None:
    penalised = Processors(frequency_penalty=1.5, repetition_penalty=1.3)
    async with scripted_suite(target=slow_target(), cloud_draft=draft_engine()) as suite:
        alone = await suite.client.generate(asking("ar", processors=penalised))
        plain = await suite.client.generate(asking("ar"))
        drafted = await suite.client.generate(asking(processors=penalised))
    assert drafted.token_ids == alone.token_ids != plain.token_ids
    assert summary_of(drafted).cloud_accepted > 0


async def test_its_keys_and_values_are_part_of_what_a_session_takes() -> None:
    """A verifier whose memory holds the target's alone."""
    room = (len(REPEATING) + 40) * target_engine().kv_bytes_per_token
    limits = VerifierLimits(kv_budget_bytes=room)
    async with scripted_suite(verifier_limits=limits, cloud_draft=draft_engine()) as suite:
        assert (await suite.client.generate(asking("ar"))).token_ids
        with pytest.raises(Rejected) as refused:
            await suite.client.generate(asking())
        await suite.idle()
    assert refused.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_caller_who_leaves_frees_both_models() -> None:
    cloud_draft = draft_engine()
    async with scripted_suite(cloud_draft=cloud_draft) as suite:
        async for answer in suite.client.stream(asking(max_tokens=400)):
            if len(answer.token_ids) > 3:
                assert cloud_draft.sessions_open == 1
                break
        await suite.idle()
        assert (cloud_draft.sessions_open, cloud_draft.kv_bytes_in_use) == (0, 0)


class Failing(ScriptedEngine):
    """A draft model that raises after so many passes."""

    def __init__(self, passes: int) -> None:
        super().__init__(VOCABULARY, draft_probs(), context_length=CONTEXT)
        self.left = passes

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("the device is gone")
        return super().forward(batch, cancelled)


@pytest.mark.parametrize("passes", [0, 1, 9])
async def test_a_draft_model_that_breaks_costs_time_only(passes: int) -> None:
    async with scripted_suite(cloud_draft=Failing(passes)) as suite:
        alone = await suite.client.generate(asking("ar"))
        answer = await suite.client.generate(asking())
        assert answer.token_ids == alone.token_ids
        rejection = await suite.client.generate(asking("cloud-draft", "acceptance=rejection"))
        assert len(rejection.token_ids) == 40
        await suite.idle()


async def test_a_draft_model_with_a_short_context_drafts_as_far_as_it_reads() -> None:
    short = draft_engine(context_length=len(REPEATING) + 20)
    async with scripted_suite(target=slow_target(), cloud_draft=short) as suite:
        alone = await suite.client.generate(asking("ar"))
        answer = await suite.client.generate(asking())
        await suite.idle()
    assert answer.token_ids == alone.token_ids
    assert "cloud_draft" in answer.token_sources[:20]
    assert "cloud_draft" not in answer.token_sources[20:]


async def test_describe_says_what_a_session_may_ask_for() -> None:
    for model, kinds in (
        (draft_engine(), [pb.CLOUD_DRAFTS_MODEL, pb.CLOUD_DRAFTS_LOOKUP]),
        (None, [pb.CLOUD_DRAFTS_LOOKUP]),
    ):
        async with (
            scripted_suite(cloud_draft=model, drafts_in_cloud=model is not None) as suite,
            grpc.aio.insecure_channel(suite.verifier.target) as channel,
        ):
            described = await VerifierServiceStub(channel).Describe(pb.DescribeRequest())
        assert list(described.cloud_drafts) == kinds
        assert described.cloud_draft_model == ("small" if model else "")


async def test_auto_takes_the_verifier_s_draft_model_where_it_has_one() -> None:
    at_the_edge = PacedEngine(draft_engine(), 0.05, 0.0)  # five passes: no drafts for it to choose
    async with scripted_suite(
        draft=at_the_edge, target=slow_target(), cloud_draft=target_engine()
    ) as suite:
        alone = await suite.client.generate(asking("ar"))
        answer = await suite.client.generate(asking("auto"))
        without = await suite.client.generate(asking("auto", "cloud_drafts=none"))
        await suite.idle()
    assert answer.token_ids == alone.token_ids == without.token_ids
    assert summary_of(answer).cloud_accepted > 0
    assert summary_of(without).cloud_drafted == 0


async def test_auto_has_no_draft_model_loaded_that_only_others_demand() -> None:
    """A suite with models of its own would have the draft model twice."""
    async with scripted_suite(target=slow_target()) as suite:
        before = drafting_threads()
        answer = await suite.client.generate(asking("auto"))
        assert len(answer.token_ids) == 40
        assert drafting_threads() == before
        await suite.client.generate(asking("cloud-draft"))
        assert drafting_threads() > before
        await suite.idle()


def drafting_threads() -> int:
    return sum("cloud-draft-engine" in thread.name for thread in threading.enumerate())


async def test_auto_goes_without_where_no_memory_is_to_spare_for_the_draft_model() -> None:
    room = 2 * (len(REPEATING) + 40) * target_engine().kv_bytes_per_token
    limits = VerifierLimits(kv_budget_bytes=room)
    passes = []
    for memory in (limits, VerifierLimits()):
        cloud_draft = NotingEngine(draft_engine())
        async with scripted_suite(
            verifier_limits=memory, target=slow_target(), cloud_draft=cloud_draft
        ) as suite:
            answer = await suite.client.generate(asking("auto"))
            assert len(answer.token_ids) == 40
            await suite.idle()
        passes.append(len(cloud_draft.batches))
    assert passes[0] == 0 < passes[1]
