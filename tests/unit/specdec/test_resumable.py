"""What all machines do about their streams, with one that does nothing else."""

import pytest

from tandem.core.errors import ProtocolError
from tandem.core.stopping import FinishReason
from tandem.specdec.events import Finish, Reconnect
from tandem.specdec.liveness import Liveness, LivenessTimes, LostCloud, Phase
from tandem.specdec.resumable import Resumable

TIMES = LivenessTimes(ping_after_s=0.2, dead_after_s=0.6, give_up_after_s=1.0)


class Bare(Resumable[str]):
    """Says what it was asked for."""

    def __init__(
        self,
        policy: LostCloud = LostCloud.FAIL,
        phase: Phase = Phase.CONNECTING,
        times: LivenessTimes = TIMES,
    ) -> None:
        self.liveness = Liveness(policy, times, 0.0)
        super().__init__(self.liveness, phase)
        self.silences_s: list[float] = []
        self.forgotten = 0

    def _open_stream(self, now: float) -> list[str | Reconnect | Finish]:
        return ["open"]

    def _forget_stream(self) -> None:
        self.forgotten += 1

    def _count_loss(self, silent_s: float) -> None:
        self.silences_s.append(silent_s)

    def _ping(self, now: float) -> list[str | Reconnect | Finish]:
        return [] if self.liveness.ping_due(now) is None else ["ping"]

    def _go_on_alone(self, now: float) -> list[str | Reconnect | Finish]:
        return ["alone"]

    def _close(self) -> list[str | Reconnect | Finish]:
        return ["close"] if self.phase is Phase.RUNNING else []


def passing(machine: Bare, *moments: float) -> list[str | Reconnect | Finish]:
    return [output for now in moments for output in machine.tick(now)]


def test_a_stream_is_opened_once_and_again_after_each_loss() -> None:
    machine = Bare()
    assert machine.connect(0.0) == ["open"]
    with pytest.raises(ProtocolError):
        machine.connect(0.1)
    assert machine.phase is Phase.RUNNING
    assert machine.lost(0.25) == [Reconnect()]
    assert machine.lost(0.3) == [], "it is lost already"
    assert (machine.phase, machine.forgotten, machine.silences_s) == (Phase.CONNECTING, 1, [0.25])
    assert machine.connect(0.3) == ["open"]


def test_a_silent_peer_is_pinged_then_left_then_given_up() -> None:
    machine = Bare()
    machine.connect(0.0)
    assert passing(machine, 0.1, 0.2, 0.3, 0.4, 0.5) == ["ping"]
    assert passing(machine, 0.6) == [Reconnect()]
    assert passing(machine, 0.7, 0.8, 0.9) == []
    assert passing(machine, 1.0) == [Finish(FinishReason.ERROR)]
    assert (machine.phase, machine.finish_reason) == (Phase.DONE, FinishReason.ERROR)
    assert passing(machine, 1.1) == []


def test_a_peer_is_given_up_though_its_latest_stream_is_not_dead_yet() -> None:
    """That stream may be to another peer, which works: its connection is not lost."""
    machine = Bare()
    machine.connect(0.0)
    assert passing(machine, 0.2, 0.4, 0.6)[-1] == Reconnect()
    machine.connect(0.7)
    assert passing(machine, 0.8, 0.9, 1.0) == [
        "ping",
        Reconnect(lost=False),
        Finish(FinishReason.ERROR),
    ]


@pytest.mark.parametrize(
    ("policy", "ends_with", "phase"),
    [
        (LostCloud.FAIL, [Reconnect(), Finish(FinishReason.ERROR)], Phase.DONE),
        (LostCloud.EDGE, [Reconnect(), "alone"], Phase.ALONE),
        (LostCloud.WAIT, [Reconnect()], Phase.CONNECTING),
    ],
)
def test_the_policy_says_what_follows_a_loss_that_came_too_late(
    policy: LostCloud, ends_with: list[object], phase: Phase
) -> None:
    machine = Bare(policy)
    machine.connect(0.0)
    assert machine.lost(1.5) == ends_with
    assert machine.phase is phase
    assert machine.goes_on_alone == (policy is LostCloud.EDGE)


def test_a_cancelled_request_tells_the_peer_where_there_is_a_stream_and_ends_once() -> None:
    running = Bare()
    running.connect(0.0)
    assert running.cancel() == ["close", Finish(FinishReason.CANCELLED)]
    assert running.cancel() == running.lost(0.1) == running.tick(9.0) == []
    assert Bare().cancel() == [Finish(FinishReason.CANCELLED)]


def test_at_the_other_end_the_stream_is_there_from_the_start() -> None:
    machine = Bare(phase=Phase.RUNNING)
    with pytest.raises(ProtocolError):
        machine.connect(0.0)


def test_a_stream_that_was_silent_until_its_peer_is_given_up_is_lost() -> None:
    """Also where the settings give a peer up before a stream counts as dead."""
    machine = Bare(times=LivenessTimes(ping_after_s=0.2, dead_after_s=2.0, give_up_after_s=1.0))
    machine.connect(0.0)
    assert passing(machine, 0.2, 0.4, 0.6, 0.8) == ["ping"]
    assert passing(machine, 1.0) == [Reconnect(), Finish(FinishReason.ERROR)]
