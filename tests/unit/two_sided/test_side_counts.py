"""What one side counts and measures of a request, as its frames come and go."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tandem.core.probs import SamplingParams
from tandem.specdec.liveness import Liveness, LivenessTimes, LostCloud
from tandem.specdec.messages import Ping
from tandem.two_sided.protocol.messages import CollaborationOpened, SideDraftFrame, TargetFrame
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.side_machine import SideMachine
from tests.unit.two_sided.side_frames import device, frame, head, request_for, told

GREEDY = SamplingParams(temperature=0.0)
OPENED = CollaborationOpened(1, 2, head(()), log_mass=0.0, max_tokens=4)


class Heard:
    """The recipient of the measurements."""

    def __init__(self) -> None:
        self.all: list[tuple[Any, ...]] = []

    def decoded(self, *of: Any) -> None:
        self.all.append(("decoded", *of))

    def exchanged(self, *of: Any) -> None:
        self.all.append(("exchanged", *of))

    def drafted(self, *of: Any) -> None:
        self.all.append(("drafted", *of))

    def verified(self, *of: Any) -> None:
        self.all.append(("verified", *of))


def listening(side: Side, heard: Any = None, name: str = "dragon placement=cloud") -> SideMachine:
    """A machine whose stream was opened at 1 s, by one frame of its own."""
    request = request_for(name, max_tokens=90)
    if side is Side.CLOUD:
        machine = SideMachine(side, request, peer_log_mass=0.0, measurements=heard)
        machine.opened(0.0, 1.0)
        return machine
    machine = SideMachine(side, request, log_mass=0.0, measurements=heard)
    machine.connect(1.0)
    return machine


def answered(machine: SideMachine, now: float, size_bytes: int = 90, **changes: Any) -> None:
    """A draft of the other side comes, which says what it has heard."""
    name = {"heard": 1, "held_s": 0.25, **changes}
    machine.receive(frame(**name), now, size_bytes)


def test_streams_and_losses_add_up() -> None:
    times = LivenessTimes(ping_after_s=9.0, dead_after_s=30.0, give_up_after_s=100.0)
    liveness = Liveness(LostCloud.WAIT, times, 0.0)
    request = request_for("dragon-device")
    machine = SideMachine(Side.DEVICE, request, log_mass=0.0, liveness=liveness)
    assert (machine.stats.resumes, machine.stats.links_lost) == (0, 0)
    now = 0.0
    for resumes, silent_s in enumerate((0.5, 2.0, 1.0)):
        machine.connect(now)
        machine.receive(OPENED, now)
        assert machine.stats.resumes == resumes
        now += silent_s
        machine.lost(now)
    assert (machine.stats.links_lost, machine.stats.loss_noticed_s) == (3, 2.0)


def test_tokens_and_drafts_are_counted_by_side() -> None:
    heard = Heard()
    machine = listening(Side.DEVICE, heard)
    for token in (0, 3, 0, 0):
        committed = machine.committed
        machine.drafted(
            frame(base=len(committed), prefix_hash=committed.prefix, decode_s=0.5),
            1.0,
        )
        machine.receive(TargetFrame(1, len(committed), committed.prefix, (token,)), 1.0)
    assert machine.stats.drafted == {Side.DEVICE: 4, Side.CLOUD: 0}
    assert machine.stats.decode_s == {Side.DEVICE: 2.0, Side.CLOUD: 0.0}
    assert (machine.stats.tokens, machine.stats.unverified_tokens) == (4, 0)
    decoded = [entry for entry in heard.all if entry[0] == "decoded"]
    assert decoded == [("decoded", Side.DEVICE, 2 + n, 0.5) for n in range(4)]
    verified = [entry[1:] for entry in heard.all if entry[0] == "verified"]
    assert verified == [(Side.DEVICE, accepted) for accepted in (1.0, 0.0, 1.0, 1.0)]


def test_a_step_that_took_no_time_is_no_measurement() -> None:
    heard = Heard()
    machine = listening(Side.DEVICE, heard)
    machine.drafted(frame(), 1.0)
    assert heard.all == []


@pytest.mark.parametrize("side", list(Side))
def test_an_exchange_has_both_frames_sizes_the_way_up_first(side: Side) -> None:
    heard = Heard()
    machine = listening(
        side, heard, "dragon-device" if side is Side.DEVICE else "dragon placement=cloud"
    )
    machine.sized(500)
    answered(machine, 3.0)
    sizes = (500, 90) if side is Side.DEVICE else (90, 500)
    assert heard.all == [("drafted", side.other, 90), ("exchanged", *sizes, 2.0, 0.25)]
    answered(machine, 3.0, size_bytes=0)
    assert len(heard.all) == 2, "of no known size, and answered before"
    answered(machine, 5.0, heard=2, held_s=math.inf)
    assert len(heard.all) == 2, "no duration"
    answered(machine, 6.0, heard=9)
    assert heard.all[2:] == [("drafted", side.other, 90)], "so many were never sent"


def pinged(machine: SideMachine, now: float) -> None:
    """The other side asks, so that a frame leaves."""
    committed = machine.committed
    machine.receive(Ping(1, len(committed), committed.prefix, nonce=1), now)


@pytest.mark.parametrize(("further", "remembered"), [(255, True), (256, False)])
def test_256_sent_frames_are_remembered(further: int, remembered: bool) -> None:
    heard = Heard()
    machine = listening(Side.CLOUD, heard)
    machine.sized(10)
    for _ in range(further):
        pinged(machine, 1.0)
        machine.sized(10)
    answered(machine, 3.0)
    assert (("exchanged", 90, 10, 2.0, 0.25) in heard.all) is remembered
    answered(machine, 3.0, heard=2)
    assert heard.all[-1] == ("exchanged", 90, 10, 2.0, 0.25)


def test_what_was_answered_is_forgotten_with_all_before_it() -> None:
    heard = Heard()
    machine = listening(Side.CLOUD, heard)
    for now in (2.0, 3.0):
        pinged(machine, now)
    for _ in range(3):
        machine.sized(10)
    for answer, elapsed_s in ((2, 3.0), (1, None), (2, None), (3, 2.0)):
        del heard.all[:]
        answered(machine, 5.0, heard=answer)
        exchanged = [entry[3] for entry in heard.all if entry[0] == "exchanged"]
        assert exchanged == ([] if elapsed_s is None else [elapsed_s]), answer


def test_a_size_that_nobody_told_is_none() -> None:
    heard = Heard()
    machine = listening(Side.CLOUD, heard)
    answered(machine, 3.0)
    assert heard.all[-1] == ("exchanged", 90, 0, 2.0, 0.25)


def test_a_draft_says_what_was_heard_and_how_long_ago_the_newest() -> None:
    for frames, held_s in ((0, 0.0), (1, 3.0), (2, 2.0)):
        machine = device("dragon placement=cloud")
        heard = machine.stats.streams  # the opening of its stream
        for number in range(frames):
            pinged(machine, 2.0 + number)
        (sent,) = told(machine.drafted(frame(), 5.0), SideDraftFrame)
        assert (sent.heard, sent.held_s) == (heard + frames, held_s if frames else 5.0)
    (sent,) = told(device("dragon placement=cloud").drafted(frame(), -1.0), SideDraftFrame)
    assert sent.held_s == 0.0, "never less than nothing"
    late = listening(Side.CLOUD, name="dragon-device")
    (sent,) = told(late.drafted(frame(), 1.5), SideDraftFrame)
    assert (sent.heard, sent.held_s) == (1, 0.5), "the opening, which made it"


def test_another_stream_is_measured_anew() -> None:
    heard = Heard()
    machine = listening(Side.DEVICE, heard, "dragon-device")
    machine.receive(OPENED, 1.0)
    machine.lost(2.0)
    machine.connect(7.0)
    machine.receive(replace(OPENED), 7.0)
    answered(machine, 8.0)
    assert ("exchanged", 0, 90, 1.0, 0.25) in heard.all
