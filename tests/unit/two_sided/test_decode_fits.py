"""The file of decode lines: whole or not at all."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tandem.core.errors import TandemError
from tandem.testing.paced import PacedEngine
from tandem.testing.scripted import ScriptedEngine, scripted_probs
from tandem.two_sided.profiling.decode_fits import (
    StoredFit,
    default_fits_path,
    measure_fit,
    read_fits,
    write_fits,
)
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.profiler import DecodeFit

DEVICE = StoredFit("demo-draft", 2, DecodeFit(1.0, 20_000.0, 0.004))
CLOUD = StoredFit("demo-target", 4, DecodeFit(0.0, 20_000.0, 0.01))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "fits.json"
    assert read_fits(path) == {}
    write_fits(path, {Side.DEVICE: DEVICE})
    assert read_fits(path) == {Side.DEVICE: DEVICE}
    write_fits(path, {Side.DEVICE: DEVICE, Side.CLOUD: CLOUD})
    assert read_fits(path) == {Side.DEVICE: DEVICE, Side.CLOUD: CLOUD}
    assert [file.name for file in path.parent.iterdir()] == ["fits.json"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"moon": {}}',
        b'{"device": {"model_name": "m", "documents": 2}}',
        b'{"device": {"model_name": "m", "documents": 2, "fit": {"numerator": -1,'
        b' "denominator": 1, "intercept_s": 0}}}',
    ],
)
def test_a_file_that_is_none_of_ours_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "fits.json"
    path.write_bytes(content)
    with pytest.raises(TandemError, match=r"fits\.json"):
        read_fits(path)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TandemError, match=r"fits\.json: cannot be written"):
        write_fits(tmp_path / "file" / "fits.json", {Side.DEVICE: DEVICE})


def test_it_lies_in_the_user_s_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_fits_path() == tmp_path / "tandem" / "decode-fits.json"


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
