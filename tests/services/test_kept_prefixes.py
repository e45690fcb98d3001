"""Keys and values that outlive their session, through real services with a small torch model."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from transformers import AutoModelForCausalLM

from tandem.backends.interface import KV_BLOCK, Engine, ForwardRequest, Logits
from tandem.backends.torch.loading import load_engine
from tandem.core.sharing import parse_sharing
from tandem.generation.client import Generated
from tandem.generation.request import GenerationRequest
from tandem.net.lifecycle import RunningService
from tandem.runtime.prefix_cache import PrefixLimits
from tandem.services.drafter.servicer import DrafterLimits
from tandem.services.verifier.servicer import VerifierLimits, VerifierServicer
from tandem.specdec.liveness import LivenessTimes
from tandem.specdec.messages import GenerationParams
from tandem.telemetry.metrics import Metrics, new_registry
from tandem.testing.context_engine import ContextSession
from tandem.testing.paced import PacedEngine
from tandem.testing.scripted import ScriptedEngine, scripted_probs
from tandem_api.verifier.v1 import verifier_pb2_grpc
from tests.gateway.http_suite import http_suite
from tests.long_runs import with_long_cases
from tests.services.scripted_suite import (
    CONTEXT,
    VOCABULARY,
    scripted_suite,
    serving,
    until,
)
from tests.services.test_fair_shares import Unguarded
from tests.services.verifier_peer import TIMEOUT_S, control, opening
from tests.unit.backends.reference_models import CONFIGS

NOTHING = PrefixLimits(kv_bytes=0)
CHAT = "".join(chr(97 + number % 23) for number in range(3 * KV_BLOCK + 5))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return load_engine(tiny_model(tmp_path_factory.mktemp("tiny")))


def tiny_model(folder: Path) -> Path:
    """Ids alone: what a prompt's letters are is the scripted tokenizer's matter."""
    config = type(CONFIGS["llama"])(**CONFIGS["llama"].to_dict())
    config.vocab_size, config.max_position_embeddings = VOCABULARY, 512
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def prompt_of(blocks: int, first: int = 1) -> tuple[int, ...]:
    """A text of so many blocks and a little more."""
    return tuple((first + 7 * number) % VOCABULARY for number in range(blocks * KV_BLOCK + 3))


class Verifier:
    """One that believes its callers."""

    def __init__(self, engine: Engine, running: RunningService, metrics: Metrics) -> None:
        self._engine, self._running, self._metrics = engine, running, metrics

    async def answer(
        self,
        holder: str,
        prompt: tuple[int, ...],
        committed: tuple[int, ...] = (),
        **open_fields: Any,
    ) -> tuple[int, tuple[int, ...]]:
        """What `opened` says was found of a text, and the token that the cloud goes on with."""
        async with self.session(holder, prompt, committed, **open_fields) as told:
            pass
        await until(lambda: not self._running.service.open_requests)
        return told

    @asynccontextmanager
    async def session(
        self,
        holder: str,
        prompt: tuple[int, ...],
        committed: tuple[int, ...] = (),
        **open_fields: Any,
    ) -> AsyncIterator[tuple[int, tuple[int, ...]]]:
        """As `answer`, of a session that goes on meanwhile."""
        async with grpc.aio.insecure_channel(self._running.target) as channel:
            stub: Any = verifier_pb2_grpc.VerifierServiceStub(channel)
            call = stub.Verify(timeout=TIMEOUT_S, metadata=(("holder", holder),))
            hashed = self._engine.vocabulary_hash
            frame = opening(
                "ar",
                prompt_ids=prompt,
                committed_ids=committed,
                vocabulary_hash=hashed,
                **open_fields,
            )
            await call.write(frame)
            opened, first = (await call.read()).opened, await call.read()
            yield opened.cached_tokens, tuple(first.committed.token_ids)
            await call.write(control("cancel", after=(*prompt, *committed)))
            await call.done_writing()
            # A stream that is torn off ends before what it leaves is kept; and the status comes
            # after the tokens that the cloud sent before it heard of the end.
            while await call.read() is not grpc.aio.EOF:
                pass
            assert await call.code() is grpc.StatusCode.OK

    def told(self, name: str, **labels: str) -> float | None:
        more = {"side": "cloud", "model_name": self._engine.model_name, **labels}
        return self._metrics.registry.get_sample_value(f"tandem_prefix_{name}", more)


@asynccontextmanager
async def verifier(engine: Engine, **limits: Any) -> AsyncIterator[Verifier]:
    metrics = Metrics(new_registry(), "cloud")
    patient = VerifierLimits(stuck_after_s=TIMEOUT_S, **limits)
    servicer = VerifierServicer(engine, patient, metrics)
    async with serving(servicer, access=Unguarded(), drain_s=TIMEOUT_S) as running:
        yield Verifier(engine, running, metrics)
    assert engine.kv_bytes_in_use == 0


async def test_a_later_session_of_a_holder_begins_with_what_an_earlier_one_left(
    engine: Engine,
) -> None:
    async with verifier(engine) as cloud:
        found, token = await cloud.answer("edge-1", prompt_of(2))
        assert found == 0
        again = await cloud.answer("edge-1", prompt_of(2))
        assert again == (2 * KV_BLOCK, token)
        longer = await cloud.answer("edge-1", prompt_of(4))
        assert longer[0] == 2 * KV_BLOCK
        assert cloud.told("lookups_total", outcome="hit") == 2
        assert cloud.told("lookups_total", outcome="miss") == 1
        assert cloud.told("hit_tokens_total") == 4 * KV_BLOCK
        assert cloud.told("queried_tokens_total") == 8 * KV_BLOCK + 9
        assert cloud.told("kv_bytes") == 4 * KV_BLOCK * engine.kv_bytes_per_token
    async with verifier(engine, prefixes=NOTHING) as fresh:
        await fresh.answer("edge-1", prompt_of(2))
        assert await fresh.answer("edge-1", prompt_of(2)) == (0, token)
        assert await fresh.answer("edge-1", prompt_of(4)) == (0, longer[1])
        assert fresh.told("kv_bytes") == 0


async def test_callers_find_nothing_of_each_other_unless_they_are_named(engine: Engine) -> None:
    async with verifier(engine) as cloud:
        await cloud.answer("edge-1", prompt_of(2))
        assert (await cloud.answer("edge-2", prompt_of(2)))[0] == 0
        assert (await cloud.answer("edge-1", prompt_of(2)))[0] == 2 * KV_BLOCK
    sharing = parse_sharing("edge-1,edge-2")
    async with verifier(engine, prefixes=PrefixLimits(sharing=sharing)) as cloud:
        await cloud.answer("edge-1", prompt_of(2))
        assert (await cloud.answer("edge-2", prompt_of(2)))[0] == 2 * KV_BLOCK
        assert (await cloud.answer("edge-3", prompt_of(2)))[0] == 0
    async with verifier(engine, prefixes=PrefixLimits(sharing=parse_sharing("*"))) as cloud:
        await cloud.answer("edge-1", prompt_of(2))
        assert (await cloud.answer("edge-2", prompt_of(2)))[0] == 2 * KV_BLOCK


async def test_two_tenants_of_one_edge_find_nothing_of_each_other(engine: Engine) -> None:
    async with verifier(engine) as cloud:
        await cloud.answer("edge-1", prompt_of(2), tenant=b"alice's id")
        assert (await cloud.answer("edge-1", prompt_of(2), tenant=b"bob's id"))[0] == 0
        assert (await cloud.answer("edge-1", prompt_of(2)))[0] == 0
        again = await cloud.answer("edge-1", prompt_of(2), tenant=b"alice's id")
        assert again[0] == 2 * KV_BLOCK


@pytest.mark.parametrize("sharing", ["", "edge-1,stranger", "*"])
async def test_a_stranger_who_copies_a_tenant_s_id_finds_nothing(
    engine: Engine, sharing: str
) -> None:
    """Nor does a verifier that has edges share put together what an edge keeps apart."""
    limits = PrefixLimits(sharing=parse_sharing(sharing))
    async with verifier(engine, prefixes=limits) as cloud:
        await cloud.answer("edge-1", prompt_of(2), tenant=b"alice's id")
        assert (await cloud.answer("stranger", prompt_of(2)))[0] == 0
        assert (await cloud.answer("stranger", prompt_of(2), public_tokens=2 * KV_BLOCK))[0] == 0
        assert (await cloud.answer("stranger", prompt_of(2), tenant=b"alice's id"))[0] == 0
        assert (await cloud.answer("edge-1", prompt_of(2), tenant=b"alice's id"))[0] > 0


async def test_public_tokens_are_found_by_all_tenants_of_the_edge(engine: Engine) -> None:
    async with verifier(engine) as cloud:
        public: dict[str, Any] = {"public_tokens": KV_BLOCK + 9}
        await cloud.answer("edge-1", prompt_of(3), tenant=b"x", **public)
        assert (await cloud.answer("edge-1", prompt_of(3), tenant=b"y", **public))[0] == KV_BLOCK
        assert (await cloud.answer("edge-2", prompt_of(3), tenant=b"y", **public))[0] == 0
        mine = await cloud.answer("edge-1", prompt_of(3), tenant=b"x", **public)
        assert mine[0] == 3 * KV_BLOCK


async def test_a_resumed_session_finds_its_text(engine: Engine) -> None:
    async with verifier(engine) as cloud:
        prompt = prompt_of(2)
        _, token = await cloud.answer("edge-1", prompt)
        found, _ = await cloud.answer("edge-1", prompt, committed=token)
        assert found == 2 * KV_BLOCK


async def test_sessions_go_before_what_is_kept(engine: Engine) -> None:
    each = engine.kv_bytes_per_token
    budget = (4 * KV_BLOCK + 3 + 40) * each
    async with verifier(engine, kv_budget_bytes=budget) as cloud:
        await cloud.answer("edge-1", prompt_of(3))
        assert cloud.told("kv_bytes") == 3 * KV_BLOCK * each
        await cloud.answer("edge-1", prompt_of(3, first=2))
        assert (await cloud.answer("edge-1", prompt_of(3)))[0] == 0
    async with verifier(engine, prefixes=PrefixLimits(2 * KV_BLOCK * each)) as cloud:
        await cloud.answer("edge-1", prompt_of(3))
        assert cloud.told("kv_bytes") == cloud.told("kv_budget_bytes") == 2 * KV_BLOCK * each
        assert (await cloud.answer("edge-1", prompt_of(3)))[0] == 2 * KV_BLOCK
    async with verifier(engine, prefixes=PrefixLimits(caller_bytes=KV_BLOCK * each)) as cloud:
        for holder in ("edge-1", "edge-2"):
            await cloud.answer(holder, prompt_of(3))
            assert (await cloud.answer(holder, prompt_of(3)))[0] == KV_BLOCK


async def test_a_session_finds_what_one_that_goes_on_began_with(engine: Engine) -> None:
    prompt = prompt_of(2)
    async with verifier(engine) as cloud:
        async with cloud.session("edge-1", prompt) as told, cloud.session("edge-1", prompt) as own:
            assert told[0] == 0
            assert own == (2 * KV_BLOCK, told[1])
        assert cloud.told("queried_tokens_total") == 2 * len(prompt)


class OwnersEngine(ScriptedEngine):
    """As one before a server with a prefix cache: it is told whose a session is."""

    def __init__(self) -> None:
        super().__init__(VOCABULARY, scripted_probs(1, VOCABULARY))
        self.owners: list[str] = []

    def open_for(self, owner: str, capacity: int, spare: int = 0) -> ContextSession:
        self.owners.append(owner)
        return super().open(capacity, spare)


@pytest.mark.parametrize("wrapped", [False, True])
async def test_an_engine_s_own_prefix_cache_is_told_whose_text_it_is(wrapped: bool) -> None:
    noting = OwnersEngine()
    engine: Any = PacedEngine(noting, 0.0, 0.0) if wrapped else noting
    async with verifier(engine) as cloud:
        for caller, tenant in (("a", b"x"), ("a", b"y"), ("b", b"x"), ("b", b""), ("a", b"x")):
            await cloud.answer(caller, prompt_of(1), tenant=tenant)
    assert len(set(noting.owners)) == 4
    assert noting.owners[0] == noting.owners[4]


async def two_turns(engine: Engine, preset: str, prefixes: PrefixLimits) -> list[Generated]:
    """A chat's turns at one seed, through all services."""
    limits = DrafterLimits(
        liveness=LivenessTimes(give_up_after_s=30.0), stuck_after_s=TIMEOUT_S, prefixes=prefixes
    )
    cloud, answers = VerifierLimits(stuck_after_s=TIMEOUT_S, prefixes=prefixes), []
    async with scripted_suite(cloud, limits, target=engine, draft=engine) as suite:
        prompt = CHAT
        for _ in range(2):
            asked = GenerationRequest(
                prompt, preset, GenerationParams(max_tokens=12, seed=5, ignore_eos=True)
            )
            answers.append(await suite.client.generate(asked))
            prompt += answers[-1].text + "and then"
            await suite.idle()
    return answers


