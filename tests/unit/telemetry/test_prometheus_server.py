"""What is asked of a Prometheus server, against real HTTP servers: one that speaks recorded
answers, and some that are gone, slow or talk nonsense."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tandem.core.errors import InvalidArgument
from tandem.telemetry.prometheus_server import (
    ACCEPTANCE,
    DRAFT_STEP,
    QUEUE,
    RULES,
    PrometheusServer,
    Sample,
    labels_of,
    mean_of,
)
from tests.prometheus_process import served, vector

PAIR = {"suite": "tandem", "engine": "small", "model_name": "large", "preset": "stream"}
GOOD = (200, vector((ACCEPTANCE, PAIR, "0.25"), (QUEUE, {"model_name": "large"}, "0.5")))


async def test_numbers_come_with_their_labels_and_only_this_suite_s_are_asked_for() -> None:
    asked: list[str] = []

    def answer(what: str, query: str) -> tuple[int, bytes]:
        asked.append(query)
        return GOOD

    with served(answer) as address:
        server = PrometheusServer(address, {"suite": "tandem", "release": "prod"})
        assert server.read() == ()
        assert await server.refresh()
    assert server.read() == (
        Sample(ACCEPTANCE, PAIR, 0.25),
        Sample(QUEUE, {"model_name": "large"}, 0.5),
    )
    (query,) = asked
    assert query.endswith(',suite="tandem",release="prod"}')
    assert all(rule in query for rule in RULES)


async def test_it_is_asked_from_the_start_until_the_end() -> None:
    with served(lambda what, query: GOOD) as address:
        server = PrometheusServer(address, {})
        server.start()
        async with asyncio.timeout(30):
            while not server.read():
                await asyncio.sleep(0.01)
        await server.close()
        await server.close()


@pytest.mark.parametrize(
    "answer",
    [
        (500, b""),
        (200, b"<html>not a metrics server</html>"),
        (200, b"[]"),
        (200, b'{"status":"success","data":{"result":[{"metric":{}}]}}'),
        (200, b'{"status":"success","data":{"result":[{"metric":"up","value":[0,"1"]}]}}'),
        (200, b"[" * 2**19),
        (200, b'{"status":"error","error":"query timed out"}'),
        (200, b" " * (2**20 + 1)),
    ],
    ids=["failing", "html", "list", "torn", "words", "deep", "error", "endless"],
)
async def test_nonsense_is_a_server_that_is_lost(answer: tuple[int, bytes]) -> None:
    good = True
    with served(lambda what, query: GOOD if good else answer) as address:
        server = PrometheusServer(address, {})
        assert await server.refresh()
        good = False
        assert not await server.refresh()
        assert server.read() == ()
        good = True
        assert await server.refresh()
        assert server.read()


async def test_a_server_that_is_gone_or_silent_is_survived() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert not await PrometheusServer(address, {}, timeout_s=0.05).refresh()
    gone = PrometheusServer(address, {})
    assert not await gone.refresh()
    assert gone.read() == ()


def test_labels_are_read_and_cannot_leave_their_quotes() -> None:
    assert labels_of(" suite=tandem, release=prod-1 ,") == {"suite": "tandem", "release": "prod-1"}
    assert labels_of("") == {}
    for text in ("suite", "=x", 'a="b"', 'a=b"} or up{x="', "a=b\\"):
        with pytest.raises(InvalidArgument, match="prometheus_labels"):
            labels_of(text)


def test_one_s_own_instance_is_preferred_and_others_models_do_not_count() -> None:
    samples = [
        Sample(DRAFT_STEP, {"engine": "small", "instance": "a"}, 0.1),
        Sample(DRAFT_STEP, {"engine": "small", "instance": "b"}, 0.3),
        Sample(DRAFT_STEP, {"engine": "tiny", "instance": "c"}, 0.01),
    ]

    def step(engine: str, instance: str) -> float | None:
        mean = mean_of(samples, DRAFT_STEP, {"engine": engine}, {"instance": instance})
        return None if mean is None else mean.value

    assert step("small", "a") == pytest.approx(0.1)
    assert step("small", "z") == pytest.approx(0.2), "not among them: all with its model"
    assert step("large", "a") is None
    assert step("", "z") is None, "two models, and nobody knows which is meant"
