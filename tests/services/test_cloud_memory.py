"""What a verifier remembers: off by default, for its own drafts, and for the same tenant alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import generate_latest

from tandem.core.sharing import parse_sharing
from tandem.generation.client import Generated
from tandem.generation.request import GenerationRequest
from tandem.net.lifecycle import RunningService
from tandem.runtime.prefix_cache import PrefixLimits
from tandem.runtime.tenant_memories import MemoryLimits
from tandem.services.drafter.servicer import DrafterLimits
from tandem.services.verifier.config import VerifierSettings, memory_limits
from tandem.services.verifier.servicer import VerifierLimits, VerifierServicer
from tandem.specdec.messages import GenerationParams
from tandem.telemetry.metrics import Metrics, new_registry
from tandem.testing.paced import PacedEngine
from tandem_api.verifier.v1 import verifier_pb2_grpc
from tests.services.scripted_suite import (
    Suite,
    draft_engine,
    scripted_suite,
    serving,
    summary_of,
    target_engine,
    until,
)
from tests.services.test_fair_shares import Unguarded
from tests.services.two_sided_suite import TOKENS, two_sides
from tests.services.two_sided_suite import asking as from_documents
from tests.services.verifier_peer import TIMEOUT_S, EdgePeer, opening

REMEMBERING = VerifierLimits(memory=MemoryLimits())
PARAMS = GenerationParams(max_tokens=40, seed=3, ignore_eos=True)
LOOKUP = ("cloud_drafts=lookup", "cloud_draft_length=10")
"""Of `cloud-draft`: drafts that need no model."""


def slow_target() -> PacedEngine:
    """A target whose passes take so long that drafts pay."""
    return PacedEngine(target_engine(), 0.003, 0.0)


@asynccontextmanager
async def suite_with(
    verifier_limits: VerifierLimits = REMEMBERING,
    edge_remembers: bool = True,
    sharing: str = "",
) -> AsyncIterator[Suite]:
    async with scripted_suite(
        target=slow_target(),
        verifier_limits=verifier_limits,
        drafter_limits=DrafterLimits(prefixes=PrefixLimits(sharing=parse_sharing(sharing))),
        memory=MemoryLimits() if edge_remembers else None,
        cloud_draft=draft_engine(),
    ) as suite:
        yield suite


async def remembered(verifier: RunningService) -> None:
    """Until all that has ended there is remembered."""
    service: Any = verifier.service
    await until(lambda: not service.open_requests)
    if service._memory is not None:
        await service._memory.learned()


async def asked(
    suite: Suite, preset: str = "", overrides: Sequence[str] = (), **more: Any
) -> Generated:
    """An answer, once it is remembered; without drafts of the edge unless a preset is named."""
    named = GenerationRequest("tell me this", preset or "cloud-draft", PARAMS)
    chosen = (*(() if preset else LOOKUP), *overrides)
    request = replace(named, overrides=chosen, **more)
    answer = await suite.client.generate(request)
    await suite.idle()
    await remembered(suite.verifier)
    return answer


def passes(answer: Generated) -> int:
    return summary_of(answer).target_passes


@pytest.mark.parametrize("preset", ["", "cloud-draft"])
async def test_the_same_question_takes_fewer_passes_and_has_the_same_answer(preset: str) -> None:
    async with suite_with() as suite:
        alone = await asked(suite, "ar", no_memory=True)
        first, again = [await asked(suite, preset) for _ in range(2)]
        shown = generate_latest(suite.cloud_metrics.registry).decode()
    assert first.token_ids == again.token_ids == alone.token_ids
    assert passes(again) < 0.6 * passes(first)
    assert again.token_sources.count("cloud_draft") > 20
    line = next(
        line
        for line in shown.splitlines()
        if line.startswith("tandem_memory_tokens_total{") and 'outcome="accepted"' in line
    )
    assert 'side="cloud"' in line
    assert float(line.split()[-1]) > 20


async def test_what_an_edge_drafted_is_remembered_for_drafts_of_the_cloud() -> None:
    async with suite_with() as suite:
        first = await asked(suite, "coupled")
        again = await asked(suite)
    assert again.token_ids == first.token_ids
    assert passes(again) < 20


async def test_nothing_is_remembered_by_default() -> None:
    assert memory_limits(VerifierSettings()) is None
    async with suite_with(VerifierLimits()) as suite:
        first, again = [await asked(suite) for _ in range(2)]
        shown = generate_latest(suite.cloud_metrics.registry).decode()
    assert passes(again) == passes(first)
    assert "tandem_memory_tokens_total{" not in shown


def test_a_verifier_remembers_as_much_as_it_is_given() -> None:
    settings = VerifierSettings(cloud_memory_tokens=1000, cloud_memory_total_tokens=10)
    assert memory_limits(settings) == MemoryLimits(1000, 1000)


async def test_tenants_share_nothing() -> None:
    async with suite_with() as suite:
        first = await asked(suite, tenant=b"alice")
        other = await asked(suite, tenant=b"bob")
        nobody = await asked(suite)
        again = await asked(suite, tenant=b"alice")
    assert passes(other) == passes(nobody) == passes(first)
    assert passes(again) < 0.6 * passes(first)
    assert first.token_ids == other.token_ids == nobody.token_ids == again.token_ids


async def test_edges_share_nothing_though_they_name_the_same_tenant() -> None:
    servicer = VerifierServicer(slow_target(), REMEMBERING, Metrics(new_registry(), "cloud"))
    async with serving(servicer, access=Unguarded()) as verifier:
        taken = [await passes_of(verifier, edge) for edge in ("one", "other", "one", "other")]
    assert taken[0] == taken[1]
    assert taken[2] == taken[3] < 0.6 * taken[0]


async def passes_of(verifier: RunningService, edge: str) -> int:
    """The passes of a session that this edge opens for its tenant "x"."""
    frame = opening("auto", prompt_ids=tuple(range(3, 15)), allows_memory=True, tenant=b"x")
    async with grpc.aio.insecure_channel(verifier.target) as channel:
        stub: Any = verifier_pb2_grpc.VerifierServiceStub(channel)
        peer = EdgePeer(stub.Verify(timeout=TIMEOUT_S, metadata=(("holder", edge),)))
        await peer.send(frame)
        count = 0
        while count < 40:
            tokens = (await peer.answer("committed")).committed
            count += len(tokens.token_ids)
        await peer.half_close()
        assert (await peer.ending()).code == "OK"
    await remembered(verifier)
    return tokens.work.target_passes


async def test_what_is_not_to_be_remembered_is_neither_kept_nor_drafted_from() -> None:
    async with suite_with() as suite:
        first = await asked(suite, no_memory=True)
        second = await asked(suite)
        assert passes(second) == passes(first), "the first was not kept"
        assert passes(await asked(suite, no_memory=True)) == passes(first)
        assert passes(await asked(suite)) < 0.6 * passes(first)


async def test_an_edge_that_remembers_nothing_lets_its_cloud_remember_nothing() -> None:
    async with suite_with(edge_remembers=False) as suite:
        first, again = [await asked(suite) for _ in range(2)]
    assert passes(again) == passes(first)


async def test_tenants_that_the_edge_does_not_tell_apart_are_not_remembered() -> None:
    """They share prefixes there, under one id for all of them."""
    async with suite_with(sharing="*") as suite:
        first, again = [await asked(suite) for _ in range(2)]
        assert passes(again) == passes(first)
        named = [await asked(suite, tenant=b"alice") for _ in range(2)]
    assert passes(named[1]) < 0.6 * passes(named[0])


async def test_nothing_remembered_is_in_a_log_line(capsys: pytest.CaptureFixture[str]) -> None:
    async with suite_with() as suite:
        for _ in range(2):
            await asked(suite, prompt="xyzzy" * 10)
    captured = capsys.readouterr()
    assert "xyzzy" not in captured.out + captured.err


@pytest.mark.parametrize("preset", ["dragon", "dragon-coupled"])
async def test_nothing_of_answers_from_documents_is_remembered(preset: str, tmp_path: Path) -> None:
    """Neither the device's documents nor the text that both sides decode."""
    async with two_sides(tmp_path, limits=REMEMBERING) as sides:
        answer = await sides.client.generate(from_documents(preset))
        assert len(answer.token_ids) == TOKENS
        await remembered(sides.verifier)
        service: Any = sides.verifier.service
        assert not service._memory._tenants
