"""The leakage bench's own arithmetic: what can be put together of tokens at places."""

from __future__ import annotations

import numpy as np
import pytest

from lab.bench.two_sided.leakage import (
    DRAFTS,
    LISTED,
    Crossed,
    Method,
    Searched,
    SentFrames,
    longest_runs,
    positions_table,
)
from lab.bench.two_sided.private_notes import Fact, Note, notes
from tandem.backends.model_description import load_tokenizer
from tandem.core.probs import SamplingParams
from tandem.core.tokens import PrefixedTokens
from tandem.demo import demo_folder
from tandem.testing.listed_tokens import likeliest_first
from tandem.two_sided.protocol.draft_head import DraftHead
from tandem.two_sided.protocol.messages import AggregationRequest, SideDraftFrame, TargetFrame
from tandem.two_sided.protocol.presets import find_aggregation_preset
from tandem.two_sided.protocol.top_list import TopList

SIZE = 16


def test_a_run_goes_through_alternatives_and_not_from_one_answer_to_the_next() -> None:
    rows = [{5: {1}, 6: {9, 2}, 7: {3}}, {0: {4}, 1: {5}}]
    table = positions_table(rows, SIZE)
    assert longest_runs(table, (1, 2, 3, 4, 5)).tolist() == [1, 2, 3, 1, 2]


def test_a_place_that_nothing_is_known_of_ends_a_run() -> None:
    table = positions_table([{0: {1}, 2: {3}}], SIZE)
    assert longest_runs(table, (1, 2, 3)).tolist() == [1, 0, 1]


@pytest.fixture(scope="module")
def note() -> Note:
    return Note((Fact("The door code of Mirjam Oduya is", "481516"), Fact("Her cat is", "Olaf")))


def test_a_secret_counts_when_all_its_tokens_come_in_a_row(note: Note) -> None:
    tokenizer = load_tokenizer(str(demo_folder("demo-target")))
    searched = Searched(tokenizer, [note])
    (ids,) = searched.tokens
    whole = {place: {token} for place, token in enumerate(ids)}
    size = max(ids) + 1
    assert searched.figures([whole], size) == {
        "piece_tokens": len(ids),
        "piece_tokens_max": len(ids),
        "secrets": 1.0,
    }
    code = tokenizer.encode(note.text[: note.text.index("516")])
    torn = {place: tokens for place, tokens in whole.items() if place != len(code)}
    assert searched.figures([torn], size)["secrets"] == 0.5
    assert searched.figures([{}], size)["secrets"] == 0.0
    assert searched.figures([], size)["piece_tokens"] == 0


def test_notes_are_seeded_and_notes_of_another_seed_share_no_numbers() -> None:
    assert notes(5, 1) == notes(5, 1)
    numbers = [
        {fact.secret for note in notes(25, seed) for fact in note.facts if fact.secret.isdigit()}
        for seed in (1, 2)
    ]
    assert len(numbers[0]) > 10
    assert not numbers[0] & numbers[1]


def opened_frames(name: str, temperature: float = 1.0) -> SentFrames:
    """What an answer's device sends, after its opening."""
    preset = find_aggregation_preset(name)
    frames = SentFrames(SIZE, Method(preset, "", temperature))
    request = AggregationRequest(
        session=1,
        prompt_ids=(1, 2),
        vocabulary_hash="v",
        vocabulary_size=SIZE,
        sampling=SamplingParams(temperature),
        seed=1,
        max_tokens=4,
        preset=preset,
    )
    frames.size_of(request.opening(PrefixedTokens((1, 2)), 0.0))
    frames.sent_by_device()
    return frames


def test_what_the_cloud_reads_is_what_went_through_the_codec() -> None:
    probs = DraftHead(np.array([3, 4, 5]), np.array([0.5, 0.25, 0.125]), rest_id=9)
    frames = opened_frames("dragon")
    for message in (
        SideDraftFrame(1, 2, 0, token_id=4, probs=probs, log_mass=0.0, committed=2),
        SideDraftFrame(1, 2, 0, token_id=5, probs=probs, log_mass=0.0, committed=2),
        TargetFrame(1, 2, 0, token_ids=(7, 8)),
    ):
        before = frames.bytes
        frames.size_of(message)
        frames.sent_by_device()
        assert frames.bytes > before
    assert frames.crossed == Crossed(
        answer={}, drafts={2: {4, 5, 7}, 3: {8}}, likeliest={2: {3}}, listed={2: {3, 4, 5, 9}}
    )
    assert frames.crossed.rows()[DRAFTS] == {2: {4, 5, 7}, 3: {8}}
    assert frames.crossed.rows()[LISTED] == {2: {3, 4, 5, 7, 9}, 3: {8}}


def test_a_coupled_draft_names_no_other_token() -> None:
    frames = opened_frames("dragon-coupled")
    frames.size_of(SideDraftFrame(1, 2, 0, token_id=4, probs=None, log_mass=0.0, committed=2))
    frames.sent_by_device()
    assert (frames.crossed.drafts, frames.crossed.listed) == ({2: {4}}, {})


def test_the_tokens_of_a_list_come_by_their_probability() -> None:
    top = TopList(np.array([2, 9]), np.array([0.1, 0.6], dtype=np.float32), 0.3, 0.1)
    assert likeliest_first(top) == [9, 2]
    assert likeliest_first(None) == []
