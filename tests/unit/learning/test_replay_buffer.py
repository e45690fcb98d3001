"""The file of texts: bounded, private, and believed only as far as it is whole."""

from __future__ import annotations

import logging
import os
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tandem.learning.examples import Example, TargetProbs
from tandem.learning.replay_buffer import MAX_ANSWER, MAX_PROBS, MAX_PROMPT, ReplayBuffer
from tests.unit.learning.unigrams import VOCABULARY, text_of

LIMIT = 4096


def store(path: Path, vocabulary: str = "v", size: int = VOCABULARY) -> ReplayBuffer:
    return ReplayBuffer(path, LIMIT, vocabulary, size)


def ids(texts: list[Example]) -> list[list[int]]:
    return [text.token_ids.tolist() for text in texts]


def filled(path: Path, count: int = 3) -> list[Example]:
    texts = [text_of(number, [number % VOCABULARY, 5, 6]) for number in range(count)]
    kept = store(path)
    assert kept.read() == []
    for text in texts:
        kept.add(text)
    return texts


def test_texts_come_back_as_they_were(tmp_path: Path) -> None:
    halves = np.array([0.25, 0.5], np.float32)
    known = TargetProbs(np.array([4, 9], np.int32), halves, halves[::-1])
    token_ids = np.array([1, 2, 3, 4], np.int32)
    text = Example(token_ids, 2, 0.7, seed=2**64 - 1, position=9, target_probs={3: known})
    path = tmp_path / "texts.bin"
    store(path).add(text)
    (back,) = store(path).read()
    assert ids([back]) == ids([text])
    assert (back.first, round(back.temperature, 6)) == (2, 0.7)
    assert (back.seed, back.position) == (2**64 - 1, 9)
    store(tmp_path / "plain.bin").add(replace(text, seed=None))
    (plain,) = store(tmp_path / "plain.bin").read()
    assert plain.seed is None
    found = back.target_probs[3]
    rows = zip(found.ids, found.probs, found.draft_probs, strict=True)
    assert sorted(rows) == [(4, 0.25, 0.5), (9, 0.5, 0.25)]


def test_nobody_else_may_read_the_file(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        filled(tmp_path / "texts.bin")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "texts.bin").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["texts.bin"]


def test_the_oldest_texts_go_when_the_file_is_full(tmp_path: Path) -> None:
    path = tmp_path / "texts.bin"
    texts = filled(path, 200)
    assert path.stat().st_size <= LIMIT
    again = store(path)
    again.read()
    assert again.size_bytes == path.stat().st_size
    back = store(path).read()
    assert 20 < len(back) < 200
    assert ids(back) == ids(texts[-len(back) :])


@pytest.mark.parametrize("cut", [1, 7, 20])
def test_a_text_that_was_written_in_part_is_left_out(
    cut: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "texts.bin"
    texts = filled(path)
    path.write_bytes(path.read_bytes()[:-cut])
    with caplog.at_level(logging.WARNING):
        again = store(path)
        assert ids(again.read()) == ids(texts[:2])
    assert len(caplog.records) == 1
    again.add(texts[0])
    assert ids(store(path).read()) == ids([*texts[:2], texts[0]])


def test_nothing_behind_damage_is_believed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "texts.bin"
    texts = filled(path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert ids(store(path).read()) == ids(texts[:1])
    assert len(caplog.records) == 1


@pytest.mark.parametrize("content", [b"", b"TDMLRN01", b"something else altogether", b"\0" * 500])
def test_a_file_of_something_else_is_left_out_and_replaced(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "texts.bin"
    path.write_bytes(content)
    kept = store(path)
    with caplog.at_level(logging.WARNING):
        assert kept.read() == []
    assert len(caplog.records) == 1
    kept.add(text_of(1, [2, 3]))
    assert len(store(path).read()) == 1


def test_ids_of_another_vocabulary_are_never_read(tmp_path: Path) -> None:
    path = tmp_path / "texts.bin"
    filled(path)
    assert store(path, vocabulary="another").read() == []
    assert store(path, size=4).read() == [], "ids beyond the vocabulary"


def test_a_file_that_was_deleted_on_purpose_does_not_come_back(tmp_path: Path) -> None:
    path = tmp_path / "texts.bin"
    kept = store(path)
    kept.add(text_of(1, [2, 3]))
    path.unlink()
    kept.add(text_of(2, [4, 5]))
    assert ids(store(path).read()) == ids([text_of(2, [4, 5])])


def test_long_texts_are_kept_in_part(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    token_ids = rng.integers(0, VOCABULARY, 6000).astype(np.int32)
    sixteenths = np.full(15, 1 / 16, np.float32)
    probs = TargetProbs(np.arange(15, dtype=np.int32), sixteenths, sixteenths)
    text = Example(token_ids, 3000, 1.0, target_probs={3005: probs, 5900: probs})
    path = tmp_path / "texts.bin"
    large = ReplayBuffer(path, 2**20, "v", VOCABULARY)
    large.add(text)
    (back,) = large.read()
    assert (back.first, len(back)) == (MAX_PROMPT, MAX_PROMPT + MAX_ANSWER)
    assert back.position == 3000 - MAX_PROMPT
    assert list(back.target_probs) == [MAX_PROMPT + 5]
    assert len(back.target_probs[MAX_PROMPT + 5].ids) <= MAX_PROBS


def test_a_full_disk_raises_and_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "texts.bin"
    texts = filled(path)
    kept = store(path)
    kept.read()
    whole_write = os.write
    # A disk with room for a few bytes more.
    monkeypatch.setattr(os, "write", lambda handle, content: whole_write(handle, content[:5]))
    with pytest.raises(OSError, match="only 5 of"):
        kept.add(texts[0])
    monkeypatch.undo()
    assert ids(store(path).read()) == ids(texts)
    kept.add(texts[1])
    assert ids(store(path).read()) == ids([*texts, texts[1]])