@pytest.mark.parametrize(
    "preset",
    with_long_cases(["coupled", "auto", "mc-dsd", "ar"], ("auto", "mc-dsd", "ar")),
)
async def test_the_second_turn_of_a_chat_is_the_same_text_and_says_what_was_kept(
    engine: Engine, preset: str
) -> None:
    kept = await two_turns(engine, preset, PrefixLimits())
    fresh = await two_turns(engine, preset, NOTHING)
    assert [each.token_ids for each in kept] == [each.token_ids for each in fresh]
    summaries = [each.summary for each in (*kept, *fresh)]
    told = [summary.cached_tokens for summary in summaries if summary is not None]
    assert told == [0, 3 * KV_BLOCK, 0, 0]


@pytest.mark.parametrize("preset", with_long_cases(["coupled", "auto"], ("coupled",)))
async def test_answers_to_one_prompt_compute_it_once(engine: Engine, preset: str) -> None:
    """At both ends, over HTTP, whole and streamed; a prompt that is new each time."""
    async with http_suite(target=engine, draft=engine) as served:
        common: dict[str, Any] = {
            "model": engine.model_name,
            "max_tokens": 6,
            "ignore_eos": True,
            "seed": 5,
            "tandem": {"preset": preset},
        }
        for number, stream in enumerate((False, True)):
            prompt = str(number) + CHAT
            body = {**common, "prompt": [prompt, "x" + prompt], "n": 4, "stream": stream}
            options = {"stream_options": {"include_usage": True}} if stream else {}
            answer = await served.post("/v1/completions", body | options)
            assert answer.status_code == 200
            last = answer.text.rsplit("data: ")[-2] if stream else answer.text
            assert json.loads(last)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
            await served.suite.idle()
        alone = [(await served.post("/v1/completions", {**common, "prompt": CHAT})).json()]
        alone.append((await served.post("/v1/completions", {**common, "prompt": CHAT})).json())
        both = (await served.post("/v1/completions", {**common, "prompt": CHAT, "n": 2})).json()
        await served.suite.idle()
    usages = [told["usage"]["prompt_tokens_details"]["cached_tokens"] for told in (*alone, both)]
    assert usages == [0, 3 * KV_BLOCK, 3 * KV_BLOCK]
    assert both["choices"][0]["text"] == alone[0]["choices"][0]["text"]
    for metrics, side in (
        (served.suite.cloud_metrics, "cloud"),
        (served.suite.edge_metrics, "device"),
    ):
        labels = {"side": side, "model_name": engine.model_name}
        told = metrics.registry.get_sample_value
        misses, hits = (
            told("tandem_prefix_lookups_total", {**labels, "outcome": outcome}) or 0
            for outcome in ("miss", "hit")
        )
        # Of four texts each the first choice, and of one the very first of four.
        if side == "device" and preset == "auto":
            # Answers without drafts need nothing there; some end before their prompt is computed.
            assert misses + hits <= 20
        else:
            assert (misses, hits) == (5, 15)
        assert told("tandem_prefix_hit_tokens_total", labels) == hits * 3 * KV_BLOCK


