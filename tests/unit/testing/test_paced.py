"""The paced engine: how long a pass lasts, and what shows through it."""

import threading
import time
from collections.abc import Callable

import pytest

from tandem.backends.interface import ForwardCancelled, ForwardRequest
from tandem.testing.paced import PacedDevice, PacedEngine
from tandem.testing.scripted import ScriptedEngine


class Time:
    """A clock that moves when read, slept on, or computed against."""

    def __init__(self, compute_s: float) -> None:
        self.now_s = 100.0
        self.compute_s = compute_s
        self.slept_s: list[float] = []

    def clock(self) -> float:
        self.now_s += 1e-6
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.slept_s.append(duration_s)
        self.now_s += duration_s

    def probs(self, _: tuple[int, ...]) -> list[float]:
        self.now_s += self.compute_s
        return [0.25] * 4


def paced(time: Time) -> PacedEngine:
    engine = ScriptedEngine(4, time.probs)
    return PacedEngine(engine, 0.010, 0.002, clock=time.clock, sleep=time.sleep)


@pytest.mark.parametrize(("counts", "lasts_s"), [((1,), 0.010), ((1, 4), 0.016), ((3, 2), 0.014)])
def test_a_pass_lasts_as_long_as_its_longest_segment_is_declared_to(
    counts: tuple[int, ...], lasts_s: float
) -> None:
    time = Time(compute_s=0.0015)
    engine = paced(time)
    batch = [ForwardRequest(engine.open(8), (1,) * count, 1) for count in counts]
    started_s = time.now_s
    engine.forward(batch)
    assert time.now_s - started_s == pytest.approx(lasts_s, abs=5e-6)
    assert engine.late_passes == 0
    assert sum(time.slept_s) >= lasts_s - len(counts) * 0.0015 - 300e-6


def test_a_pass_that_computes_longer_is_late_and_does_not_wait() -> None:
    time = Time(compute_s=0.05)
    engine = paced(time)
    engine.forward([ForwardRequest(engine.open(8), (1,), 1)])
    assert engine.late_passes == 1
    assert time.slept_s == []


def test_cancellation_while_waiting_undoes_the_pass() -> None:
    time = Time(compute_s=0.0)
    engine = paced(time)
    session, other = engine.open(8), engine.open(8)
    engine.forward([ForwardRequest(session, (1, 2), 1)])
    time.slept_s.clear()
    answers: list[bool] = [False] * 5 + [True]
    ask: Callable[[], bool] = lambda: answers.pop(0)  # noqa: E731
    with pytest.raises(ForwardCancelled):
        engine.forward([ForwardRequest(session, (3,), 1), ForwardRequest(other, (3,), 1)], ask)
    assert (session.length, other.length) == (2, 0)
    assert sum(time.slept_s) < 0.009


def test_engines_of_one_device_compute_one_after_the_other() -> None:
    device = PacedDevice()
    inner = ScriptedEngine(4, lambda _: [0.25] * 4)
    engines = [PacedEngine(inner, 0.010, 0.0, device=device) for _ in range(3)]
    requests = [ForwardRequest(inner.open(1), (1,), 1) for _ in engines]
    threads = [
        threading.Thread(target=engine.forward, args=([request],))
        for engine, request in zip(engines, requests, strict=True)
    ]
    began_s = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began_s >= 0.030


class Waiting:
    """A pass that waits for a device on a thread of its own, and then notes its name."""

    def __init__(self, device: PacedDevice, name: str, goes_first: bool, begun: list[str]) -> None:
        self._waits = threading.Event()

        def pass_() -> None:
            with device.turn(goes_first, self._looks):
                begun.append(name)

        self._thread = threading.Thread(target=pass_)
        self._thread.start()
        assert self._waits.wait(30)

    def _looks(self) -> bool:
        self._waits.set()
        return False

    def join(self) -> None:
        self._thread.join()


def test_passes_that_go_first_begin_before_others_that_waited_longer() -> None:
    device, begun = PacedDevice(), list[str]()
    with device.turn(goes_first=False):
        target = Waiting(device, "target", False, begun)
        draft = Waiting(device, "draft", True, begun)
    draft.join()
    target.join()
    assert begun == ["draft", "target"]


def test_a_device_is_kept_for_the_next_step_of_the_same_drafts() -> None:
    """Between two steps nobody waits who goes first, though sessions are not done drafting."""
    now_s, begun = [0.0], list[str]()
    device = PacedDevice(clock=lambda: now_s[0])
    with device.turn(goes_first=True):
        target = Waiting(device, "target", False, begun)
    with device.turn(goes_first=True):
        assert begun == []
    now_s[0] += 1.0
    target.join()
    assert begun == ["target"]


def test_a_pass_that_nobody_waits_for_any_more_gives_up_its_turn() -> None:
    device = PacedDevice()
    engine = PacedEngine(ScriptedEngine(4, lambda _: [0.25] * 4), 0.001, 0.0, device=device)
    session = engine.open(1)
    with device.turn(goes_first=False), pytest.raises(ForwardCancelled):
        engine.forward([ForwardRequest(session, (1,), 1)], lambda: True)
    assert session.length == 0
    engine.forward([ForwardRequest(session, (1,), 1)], lambda: False)
    assert session.length == 1
