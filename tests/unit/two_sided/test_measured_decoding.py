"""The decode line of an engine, measured on one whose steps take a declared time."""

from __future__ import annotations

import time

import pytest

from tandem.testing.paced import PacedEngine
from tandem.testing.scripted import ScriptedEngine, scripted_probs
from tandem.two_sided.profiling.decode_fits import measure_fit


def scripted() -> ScriptedEngine:
    return ScriptedEngine(16, scripted_probs(1, 16), context_length=64)


def test_a_paced_engine_s_line_is_its_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    def clock() -> float:
        nonlocal now_s
        now_s += 1e-6  # what asking for the time takes
        return now_s

    def sleep(duration_s: float) -> None:
        nonlocal now_s
        now_s += duration_s

    monkeypatch.setattr(time, "perf_counter", clock)
    engine = PacedEngine(scripted(), 0.02, 0.0, clock=clock, sleep=sleep)
    fit = measure_fit(engine, documents=3, document_tokens=16, context_tokens=48, runs=2)
    assert fit.at(32) == pytest.approx(0.02, rel=0.01)


def test_nothing_stays_open() -> None:
    engine = scripted()
    measure_fit(engine, document_tokens=8, context_tokens=16, runs=1)
    assert engine.sessions_open == 0
