"""Tenants from a caller's key to the cloud's: callers over gRPC, and what all have in common."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from tandem.backends.interface import KV_BLOCK
from tandem.core.prompt import Prompt, Turn
from tandem.core.sharing import parse_sharing
from tandem.generation.request import GenerationRequest, request_to_proto
from tandem.runtime.prefix_cache import PrefixLimits
from tandem.services.drafter.public_prompts import PublicPrompts, rendered_by
from tandem.services.drafter.servicer import DrafterLimits
from tandem.specdec.messages import GenerationParams
from tandem.testing.scripted import ScriptedTokenizer
from tandem_api.aggregator.v1 import aggregator_pb2_grpc
from tandem_api.common.v1 import generation_pb2 as pb
from tandem_api.drafter.v1 import drafter_pb2_grpc
from tests.gateway.test_tenants import TEXT, keeping_engines
from tests.services.scripted_suite import VOCABULARY, Suite, sample, scripted_suite
from tests.services.test_fair_shares import Unguarded
from tests.services.verifier_peer import TIMEOUT_S

PUBLIC = "".join(chr(97 + (5 * number) % 23) for number in range(KV_BLOCK + 20))
STUBS: dict[str, Any] = {
    "drafter": drafter_pb2_grpc.DrafterServiceStub,
    "aggregator": aggregator_pb2_grpc.AggregatorServiceStub,
}


@dataclass(frozen=True, slots=True)
class Edge:
    """Services that believe their callers' names. `asked`: the aggregator, or the drafter."""

    suite: Suite
    asked: Any

    async def cached_tokens(self, caller: str, prompt: Prompt = TEXT, tenant: bytes = b"") -> int:
        request = GenerationRequest(
            prompt,
            "coupled",
            GenerationParams(max_tokens=4, ignore_eos=True, seed=3),
            tenant=tenant,
        )
        call = self.asked.Generate(timeout=TIMEOUT_S, metadata=(("holder", caller),))
        await call.write(pb.GenerateRequest(start=request_to_proto(request)))
        found = -1
        while (answer := await call.read()) is not grpc.aio.EOF:
            if answer.HasField("summary"):
                found = answer.summary.cached_tokens
        await self.suite.idle()
        return found

    def found_on_the_device(self) -> float:
        name = "tandem_prefix_hit_tokens_total"
        return sample(self.suite.edge_metrics, name, model_name="scripted")


@asynccontextmanager
async def edge(
    public_prompts: PublicPrompts | None = None, sharing: str = "", aggregator: bool = False
) -> AsyncIterator[Edge]:
    draft, target = keeping_engines()
    limits = DrafterLimits(prefixes=PrefixLimits(sharing=parse_sharing(sharing)))
    asked = "aggregator" if aggregator else "drafter"
    async with (
        scripted_suite(
            drafter_limits=limits,
            target=target,
            draft=draft,
            access=lambda service: Unguarded() if service == asked else None,
            public_prompts=public_prompts,
        ) as suite,
        grpc.aio.insecure_channel(getattr(suite, asked).target) as channel,
    ):
        yield Edge(suite, STUBS[asked](channel))


@pytest.mark.parametrize("aggregator", [True, False])
async def test_callers_find_nothing_of_each_other_though_they_give_the_same_id(
    aggregator: bool,
) -> None:
    async with edge(aggregator=aggregator) as served:
        for tenant in (b"", b"the same"):
            before = served.found_on_the_device()
            assert await served.cached_tokens("alice", tenant=tenant) == 0
            assert await served.cached_tokens("bob", tenant=tenant) == 0
            assert served.found_on_the_device() == before
            assert await served.cached_tokens("alice", tenant=tenant) == 3 * KV_BLOCK


@pytest.mark.parametrize("aggregator", [True, False])
async def test_a_caller_s_own_tenants_are_apart(aggregator: bool) -> None:
    """A program in between, which has callers of its own."""
    async with edge(aggregator=aggregator) as served:
        assert await served.cached_tokens("between", tenant=b"x") == 0
        assert await served.cached_tokens("between", tenant=b"y") == 0
        assert await served.cached_tokens("between") == 0
        assert served.found_on_the_device() == 0
        assert await served.cached_tokens("between", tenant=b"x") == 3 * KV_BLOCK


async def test_callers_of_a_drafter_share_where_they_are_named() -> None:
    async with edge(sharing="alice,bob") as served:
        assert await served.cached_tokens("alice") == 0
        assert await served.cached_tokens("bob") == 3 * KV_BLOCK
        assert served.found_on_the_device() == 3 * KV_BLOCK
        assert await served.cached_tokens("carol") == 0


def conversation(system: str, user: str = TEXT) -> Prompt:
    return Turn("system", system), Turn("user", user)


async def test_a_public_system_prompt_is_shared_and_what_follows_is_not() -> None:
    public = rendered_by(ScriptedTokenizer(VOCABULARY), [PUBLIC])
    async with edge(public, aggregator=True) as served:
        assert await served.cached_tokens("alice", conversation(PUBLIC)) == 0
        assert await served.cached_tokens("bob", conversation(PUBLIC)) == KV_BLOCK
        assert served.found_on_the_device() == KV_BLOCK
        whole = (len(PUBLIC + TEXT) - 1) // KV_BLOCK * KV_BLOCK
        assert await served.cached_tokens("alice", conversation(PUBLIC)) == whole
        assert await served.cached_tokens("alice", conversation("my own " + PUBLIC)) == 0
        assert await served.cached_tokens("bob", conversation("my own " + PUBLIC)) == 0
