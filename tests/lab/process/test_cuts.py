"""A small `tandem bench cuts`: real processes, the link cut in the middle of answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import grpc
import pytest

from lab.bench.harness.suite import LinkController
from lab.bench.speculation.cuts import PACING, CutPlan, cut_answers, goals
from tandem_api.verifier.v1 import verifier_pb2, verifier_pb2_grpc
from tests.process.service_process import DEADLINE_S, ROOT, ServiceProcess

DRAFT, TARGET = (str(ROOT / "models" / f"demo-{name}") for name in ("draft", "target"))
GIVE_UP_S = 3.0
PLAN = CutPlan(short=5, short_s=1.0, long=3, long_s=5.0, alone=3, max_tokens=40)
"""Every preset is met by a cut."""


@dataclass(frozen=True, slots=True)
class CutSuite:
    """Where to ask, and how to cut."""

    aggregator: str
    verifier: str
    link: LinkController


@pytest.fixture(scope="module")
def suite() -> Iterator[CutSuite]:
    with ExitStack() as stack:

        def start(module: str, *flags: str) -> ServiceProcess:
            return stack.enter_context(ServiceProcess(module, *flags))

        paces = (
            *("--pace-first-s", str(PACING.verify_first_s)),
            *("--pace-further-s", str(PACING.verify_further_s)),
        )
        cloud = start("tandem.testing.verifier", "--port", "0", "--model", TARGET, *paces)
        verifier = cloud.address()
        emulator = start("lab.bench.harness.link_process", verifier)
        drafter = start(
            "tandem.testing.drafter",
            *("--port", "0", "--model", DRAFT, "--verifier", emulator.address()),
            *("--pace-first-s", str(PACING.draft_s), "--give-up-after-s", str(GIVE_UP_S)),
        )
        aggregator = start(
            "tandem.services.aggregator",
            *("--port", "0", "--http-port", "0", "--drafter", drafter.address()),
        )
        yield CutSuite(aggregator.address(), verifier, LinkController(emulator.words[2]))


@pytest.mark.timeout(300)
async def test_a_cut_changes_no_text(suite: CutSuite) -> None:
    trials = await cut_answers(suite.aggregator, suite.link, PLAN, seed=11)
    reached = goals(trials, PLAN)
    assert len(reached) == 8
    assert not [goal.line() for goal in reached if not goal.met], [
        (trial.request.preset, trial.error) for trial in trials if not trial.same
    ]
    alone = [trial for trial in trials if trial.cut is not None and trial.cut.unverified]
    assert len(alone) == PLAN.alone
    assert any(trial.verified for trial in alone)
    for trial in alone:
        assert trial.cut is not None
        assert trial.cut.summary is not None
        assert trial.cut.summary.unverified_tokens == len(trial.cut.unverified)
    await _verifier_is_empty(suite.verifier)


async def _verifier_is_empty(verifier: str) -> None:
    """The streams that the cuts left behind are gone too."""
    async with grpc.aio.insecure_channel(verifier) as channel, asyncio.timeout(DEADLINE_S):
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        while True:
            described = await stub.Describe(verifier_pb2.DescribeRequest())
            if described.sessions_open == described.kv_bytes_in_use == 0:
                return
            await asyncio.sleep(0.05)
