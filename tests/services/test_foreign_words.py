"""What a cloud says reaches nobody as it is: it is cleaned, bounded, and said to be the cloud's.
And a cloud that refuses is one that is lost: another one, or the request's policy, comes next."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from tandem.generation.client import Generated
from tandem.generation.request import GenerationRequest
from tandem.net.session_runner import MAX_RESYNCS
from tandem.net.status import Rejected
from tandem.services.drafter.servicer import DrafterLimits
from tandem.specdec.liveness import LivenessTimes, LostCloud
from tandem.specdec.messages import GenerationParams
from tandem_api.aggregator.v1 import aggregator_pb2_grpc as aggregator_grpc
from tandem_api.verifier.v1 import verifier_pb2_grpc as pb_grpc
from tests.gateway.http_suite import chat_body, http_suite
from tests.services.scripted_suite import Suite, listening, scripted_suite
from tests.services.two_sided_suite import two_sides

TOKENS = 24
GIVE_UP_S = 0.6
"""Of an idle machine; a busy one needs longer to be heard at all."""
LASTING = ["FAILED_PRECONDITION", "UNIMPLEMENTED", "UNAUTHENTICATED", "PERMISSION_DENIED"]
PATIENT = DrafterLimits(liveness=LivenessTimes(0.8, 20.0, 40.0))
"""For what ends without a cloud being given up."""


async def give_up_s() -> float:
    """As short as this machine allows now: many times what it takes to connect and be answered."""
    took_s = []
    async with RudeCloud().before("127.0.0.1:1") as address:
        for _ in range(3):
            began_s = time.monotonic()
            async with grpc.aio.insecure_channel(address) as channel:
                health: Any = health_pb2_grpc.HealthStub(channel)
                await health.Check(health_pb2.HealthCheckRequest())
            took_s.append(time.monotonic() - began_s)
    return max(GIVE_UP_S, 30 * max(took_s))


async def soon() -> DrafterLimits:
    """A cloud is given up soon."""
    after_s = await give_up_s()
    return DrafterLimits(liveness=LivenessTimes(0.2, 0.85 * after_s, after_s))


def request(policy: LostCloud = LostCloud.FAIL, tokens: int = TOKENS) -> GenerationRequest:
    return GenerationRequest(
        "rude",
        "coupled",
        GenerationParams(max_tokens=tokens, ignore_eos=True, seed=5),
        lost_cloud=policy,
    )


def answer_of(suite: Suite, policy: LostCloud) -> Any:
    return suite.client.generate(request(policy), timeout_s=60)


async def undisturbed() -> list[int]:
    async with scripted_suite() as suite:
        return (await suite.client.generate(request())).token_ids


def alone(generated: Generated) -> bool:
    """Whether the draft model made all of it."""
    return generated.unverified == list(range(TOKENS))


async def test_http_callers_are_told_a_full_cloud_s_words_as_its_words() -> None:
    cloud = RudeCloud()
    async with http_suite(path=cloud.before) as served:
        began_s = time.monotonic()
        answer = await served.post("/v1/chat/completions", chat_body(max_tokens=4))
        assert time.monotonic() - began_s < 30, "the policy's time, and not the cloud's"
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "60"
    error = answer.json()["error"]
    assert list(unfit(error["message"])) == []
    begins = "the cloud says: \"full root: 'rm -rf /' words words"
    assert error["message"].startswith(begins)
    assert error["message"].endswith('…"; try again in 60 s')
    assert len(error["message"]) < 300
    assert error["code"] == "rate_limit_exceeded"


async def test_grpc_callers_and_the_log_are_told_them_so_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    cloud = RudeCloud()
    async with scripted_suite(path=cloud.before, drafter_limits=await soon()) as suite:
        with pytest.raises(Rejected) as refused:
            await answer_of(suite, LostCloud.FAIL)
        await suite.idle()
    assert refused.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused.value.retry_after_s == 60
    assert list(unfit(str(refused.value))) == []
    said = [str(vars(record)) for record in caplog.records]
    assert any(f"the cloud at {cloud.address} says" in each for each in said)
    assert [found for each in said for found in unfit(each.replace("\\n", ""))] == []


@pytest.mark.parametrize("code", ["UNAVAILABLE", "DATA_LOSS", "INVALID_ARGUMENT", *LASTING])
async def test_no_status_of_a_cloud_passes_its_words_on_as_they_are(code: str) -> None:
    cloud = RudeCloud(grpc.StatusCode[code])
    limits = await soon() if code == "UNAVAILABLE" else PATIENT
    async with scripted_suite(path=cloud.before, drafter_limits=limits) as suite:
        with pytest.raises(Rejected) as refused:
            await answer_of(suite, LostCloud.FAIL)
        await suite.idle()
    assert list(unfit(str(refused.value))) == []
    assert f"the cloud at {cloud.address} " in str(refused.value)
    assert "\"full root: 'rm -rf /'" in str(refused.value)
    assert len(str(refused.value)) < 500


async def test_a_field_that_a_cloud_refuses_is_still_named() -> None:
    words = "prompt: 9000 tokens; the context holds 4096"
    cloud = RudeCloud(grpc.StatusCode.INVALID_ARGUMENT, words=words)
    async with http_suite(path=cloud.before) as served:
        answer = await served.post("/v1/completions", {"model": "scripted", "prompt": "a"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
    said = '"9000 tokens; the context holds 4096"'
    assert error["message"] == f"prompt: the cloud says: {said}"


async def test_readiness_and_models_show_nothing_unfit() -> None:
    """Readiness is open to everybody."""
    cloud = RudeCloud(describes=False)
    async with http_suite(path=cloud.before) as served:
        for path in ("/readyz", "/v1/models"):
            answer = await served.http.get(path)
            assert answer.status_code in (429, 503)
            assert list(unfit(str(answer.json()))) == []
            assert "the cloud says" in str(answer.json())
            assert cloud.address not in str(answer.json()), "the operator's, not a tenant's"
    name = "m\x1b[31model\u202e\n" + "words " * 900
    async with http_suite(path=RudeCloud(name=name, refusing=0).before) as served:
        (card,) = (await served.http.get("/v1/models")).json()["data"]
        assert list(unfit(card["id"])) == []
        assert card["id"].startswith("model words words")
        assert len(card["id"]) <= 200
        body = {**chat_body(max_tokens=4), "model": card["id"]}
        answer = await served.post("/v1/chat/completions", body)
        assert answer.status_code == 200
        assert answer.json()["model"] == card["id"]


async def test_with_the_policy_edge_a_full_cloud_is_a_lost_one() -> None:
    cloud = RudeCloud()
    async with scripted_suite(path=cloud.before, drafter_limits=await soon()) as suite:
        assert alone(await answer_of(suite, LostCloud.EDGE))
        await suite.idle()


@pytest.mark.parametrize("code", LASTING)
async def test_so_is_one_that_refuses_for_another_reason(code: str) -> None:
    cloud = RudeCloud(grpc.StatusCode[code])
    async with scripted_suite(path=cloud.before, drafter_limits=await soon()) as suite:
        assert alone(await answer_of(suite, LostCloud.EDGE))
        for policy in (LostCloud.FAIL, LostCloud.WAIT):  # neither waits for what does not change
            with pytest.raises(Rejected):
                await answer_of(suite, policy)
        await suite.idle()


@pytest.mark.parametrize("policy", LostCloud)
async def test_a_cloud_that_takes_a_request_and_then_has_no_room_ends_nowhere(
    policy: LostCloud,
) -> None:
    cloud = RudeCloud(admitting=10**9, retry_after="0")
    limits = await soon() if policy is LostCloud.EDGE else PATIENT
    async with scripted_suite(path=cloud.before, drafter_limits=limits) as suite:
        if policy is LostCloud.EDGE:
            generated = await answer_of(suite, policy)
            assert len(generated.token_ids) == TOKENS
            assert cloud.streams == MAX_RESYNCS + 1
        else:
            with pytest.raises(Rejected) as refused:
                await answer_of(suite, policy)
            assert refused.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert cloud.streams == 1
        await suite.idle()


async def test_with_the_policy_wait_a_full_cloud_is_waited_for() -> None:
    cloud = RudeCloud(refusing=2, retry_after="0")
    async with scripted_suite(path=cloud.before, drafter_limits=PATIENT) as suite:
        generated = await answer_of(suite, LostCloud.WAIT)
        await suite.idle()
    assert generated.token_ids == await undisturbed()
    assert generated.unverified == []
    assert cloud.streams == 3


async def test_a_cloud_that_comes_back_as_another_model_adds_nothing_to_a_text() -> None:
    class Renamed(RudeCloud):
        def _rename(self, model: Any) -> None:
            model.model_name = f"{self.streams}\x1b[2J\n"

    cloud = Renamed(grpc.StatusCode.UNAVAILABLE, admitting=1, refusing=1, retry_after="0")
    async with scripted_suite(path=cloud.before, drafter_limits=PATIENT) as suite:
        with pytest.raises(Rejected, match="the cloud serves another model now: 2") as refused:
            await answer_of(suite, LostCloud.FAIL)
        await suite.idle()
    assert refused.value.code is grpc.StatusCode.FAILED_PRECONDITION
    assert str(refused.value).isprintable()


class RudeAggregator(aggregator_grpc.AggregatorServiceServicer):
    async def Collaborate(self, requests: Any, context: Any) -> Any:  # type: ignore[override]  # noqa: N802
        await context.read()
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, RUDE, (("retry-after", "1e300"),))

    async def FetchDocuments(self, requests: Any, context: Any) -> Any:  # type: ignore[override]  # noqa: N802
        await self.Collaborate(requests, context)


@asynccontextmanager
async def rude_side(address: str) -> AsyncIterator[str]:
    server, rude = grpc.aio.server(), RudeAggregator()  # type: ignore[abstract]
    aggregator_grpc.add_AggregatorServiceServicer_to_server(rude, server)
    async with listening(server) as place:
        yield place


@pytest.mark.parametrize("preset", ["dragon-device", "drcg-text"])
async def test_the_cloud_s_side_of_an_answer_from_documents_is_quoted_as_well(
    preset: str, tmp_path: Path
) -> None:
    async with two_sides(tmp_path, way=rude_side, give_up_after_s=await give_up_s()) as suite:
        asked = GenerationRequest("heron?", preset, GenerationParams(max_tokens=8), query="heron")
        with pytest.raises(Rejected) as refused:
            await suite.client.generate(asked, timeout_s=60)
    assert refused.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert list(unfit(str(refused.value))) == []
    assert str(refused.value).startswith("the cloud at 127.0.0.1:")
    assert refused.value.retry_after_s == 60


async def test_with_the_policy_edge_the_device_goes_on_without_such_a_side(tmp_path: Path) -> None:
    async with two_sides(tmp_path, way=rude_side, give_up_after_s=await give_up_s()) as suite:
        asked = GenerationRequest(
            "heron?",
            "dragon-device",
            GenerationParams(max_tokens=8, ignore_eos=True),
            query="heron",
            lost_cloud=LostCloud.EDGE,
        )
        generated = await suite.client.generate(asked, timeout_s=60)
    assert generated.unverified == list(range(8))


AGES = "99999999"
RUDE = (
    f'\x1b[2J\x1b]0;owned\x07\u202efull\r\nroot: \x9b31m"rm -rf /"; try again in {AGES} s\0'
    + "words " * 900
)
"""5 KiB; a status has 8."""


@dataclass(slots=True)
class RudeCloud(pb_grpc.VerifierServiceServicer):
    """Refuses every stream with `code`; the first `admitting` ones only after it has admitted them,
    and after the first `refusing` ones it serves as the real verifier behind it does. `retry_after`
    is what its statuses' metadata say. `before` is the suite's path."""

    code: grpc.StatusCode = grpc.StatusCode.RESOURCE_EXHAUSTED
    refusing: int = 10**9
    admitting: int = 0
    describes: bool = True
    words: str = RUDE
    name: str = ""
    retry_after: str = AGES
    streams: int = 0
    address: str = ""
    _stubs: list[Any] = field(default_factory=list)

    @asynccontextmanager
    async def before(self, verifier: str) -> AsyncIterator[str]:
        async with grpc.aio.insecure_channel(verifier) as channel:
            self._stubs.append(pb_grpc.VerifierServiceStub(channel))
            server = grpc.aio.server()
            pb_grpc.add_VerifierServiceServicer_to_server(self, server)
            working = health.aio.HealthServicer()
            await working.set("", health_pb2.HealthCheckResponse.SERVING)
            health_pb2_grpc.add_HealthServicer_to_server(working, server)
            async with listening(server) as self.address:
                yield self.address

    async def Describe(self, request: Any, context: Any) -> Any:  # noqa: N802  # the RPC's name
        if not self.describes:
            await self._refuse(context)
        answer = await self._stubs[0].Describe(request)
        self._rename(answer.model)
        return answer

    async def Verify(self, requests: Any, context: Any) -> Any:  # noqa: N802
        self.streams += 1
        if self.streams > self.refusing or self.streams <= self.admitting:
            async for answer in self._stubs[0].Verify(requests):
                if answer.HasField("opened"):
                    self._rename(answer.opened.model)
                yield answer
                if self.streams <= self.refusing:
                    await self._refuse(context)
            return
        await anext(requests)
        await self._refuse(context)

    def _rename(self, model: Any) -> None:
        model.model_name = self.name or model.model_name

    async def _refuse(self, context: Any) -> None:
        await context.abort(self.code, self.words, (("retry-after", self.retry_after),))


def unfit(text: str) -> Iterator[str]:
    """What in `text` may not be shown."""
    yield from (letter for letter in text if not letter.isprintable())
    yield from (word for word in (AGES, "[2J", "31m", "owned", "words " * 40) if word in text)