class SlowPrompts(ScriptedEngine):
    """Feeds a block or more at once only when it is told to."""

    def __init__(self) -> None:
        super().__init__(VOCABULARY, scripted_probs(1, VOCABULARY), context_length=CONTEXT)
        self.goes_on = threading.Event()
        self.long = 0

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = lambda: False
    ) -> list[Logits]:
        if any(len(request.token_ids) >= KV_BLOCK for request in batch):
            self.long += 1
            assert self.goes_on.wait(TIMEOUT_S)
        return super().forward(batch, cancelled)


async def test_a_slow_device_s_prompt_is_not_interrupted_by_the_cloud_s_tokens() -> None:
    """It would begin anew with each of them, and never come to draft."""
    draft, tokens = SlowPrompts(), 0
    limits = DrafterLimits(stuck_after_s=TIMEOUT_S)
    async with scripted_suite(drafter_limits=limits, draft=draft) as suite:
        asked = GenerationRequest(
            CHAT, "stream", GenerationParams(max_tokens=40, seed=3, ignore_eos=True)
        )
        async for answer in suite.client.stream(asked, TIMEOUT_S):
            tokens = len(answer.token_ids)
            if tokens >= 4:
                draft.goes_on.set()
    assert (tokens, draft.long) == (40, 1)
