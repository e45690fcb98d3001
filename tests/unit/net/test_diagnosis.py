"""When a silent peer is asked what is wrong and how often, and how sessions come back to one."""

from __future__ import annotations

import asyncio

from tandem.net.session_runner import ASK_AFTER_S, MAX_BACKOFF_S, Diagnosis, backoff_s


class Peer:
    """Counts who asks; answers once `known` is set."""

    def __init__(self) -> None:
        self.asked = 0
        self.cancelled = False
        self.known = asyncio.Event()

    async def ask(self) -> str:
        self.asked += 1
        try:
            await self.known.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return "certificate has expired"


async def turn() -> None:
    """What is due on the event loop happens."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_it_is_asked_once_a_silence_before_anybody_wants_to_know() -> None:
    peer = Peer()
    diagnosis = Diagnosis(peer.ask, now=10.0)
    for now in (10.0, 10.0 + 0.9 * ASK_AFTER_S):
        diagnosis.tick(now)
    await turn()
    assert peer.asked == 0
    for now in (10.0 + ASK_AFTER_S, 20.0):
        diagnosis.tick(now)
    await turn()
    assert peer.asked == 1
    peer.known.set()
    assert await diagnosis.answer() == "certificate has expired"
    assert peer.asked == 1


def test_sessions_that_lost_one_peer_come_back_at_different_times() -> None:
    """By numbers of their own, the same in every run."""
    assert [backoff_s(0, spread) for spread in range(3)] == [0.0] * 3
    for attempt in range(1, 40):
        delays = [backoff_s(attempt, spread) for spread in range(100)]
        longest = min(MAX_BACKOFF_S, 0.05 * 2**attempt)
        assert len(set(delays)) == 100
        assert min(delays) >= longest / 2
        assert max(delays) <= longest
        assert max(delays) - min(delays) > longest / 3
    assert backoff_s(3, 7) == backoff_s(3, 7)
