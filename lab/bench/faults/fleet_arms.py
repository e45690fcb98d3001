"""What happens to a fleet while many chats stream: a verifier is killed, verifiers are upgraded one
after the other, one holder asks for all that he can get.

Each arm starts a fleet of its own. Chats ask one question each, again and again, so that every
answer must be its undisturbed text, token for token.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from lab.bench.faults.chat_load import Traffic, Turn, chats, longest_gap_s, quantile, wrong_tokens
from lab.bench.faults.fleet_suite import FleetShape, FleetSuite, fleet_suite
from lab.bench.faults.tenants import GREEDY, HONEST, make_tenants
from lab.bench.harness.suite import Pacing

PACING = Pacing(draft_s=0.024, verify_first_s=0.072, verify_further_s=0.001)
CHEAP_TOKENS = replace(PACING, verify_further_s=0.0002)
"""As on an accelerator: a pass over a text takes little longer than one over a token."""
PRESET = "auto"
MAX_TOKENS = 96
SETTLE_S = 3.0
GREEDY_AT_ONCE = 64
GREEDY_TOKENS = 200
HONEST_TOKENS = 32


@dataclass(slots=True)
class Disturbed:
    """What chats saw from shortly before a disturbance until after it. `pause_s`: the longest time
    between two events of one answer in it, `usual_s` without one."""

    what: str
    chats: int
    turns: list[Turn] = field(default_factory=list)
    expected: dict[int, list[int]] = field(default_factory=dict)
    usual_s: float = 0.0
    pause_s: float = 0.0
    took_s: float = 0.0
    moves: dict[str, float] = field(default_factory=dict)

    @property
    def failed(self) -> int:
        return sum(bool(turn.failure) for turn in self.turns)

    @property
    def wrong(self) -> int:
        return wrong_tokens(self.turns, self.expected)


async def killed(place: Path, streams: int) -> Disturbed:
    """Kill one of two verifiers with SIGKILL, and start it again."""

    async def disturb(suite: FleetSuite) -> None:
        await suite.fleet.kill("0-verifier")
        await asyncio.sleep(SETTLE_S)
        await suite.fleet.start("0-verifier")
        await suite.all_known()

    return await _disturbed(place, "one of two killed", streams, disturb)


async def upgraded(place: Path, streams: int, pacing: Pacing = PACING) -> Disturbed:
    """Stop one verifier after the other, and start each again."""

    async def disturb(suite: FleetSuite) -> None:
        await suite.restart("0-verifier")
        await suite.restart("1-verifier")
        await asyncio.sleep(SETTLE_S)  # new answers begin at the first one again

    what = "drained one after the other"
    if pacing != PACING:
        what += f", {1e3 * pacing.verify_further_s:g} ms a further token"
    return await _disturbed(place, what, streams, disturb, pacing)


async def _disturbed(
    place: Path,
    what: str,
    streams: int,
    disturb: Callable[[FleetSuite], Awaitable[None]],
    pacing: Pacing = PACING,
) -> Disturbed:
    traffic = Traffic(PRESET, MAX_TOKENS, same=True)
    disturbed = Disturbed(what, streams)
    async with fleet_suite(place, FleetShape(pacing)) as suite:
        before = await _once(suite, traffic, streams)
        disturbed.expected = {turn.chat: turn.token_ids for turn in before}
        disturbed.usual_s = longest_gap_s(before, 0.0)
        async with _under_way(suite, traffic, streams, disturbed.turns):
            await asyncio.sleep(SETTLE_S)
            began_s = time.monotonic()
            await disturb(suite)
            ended_s = time.monotonic()
        disturbed.took_s = ended_s - began_s
        disturbed.pause_s = longest_gap_s(disturbed.turns, began_s, ended_s)
        for reason in ("lost", "draining"):
            disturbed.moves[reason] = await asyncio.to_thread(suite.moves, reason)
    return disturbed


async def _once(suite: FleetSuite, traffic: Traffic, streams: int) -> list[Turn]:
    """Let every chat ask for a moment, and return the first turn of each."""
    over = asyncio.Event()
    asking = asyncio.create_task(chats(suite.http, traffic, streams, over))
    await asyncio.sleep(0.5)
    over.set()
    turns = await asking
    first = {turn.chat: turn for turn in reversed(turns)}
    return [first[chat] for chat in range(streams)]


@asynccontextmanager
async def _under_way(
    suite: FleetSuite, traffic: Traffic, streams: int, turns: list[Turn]
) -> AsyncIterator[None]:
    """Run chats while the context is open; their turns are in `turns` after it."""
    over = asyncio.Event()
    asking = asyncio.create_task(chats(suite.http, traffic, streams, over))
    try:
        yield
    finally:
        over.set()
        turns += await asking


@dataclass(slots=True)
class Pressed:
    """The honest holders' turns alone, and beside the greedy one."""

    alone: list[Turn]
    beside: list[Turn]

    def tpot_s(self, turns: Sequence[Turn]) -> float:
        """Return the 95th percentile of the turns' TPOT in seconds; infinite where none has one."""
        values = [turn.tpot_s for turn in turns if turn.tpot_s is not None]
        return quantile(values, 0.95) or inf

    @property
    def failed(self) -> int:
        return sum(bool(turn.failure) for turn in self.beside)

    @property
    def worse(self) -> float:
        return self.tpot_s(self.beside) / self.tpot_s(self.alone)


async def pressed(place: Path, lasts_s: float, running: int) -> Pressed:
    """Measure nine holders of keys with a chat each, alone and then beside one with 64 long answers
    at once. The fleet's aggregator serves `running` requests at once."""
    folder = place / "certs"
    make_tenants(folder)
    keys = [(folder / f"honest{number}").read_text().strip() for number in range(HONEST)]
    greedy_key = (folder / GREEDY).read_text().strip()
    honest, greedy = Traffic(PRESET, HONEST_TOKENS, think_s=0.3), Traffic(PRESET, GREEDY_TOKENS)
    async with fleet_suite(place, FleetShape(PACING, running=running), folder) as suite:

        async def measured() -> list[Turn]:
            over = asyncio.Event()
            asking = asyncio.create_task(chats(suite.http, honest, HONEST, over, keys))
            await asyncio.sleep(lasts_s)
            over.set()
            return await asking

        alone, over = await measured(), asyncio.Event()
        pressing = asyncio.create_task(
            chats(suite.http, greedy, GREEDY_AT_ONCE, over, [greedy_key], first=HONEST)
        )
        await asyncio.sleep(SETTLE_S)
        beside = await measured()
        over.set()
        await pressing
    return Pressed(alone, beside)
