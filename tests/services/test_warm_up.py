"""A session that a verifier asks to leave: its text is computed where it goes before it moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tandem.backends.interface import KV_BLOCK, Engine
from tandem.backends.torch.loading import load_engine
from tandem.core.processors import Processors
from tandem.core.tokens import PrefixedTokens
from tandem.net.connection import Connection
from tandem.net.reloaded import BadFile
from tandem.services.drafter.cloud.route import CloudRoute
from tandem.services.drafter.cloud.warm_up import asks_for_one, warm_up
from tandem.specdec.cloud import CloudModel, check_open, opened_text
from tandem.specdec.messages import GenerationParams, Open, Opened, Tokens
from tandem.specdec.presets import PRESETS
from tandem.testing.paced import PacedEngine
from tests.long_runs import with_long_cases
from tests.services.test_kept_prefixes import tiny_model
from tests.services.test_several_clouds import TwoClouds, begun, expected, requests, two_clouds

GRACE_S = 10.0
REST_S = 0.02


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


def letters(count: int, first: int) -> str:
    return "".join(chr(97 + (first + 5 * number) % 23) for number in range(count))


def hits(clouds: TwoClouds, name: str, **labels: str) -> float:
    more = {"side": "cloud", "model_name": clouds.engines[0].model_name, **labels}
    registry = clouds.suite.cloud_metrics.registry
    return registry.get_sample_value(f"tandem_prefix_{name}", more) or 0.0


async def leave_the_second(clouds: TwoClouds, preset: str) -> float:
    """As it stops: how many tokens of a text that moves the first one had computed."""
    asked = [
        replace(each, prompt=letters(3 * KV_BLOCK + 5, each.params.seed))
        for each in requests(4, preset)
    ]
    under_way = begun(clouds.suite, asked)
    await clouds.until_served(1, 1)
    await clouds.second.drain(GRACE_S)
    moved = clouds.moves("draining")
    answers = await asyncio.gather(*under_way)
    found = hits(clouds, "hit_tokens_total")
    assert moved >= 1
    assert [each.token_ids for each in answers] == await expected(clouds.suite, asked)
    return found / moved


@pytest.mark.parametrize("preset", with_long_cases(["coupled", "dssd"], ("dssd",)))
async def test_its_text_is_there_when_it_comes(preset: str, model: Path) -> None:
    engines = paced(model), paced(model)
    draft = load_engine(model)
    async with two_clouds(first=engines[0], second=engines[1], draft=draft) as clouds:
        assert await leave_the_second(clouds, preset) >= 3 * KV_BLOCK


async def test_it_leaves_without_where_nothing_can_be_asked(
    monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    def unusable(route: CloudRoute, cloud: int) -> Connection:
        raise BadFile(Path("ca.crt"), "cannot be read")

    monkeypatch.setattr(CloudRoute, "connection", unusable)
    engines = paced(model), paced(model)
    draft = load_engine(model)
    async with two_clouds(first=engines[0], second=engines[1], draft=draft) as clouds:
        assert await leave_the_second(clouds, "coupled") == 0


def paced(model: Path) -> Engine:
    """Slow enough for a request to be moved on its way."""
    return PacedEngine(load_engine(model), 0.004, 0.0)


def opening() -> Open:
    text = PrefixedTokens((1, 2, 3, 4, 5))
    params = GenerationParams(
        max_tokens=2 + 1, logprobs=True, top_logprobs=2, processors=Processors(presence_penalty=0.5)
    )
    where = 7, 3, len(text), text.prefix
    return Open(*where, "hash", 64, (1, 2, 3), (4, 5), params, PRESETS["coupled"].verify_settings)


def test_no_more_than_the_next_token_is_asked_for() -> None:
    asked = asks_for_one(replace(opening(), params=GenerationParams(max_tokens=100)))
    check_open(asked, CloudModel("target", "hash", 64, 32, frozenset()))
    assert opened_text(asked).since(0) == (1, 2, 3, 4, 5)
    assert asked.params.max_tokens == 3
    assert not asked.settings.drafts
    assert asks_for_one(opening()).params == GenerationParams(max_tokens=3)


class Asked:
    """A stream, and when the warm-up over it ends."""

    def __init__(self, grace_s: float = GRACE_S, turn: asyncio.Lock | None = None) -> None:
        self.closed = 0
        self.sent: list[object] = []
        self.heard: Callable[[Any, int], None] = lambda message, size: None
        self.ended: Callable[[BaseException | None], None] = lambda error: None
        opened: Any = self._open
        turn = turn or asyncio.Lock()
        self.task = asyncio.create_task(warm_up(opening, opened, turn, REST_S, grace_s, set()))

    def _open(self, on_frame: Any, on_end: Any) -> Any:
        self.heard, self.ended = on_frame, on_end
        return self

    async def begun(self) -> Asked:
        while not self.sent:
            await asyncio.sleep(0)
        return self

    def send(self, message: object) -> int:
        self.sent.append(message)
        return 1

    def close_in_background(self, closing_tasks: set[asyncio.Task[None]]) -> None:
        self.closed += 1


FRAME = 7, 3, 5, 0


async def test_it_is_over_with_the_first_token() -> None:
    asked = await Asked().begun()
    assert asked.sent == [asks_for_one(opening())]
    asked.heard(Opened(*FRAME, 4, 32, frozenset(), "target"), 1)
    await asyncio.sleep(0.01)
    assert not asked.task.done()
    asked.heard(Tokens(*FRAME, token_ids=(1,)), 1)
    await asked.task
    assert asked.closed == 1


async def test_it_is_over_with_the_stream() -> None:
    asked = await Asked().begun()
    asked.ended(None)
    await asked.task
    assert asked.closed == 1


async def test_it_leaves_time_to_leave() -> None:
    asked = await Asked(0.05).begun()
    await asked.task
    assert asked.closed == 1


async def test_one_text_is_computed_after_the_other() -> None:
    turn = asyncio.Lock()
    first, second = Asked(turn=turn), Asked(turn=turn)
    await first.begun()
    await asyncio.sleep(0.01)
    assert not second.sent
    first.ended(None)
    await second.begun()
    second.task.cancel()
    await asyncio.gather(second.task, return_exceptions=True)
    assert (second.closed, turn.locked()) == (1, True)
    await asyncio.wait_for(turn.acquire(), GRACE_S)
