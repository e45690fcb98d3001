"""The suite inside one process: it serves, through a link if asked, and leaves nothing behind."""

from __future__ import annotations

import socket

import pytest

from tandem.commands.ask_suite import ask
from tandem.generation.client import Generated
from tandem.generation.request import GenerationRequest
from tandem.netem.link_model import shape_from
from tandem.specdec.messages import GenerationParams
from tandem.suite.embedded import EmbeddedSuite
from tests.unit.cli.scripted_pair import scripted_pair

REQUEST = GenerationRequest("hello", params=GenerationParams(max_tokens=24, seed=3))
TIMEOUT_S = 60.0


def is_listening(target: str) -> bool:
    host, port = target.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


async def test_it_answers_and_is_gone_afterwards() -> None:
    pair = scripted_pair()
    async with EmbeddedSuite(pair) as suite:
        result = await ask(suite.target, REQUEST, TIMEOUT_S)
        targets = suite.target, suite.drafter_target, suite.verifier_target
        assert all(map(is_listening, targets))
    assert len(result.token_ids) == 24
    assert not any(map(is_listening, targets))
    assert (pair.draft.sessions_open, pair.target.sessions_open) == (0, 0)


async def test_metrics_of_each_service_are_at_hand() -> None:
    async with EmbeddedSuite(scripted_pair()) as suite:
        await ask(suite.target, REQUEST, TIMEOUT_S)
        registry = suite.metrics["aggregator"].registry
    labels = {"preset": "auto", "side": "device"}
    counted = [
        registry.get_sample_value("tandem_tokens_total", {**labels, "model_name": name})
        for name in ("unknown", "scripted")  # the name becomes known while the first request runs
    ]
    assert sum(filter(None, counted)) == 24


async def test_a_link_lies_between_drafter_and_verifier() -> None:
    link = shape_from(0.04)
    async with EmbeddedSuite(scripted_pair(), link=link) as suite:
        linked = await ask(suite.target, REQUEST, TIMEOUT_S)
        assert suite.emulator is not None
        assert suite.emulator.stats().up_bytes > 0
    async with EmbeddedSuite(scripted_pair()) as suite:
        direct = await ask(suite.target, REQUEST, TIMEOUT_S)
        assert suite.emulator is None
    assert linked.text == direct.text
    assert linked.ttft_s is not None
    assert linked.ttft_s >= 0.04


async def test_a_view_that_fails_cancels_the_request_everywhere() -> None:
    def leave(result: Generated) -> None:
        if result.token_ids:
            raise BrokenPipeError

    pair = scripted_pair()
    request = GenerationRequest("hello", params=GenerationParams(max_tokens=400))
    async with EmbeddedSuite(pair) as suite:
        with pytest.raises(BrokenPipeError):
            await ask(suite.target, request, TIMEOUT_S, leave)
    assert (pair.draft.sessions_open, pair.target.sessions_open) == (0, 0)
