"""From client to verifier and back over real streams, with scripted models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import grpc
import pytest

from tandem.core.probs import SamplingParams
from tandem.generation.request import GenerationRequest
from tandem.net.status import Rejected
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.drafter.servicer import DrafterLimits
from tandem.services.verifier.servicer import VerifierLimits
from tandem.specdec.choices import Control
from tandem.specdec.liveness import LivenessTimes, LostCloud
from tandem.specdec.messages import GenerationParams
from tandem.specdec.presets import PRESETS
from tests.long_runs import with_long_cases
from tests.services.scripted_suite import (
    CONTEXT,
    VOCABULARY,
    scripted_suite,
    summary_of,
    target_engine,
    until,
)


async def test_greedy_text_is_the_same_for_every_preset() -> None:
    async with scripted_suite() as suite:
        texts = set()
        for preset in PRESETS:
            request = GenerationRequest(
                "greedy",
                preset,
                GenerationParams(
                    sampling=SamplingParams(temperature=0.0), max_tokens=16, ignore_eos=True
                ),
            )
            generated = await suite.client.generate(request)
            assert len(generated.token_ids) == 16
            texts.add(generated.text)
        assert len(texts) == 1


@pytest.mark.parametrize("preset", PRESETS)
async def test_summary_adds_up(preset: str) -> None:
    async with scripted_suite() as suite:
        request = GenerationRequest(
            "count", preset, GenerationParams(max_tokens=20, ignore_eos=True, seed=5)
        )
        generated = await suite.client.generate(request)
        summary = summary_of(generated)
        assert summary.finish_reason == "length"
        assert summary.tokens == len(generated.token_ids) == 20
        assert summary.prompt_tokens == len("count")
        assert 0 <= summary.accepted <= summary.drafted
        assert 0 < summary.target_passes <= 21
        assert summary.uplink_bytes > 0
        assert summary.downlink_bytes > 0
        if PRESETS[preset].control is not Control.LEAST_COST:  # which may draft nothing
            assert (summary.drafted > 0) == PRESETS[preset].drafts
        assert generated.text == "".join(f"<{token}>" for token in generated.token_ids)
        assert not generated.unverified


@pytest.mark.parametrize(
    "preset",
    with_long_cases(
        PRESETS,
        (
            *("ar", "dsd", "dssd", "picospec", "mc-dsd", "stream", "auto", "coupled", "fsd"),
            *("cloud-draft", "split"),
        ),
    ),
)
async def test_stop_string_inside_a_block_ends_the_text_before_it(preset: str) -> None:
    async with scripted_suite() as suite:
        sampling = SamplingParams(temperature=0.0)
        whole = await suite.client.generate(
            GenerationRequest(
                "stop",
                preset,
                GenerationParams(sampling=sampling, max_tokens=12, ignore_eos=True),
                overrides=("draft_length=5",),
            )
        )
        third = f"<{whole.token_ids[3]}>"
        position = [f"<{token}>" for token in whole.token_ids].index(third)
        cut = await suite.client.generate(
            GenerationRequest(
                "stop",
                preset,
                GenerationParams(sampling=sampling, max_tokens=12, ignore_eos=True),
                stop=(third,),
                overrides=("draft_length=5",),
            )
        )
        assert summary_of(cut).finish_reason == "stop"
        assert cut.token_ids == whole.token_ids[: position + 1]
        assert cut.text == whole.text.split(third)[0]


async def test_concurrent_sessions_keep_their_text() -> None:
    async with scripted_suite() as suite:
        requests = [
            GenerationRequest(
                f"prompt {n % 2}",
                preset,
                GenerationParams(seed=n % 3, max_tokens=16),
            )
            for n, preset in enumerate(PRESETS)
        ]
        alone = [(await suite.client.generate(request)).token_ids for request in requests]
        together = await asyncio.gather(*(suite.client.generate(request) for request in requests))
        assert [generated.token_ids for generated in together] == alone
        await suite.idle()


async def test_a_suite_without_documents_says_how_it_gets_some() -> None:
    async with scripted_suite() as suite:
        with pytest.raises(Rejected, match="use 'tandem up --rag'") as refused:
            await suite.client.generate(GenerationRequest("ask", "dragon"))
    assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_caller_that_leaves_frees_both_sides() -> None:
    async with scripted_suite() as suite:
        for preset in PRESETS:
            request = GenerationRequest(
                "leave", preset, GenerationParams(max_tokens=400, ignore_eos=True)
            )
            stream = suite.client.stream(request)
            async for generated in stream:
                if generated.token_ids:
                    break
            await stream.aclose()  # type: ignore[attr-defined]  # an async generator
            await suite.idle()


BAD_REQUESTS = [
    (GenerationRequest(""), "INVALID_ARGUMENT", "prompt"),
    (GenerationRequest((5, VOCABULARY)), "INVALID_ARGUMENT", "prompt"),
    (GenerationRequest((5, 2**32 - 1)), "INVALID_ARGUMENT", "prompt"),
    (GenerationRequest("x" * CONTEXT), "INVALID_ARGUMENT", "prompt"),
    (GenerationRequest("a", "nonsense"), "INVALID_ARGUMENT", "preset"),
    (
        GenerationRequest("a", params=GenerationParams(max_tokens=0)),
        "INVALID_ARGUMENT",
        "max_tokens",
    ),
    (
        GenerationRequest("a", overrides=("draft_length=0",)),
        "INVALID_ARGUMENT",
        "draft_length",
    ),
    (
        GenerationRequest("a", overrides=("draft_length=65",)),
        "INVALID_ARGUMENT",
        "draft_length",
    ),
    (
        GenerationRequest("a", overrides=("payload_top=5000",)),
        "INVALID_ARGUMENT",
        "payload_top",
    ),
    (
        GenerationRequest("a", "tslt", overrides=(f"truncation.top_k={VOCABULARY + 1}",)),
        "INVALID_ARGUMENT",
        "draft_top_k",
    ),
    (
        GenerationRequest("a", params=GenerationParams(sampling=SamplingParams(float("nan")))),
        "INVALID_ARGUMENT",
        "temperature",
    ),
    (
        GenerationRequest("a", params=GenerationParams(sampling=SamplingParams(-1.0))),
        "INVALID_ARGUMENT",
        "temperature",
    ),
    (
        GenerationRequest("a", params=GenerationParams(sampling=SamplingParams(top_p=0.0))),
        "INVALID_ARGUMENT",
        "top_p",
    ),
    (
        GenerationRequest("a", params=GenerationParams(sampling=SamplingParams(top_p=1.5))),
        "INVALID_ARGUMENT",
        "top_p",
    ),
    (
        GenerationRequest("a", params=GenerationParams(sampling=SamplingParams(top_k=1000))),
        "INVALID_ARGUMENT",
        "top_k",
    ),
    (GenerationRequest("a", stop=("",)), "INVALID_ARGUMENT", "stop"),
    # Which a status that quotes them cannot hold.
    (GenerationRequest("a", "x" * 300_000), "INVALID_ARGUMENT", "preset"),
    (GenerationRequest("a", "\U0001f426" * 2_000), "INVALID_ARGUMENT", "preset"),
]


async def test_bad_requests_are_refused_by_name() -> None:
    async with scripted_suite() as suite:
        for request_, code, field in BAD_REQUESTS:
            with pytest.raises(Rejected) as refusal:
                await suite.client.generate(request_)
            assert refusal.value.code.name == code, request_
            assert str(refusal.value).startswith(f"{field}: "), request_
        assert len((await suite.client.generate(GenerationRequest("fine"))).token_ids) > 0
        await suite.idle()


async def test_a_20_mb_request_is_refused_and_harms_nobody() -> None:
    async with scripted_suite() as suite:
        with pytest.raises(Rejected) as refusal:
            await suite.client.generate(GenerationRequest("x" * 20 * 2**20))
        assert refusal.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len((await suite.client.generate(GenerationRequest("fine"))).token_ids) > 0


async def test_other_vocabularies_are_refused() -> None:
    async with scripted_suite(target=target_engine(VOCABULARY + 1)) as suite:
        with pytest.raises(Rejected, match="vocabulary") as refusal:
            await suite.client.generate(GenerationRequest("a"))
        assert refusal.value.code is grpc.StatusCode.FAILED_PRECONDITION


async def test_kv_budget_and_session_limit_are_resource_exhausted() -> None:
    limits = VerifierLimits(kv_budget_bytes=100)
    async with scripted_suite(verifier_limits=limits) as suite:
        with pytest.raises(Rejected, match="bytes of KV cache needed") as refusal:
            await suite.client.generate(
                GenerationRequest("a", params=GenerationParams(max_tokens=200))
            )
        assert refusal.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(
            (
                await suite.client.generate(
                    GenerationRequest("a", params=GenerationParams(max_tokens=9))
                )
            ).token_ids
        )


async def test_a_full_queue_refuses_at_once() -> None:
    settings = AggregatorSettings(max_running=1, max_waiting=1)
    async with scripted_suite(settings=settings) as suite:
        long = GenerationRequest("long", "ar", GenerationParams(max_tokens=150, ignore_eos=True))
        results = await asyncio.gather(
            *(suite.client.generate(long) for _ in range(6)), return_exceptions=True
        )
        refused = [result for result in results if isinstance(result, Rejected)]
        assert {refusal.code for refusal in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert 1 <= len(refused) <= 5
        served = [result for result in results if not isinstance(result, BaseException)]
        assert all(len(result.token_ids) == 150 for result in served)
        assert len(served) + len(refused) == 6
        value = suite.front_metrics.registry.get_sample_value
        labels = {"preset": "ar", "model_name": "unknown", "side": "device"}  # they came together
        for gauge in ("tandem_num_requests_waiting", "tandem_num_requests_running"):
            assert value(gauge, labels) == 0
        # Before they ended, the first one had the target's name asked for.
        for status, count in (("OK", len(served)), ("RESOURCE_EXHAUSTED", len(refused))):
            ended = [
                value("tandem_requests_total", {**labels, "model_name": name, "status": status})
                for name in ("scripted", "unknown")
            ]
            assert sum(filter(None, ended)) == count


async def test_a_deadline_ends_the_request_everywhere() -> None:
    async with scripted_suite() as suite:
        endless = GenerationRequest("a", "dsd", GenerationParams(max_tokens=500, ignore_eos=True))
        with pytest.raises(Rejected) as refusal:
            await suite.client.generate(endless, timeout_s=0.05)
        assert refusal.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
        await suite.idle()


async def test_a_time_limit_of_something_else_is_no_missing_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of them were said to be, and counted as the request's own deadline."""

    async def disk(*given: object) -> AsyncGenerator[Any]:
        raise TimeoutError("of a disk")
        yield

    async with scripted_suite() as suite:
        monkeypatch.setattr(suite.front.requests, "_relayed", disk)
        with pytest.raises(Rejected) as refusal:
            await suite.client.generate(
                GenerationRequest("a", "dsd", GenerationParams(max_tokens=5))
            )
        assert refusal.value.code is grpc.StatusCode.INTERNAL
        with pytest.raises(Rejected, match="no complete answer in the time") as refusal:
            await anext(suite.front.requests.stream(GenerationRequest("a", "dsd"), 1e-9))
        assert refusal.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_without_a_cloud_the_policy_decides() -> None:
    limits = DrafterLimits(liveness=LivenessTimes(give_up_after_s=0.5))
    async with scripted_suite(drafter_limits=limits) as suite:
        request = GenerationRequest(
            "a", "coupled", GenerationParams(max_tokens=20, ignore_eos=True)
        )
        verified = await suite.client.generate(request)
        assert not verified.unverified
        await suite.verifier.drain(0.0)
        edge = GenerationRequest(
            "a",
            "coupled",
            GenerationParams(max_tokens=20, ignore_eos=True),
            lost_cloud=LostCloud.EDGE,
        )
        with pytest.raises(Rejected, match="cloud is lost") as refusal:
            await suite.client.generate(request)
        assert refusal.value.code is grpc.StatusCode.UNAVAILABLE
        alone = await suite.client.generate(edge)
        assert alone.unverified == list(range(20))
        assert summary_of(alone).unverified_tokens == 20
        # The draining suite must not drain the verifier again.
        object.__setattr__(suite, "verifier", suite.drafter)


async def test_metrics_count_what_happened() -> None:
    async with scripted_suite() as suite:
        generated = await suite.client.generate(
            GenerationRequest("m", "dssd", GenerationParams(max_tokens=30))
        )
        await suite.idle()
        labels = {"preset": "dssd", "model_name": "scripted", "side": "device"}
        value = suite.edge_metrics.registry.get_sample_value
        assert (
            value("tandem_spec_decode_num_accepted_tokens_total", labels)
            == summary_of(generated).accepted
        )
        assert value("tandem_uplink_bytes_total", labels) == summary_of(generated).uplink_bytes
        passes = value("tandem_spec_decode_num_target_passes_total", labels)
        assert passes == summary_of(generated).target_passes > 0
        assert value("tandem_draft_window_tokens_sum", labels) == PRESETS["dssd"].schedule.window
        engine = {"model_name": "scripted", "side": "cloud"}
        gauge = suite.cloud_metrics.registry.get_sample_value
        engine_passes = gauge("tandem_engine_pass_seconds_count", engine)
        assert engine_passes == gauge("tandem_batch_size_sum", engine) == passes
        assert gauge("tandem_kv_budget_bytes", engine)
        await until(lambda: gauge("tandem_sessions_open", engine) == 0)
