"""What a further row of a pass costs: the verifier measures it before anybody asks, and says it to
each edge."""

from __future__ import annotations

import pytest

from tandem.services.verifier.servicer import VerifierLimits, VerifierServicer
from tandem.telemetry.metrics import Metrics, new_registry
from tandem.testing.scripted import ScriptedEngine, scripted_probs
from tandem.testing.settings import PacedVerifierSettings
from tandem.testing.verifier.__main__ import build
from tandem_api.verifier.v1 import verifier_pb2 as pb
from tests.services.scripted_suite import serving, target_engine
from tests.services.verifier_peer import edge_peer, opening


@pytest.fixture(autouse=True)
def passes_that_sleep() -> None:
    """In the place of that of all services' tests: here passes take what they are declared to."""


async def opened_by(servicer: VerifierServicer, frame: pb.VerifyRequest) -> pb.Opened:
    async with serving(servicer) as verifier, edge_peer(verifier.target) as peer:
        await peer.send(frame)
        return (await peer.answer("opened")).opened


async def test_a_verifier_says_what_its_engine_takes_for_a_row() -> None:
    """Five rows take 2.5 times as long as one, by declaration."""
    settings = PacedVerifierSettings(
        insecure=True,
        model="1",
        engine="scripted",
        pace_first_s=0.008,
        pace_further_s=0.003,
        batch_invariant=True,
    )
    servicer = build(settings, Metrics(new_registry(), "cloud"))
    frame = opening()
    engine = ScriptedEngine(256, scripted_probs(1, 256))
    frame.open.vocabulary_hash, frame.open.vocabulary_size = engine.vocabulary_hash, 256
    opened = await opened_by(servicer, frame)
    assert opened.row_share == pytest.approx(0.375, rel=0.2)
    assert opened.batch_invariant


async def test_one_that_measured_nothing_says_nothing() -> None:
    metrics = Metrics(new_registry(), "cloud")
    opened = await opened_by(
        VerifierServicer(target_engine(), VerifierLimits(), metrics), opening()
    )
    assert not opened.HasField("row_share")
