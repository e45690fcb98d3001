"""When a silent peer is asked what is wrong and how often, and how sessions come back to one."""

from __future__ import annotations

import asyncio

import pytest

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


async def test_a_caller_does_not_wait_long_to_hear_why() -> None:
    """A peer that has died under load was told of a second late: nobody answered the question."""
    peer = Peer()
    assert await asyncio.wait_for(Diagnosis(peer.ask, now=0.0).answer(), 60.0) == ""
    assert peer.asked == 1


async def test_a_sign_of_life_ends_the_silence_and_the_question_ends_by_itself() -> None:
    """A call of grpc.aio that is cancelled while it waits loses memory."""
    peer = Peer()
    diagnosis = Diagnosis(peer.ask, now=0.0)
    diagnosis.tick(ASK_AFTER_S)
    await turn()
    diagnosis.heard(5.0)
    await turn()
    assert not peer.cancelled
    diagnosis.tick(5.0 + 0.9 * ASK_AFTER_S)
    await turn()
    assert peer.asked == 1
    diagnosis.tick(5.0 + ASK_AFTER_S)
    await turn()
    assert peer.asked == 2
    diagnosis.close()
    await turn()
    assert not peer.cancelled
    peer.known.set()
    await turn()
    assert len(asyncio.all_tasks()) == 1, "nobody asks any more"


@pytest.mark.parametrize("after_s", [0.0, 9.0])
async def test_who_wants_to_know_early_asks(after_s: float) -> None:
    peer = Peer()
    peer.known.set()
    diagnosis = Diagnosis(peer.ask, now=0.0)
    diagnosis.tick(after_s)
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
