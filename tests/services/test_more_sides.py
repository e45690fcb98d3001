"""Answers from documents on more than two sides over real gRPC: device, cloud and others, each an
aggregator with a retriever of its own.

What must come out is computed from the definitions, by one machine with all documents.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tandem.core.randomness import SeededRandom
from tandem.generation.figures import answer_figures, figures_line
from tandem.generation.request import GenerationRequest
from tandem.net.status import Rejected
from tandem.netem.tcp_emulator import TcpLinkEmulator
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.retrieval import documents_of
from tandem.specdec.liveness import LostCloud
from tandem.two_sided.many_sides import coupled_number, mixture_of, shares_of
from tandem.two_sided.protocol.local_drafting import local_drafting
from tandem.two_sided.protocol.mixture import Side, log_mass
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS
from tests.services.decoding_peer import TOKENIZER, expected_processed_draft, opening
from tests.services.scripted_suite import emulated
from tests.services.test_two_sides import PROCESSORS, central_text
from tests.services.two_sided_suite import QUERY, TOKENS, TwoSides, asking, two_sides

MORE = {"office": ("the office keeps a heron", "heron of the office"), "lab": ("a heron",)}


async def text_of_all(suite: TwoSides, request: GenerationRequest) -> list[int]:
    """What one machine with all documents answers, from the same random numbers."""
    choices = local_drafting(AGGREGATION_PRESETS[request.preset], request.params.sampling)
    opens, masses = [], []
    for number, retriever in enumerate(suite.retrievers):
        found = documents_of((await retriever.search(QUERY, 2)).hits)
        masses.append(log_mass([each.relevance for each in found]))
        opens.append(
            opening(
                prompt=request.prompt,
                documents=found,
                side=Side(min(number, Side.CLOUD)),
                sampling=choices.sampling,
                probs=choices.probs,
                seed=request.params.seed,
                processors=request.params.processors,
            )
        )
    rng, text = SeededRandom(request.params.seed), TOKENIZER.encode(str(request.prompt))
    start = len(text)
    while len(text) < start + request.params.max_tokens:
        drafts = [expected_processed_draft(each, text) for each in opens]
        shares = shares_of([mass + each[2] for mass, each in zip(masses, drafts, strict=True)])
        if request.params.sampling.greedy:
            probs: list[Any] = [each[1] for each in drafts]
            text.append(int(mixture_of(probs, shares).argmax()))
        else:
            text.append(drafts[coupled_number(shares, rng, len(text))][0])
    return text[start:]


async def test_texts_are_what_one_machine_with_all_documents_says(tmp_path: Path) -> None:
    async with two_sides(tmp_path, more=MORE) as suite:
        warm = asking("dragon-coupled")
        for request in (
            warm,
            warm.with_fields(temperature=0.0),
            warm.with_fields(processors=PROCESSORS),
        ):
            answer = await suite.client.generate(request)
            assert answer.token_ids == await text_of_all(suite, request)
            assert answer.token_ids != await central_text(suite, request), "two sides say less"
        answer = await suite.client.generate(warm)
        summary, figures = answer.summary, answer_figures(answer)
        assert summary is not None
        assert [side.name for side in summary.more_sides] == ["office", "lab"]
        sides = (summary.device, summary.cloud, *summary.more_sides)
        assert [side.documents for side in sides] == [2, 2, 2, 1]
        assert sum(side.made for side in sides) == TOKENS
        assert answer.token_sources.count("device") == summary.device.made
        named = {"device": "device", "cloud": "cloud", "office": "side", "lab": "side"}
        for source, told in zip(answer.token_sources, answer.token_sides, strict=True):
            assert [named[name] for name in told] == [source]
        for name, side in zip(named, sides, strict=True):
            assert answer.token_sides.count((name,)) == side.made
        assert any(side.made for side in summary.more_sides)
        for side in sides[1:]:
            assert side.round_trip_s > 0
            assert side.uplink_bytes > 0 < side.downlink_bytes
        assert sum(side.uplink_bytes for side in sides[1:]) == summary.uplink_bytes
        assert all(side.made <= side.accepted <= side.drafted for side in sides)
        assert not any(side.names for side in sides[1:]), "names stay where documents are"
        assert figures["more_sides"][1]["name"] == "lab"
        assert figures["more_sides"][1]["uplink_bytes"] == summary.more_sides[1].uplink_bytes
        assert "documents 2 (device), 2 (cloud), 2 (office), 1 (lab)" in figures_line(figures, "")
        drafted, documents = (
            suite.device_metrics.registry.get_sample_value(
                f"tandem_other_side_{what}_total", {"side": "device", "other": "lab"}
            )
            for what in ("judged_tokens", "documents")
        )
        assert drafted is not None
        assert drafted > summary.more_sides[1].drafted, "of all answers"
        assert documents is not None
        assert documents >= 3


async def test_methods_of_two_sides_leave_the_others_out(tmp_path: Path) -> None:
    async with two_sides(tmp_path, more=MORE) as suite:
        request = asking("dragon")
        answer = await suite.client.generate(request)
        assert answer.token_ids == await central_text(suite, request)
        assert answer.summary is not None
        assert not answer.summary.more_sides


@asynccontextmanager
async def to_nobody(address: str) -> AsyncIterator[str]:
    yield "127.0.0.1:9"


async def test_why_sides_are_lost_is_said_of_those_that_take_part(tmp_path: Path) -> None:
    way = to_nobody
    async with two_sides(tmp_path, more=MORE, way=way, more_way=way, give_up_after_s=0.2) as suite:
        for preset, others in (("dragon", False), ("dragon-coupled", True)):
            with pytest.raises(Rejected, match="the cloud is lost: ") as lost:
                await suite.client.generate(asking(preset, lost_cloud=LostCloud.FAIL))
            assert ("office" in str(lost.value)) is others


async def streamed(
    suite: TwoSides, request: GenerationRequest, at_token: Callable[[int], None]
) -> Any:
    result = None
    async for result in suite.client.stream(request):
        at_token(len(result.token_ids))
    return result


async def test_a_broken_link_of_one_side_changes_no_text(tmp_path: Path) -> None:
    links: list[TcpLinkEmulator] = []
    way = lambda address: emulated(address, links)  # noqa: E731
    async with two_sides(tmp_path, more=MORE, more_way=way) as suite:
        request = asking("dragon-coupled", max_tokens=24)
        dropped: list[int] = []

        def drop(tokens: int) -> None:
            if tokens > 6 * (len(dropped) + 1) and len(dropped) < 2:
                links[len(dropped)].drop()
                dropped.append(tokens)

        result = await streamed(suite, request, drop)
        assert len(dropped) == 2
        assert result.token_ids == await text_of_all(suite, request)
        assert result.summary.resumes >= 1


@pytest.mark.parametrize("policy", [LostCloud.EDGE, LostCloud.FAIL])
async def test_a_lost_side_is_given_up_by_policy(policy: LostCloud, tmp_path: Path) -> None:
    links: list[TcpLinkEmulator] = []
    way = lambda address: emulated(address, links)  # noqa: E731
    async with two_sides(tmp_path, more=MORE, more_way=way, give_up_after_s=0.5) as suite:
        request = asking("dragon-coupled", max_tokens=40, lost_cloud=policy)
        await suite.client.generate(asking("dragon-coupled"))  # connects, which may take its time

        def cut(tokens: int) -> None:
            if tokens >= 5:
                links[1].cut()

        if policy is LostCloud.FAIL:
            with pytest.raises(Rejected, match="the cloud is lost"):
                await streamed(suite, request, cut)
            return
        result = await streamed(suite, request, cut)
        verified = 40 - len(result.unverified)
        assert 5 <= verified < 40
        assert result.unverified == list(range(verified, 40))
        assert result.token_ids[:verified] == (await text_of_all(suite, request))[:verified]


async def test_a_caller_that_leaves_frees_all_sides(tmp_path: Path) -> None:
    async with two_sides(tmp_path, more=MORE) as suite:
        kept = [2, 2 + sum(map(len, MORE.values()))]  # documents, of which each side's are cached
        async for result in suite.client.stream(asking("dragon-coupled", max_tokens=90)):
            if len(result.token_ids) >= 3:
                break
        async with asyncio.timeout(20):
            while [suite.device.sessions_open, suite.cloud.sessions_open] != kept:
                await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("more_sides", "why"),
    [
        ("office", "NAME=ADDRESS"),
        ("office=", "NAME=ADDRESS"),
        ("an office=h:1", "NAME=ADDRESS"),
        ("office=h", "is 'h'"),
        ("office=h:1,office=h:2", "different names"),
        ("cloud=h:1", "different names"),
        (",".join(f"s{number}=h:1" for number in range(15)), "has 15 entries; the maximum is 14"),
    ],
)
def test_settings_that_name_no_sides_stop_the_start(more_sides: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        AggregatorSettings(cloud="h:1", more_sides=more_sides)
    with pytest.raises(ValueError, match="requires the setting cloud"):
        AggregatorSettings(more_sides="office=h:1")
    most = ",".join(f"s{number}=h:1" for number in range(14))
    assert AggregatorSettings(cloud="h:1", more_sides=most).more_sides == most
