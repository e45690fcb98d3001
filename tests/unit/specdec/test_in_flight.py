"""The queue of drafts that wait for a verdict, and the frame that carries a chunk."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tandem.core.codecs import Precision, sparse_wire_probs, wire_probs
from tandem.core.truncation import Truncation, truncate
from tandem.specdec.events import Drafted, EdgeRequest
from tandem.specdec.in_flight import (
    DraftsInFlight,
    bulk_bytes,
    draft_frame,
    probs_to_draft_from,
)
from tandem.specdec.messages import Draft, Frame, GenerationParams
from tandem.specdec.presets import PRESETS, find_preset

PROBS = np.array([0.25, 0.25, 0.5], dtype=np.float32)


def drafts(*token_ids: int) -> list[Drafted]:
    return [Drafted(token_id, PROBS) for token_id in token_ids]


def queue(*token_ids: int, sent: int = 0) -> DraftsInFlight:
    in_flight = DraftsInFlight()
    in_flight.add(drafts(*token_ids))
    in_flight.sent = sent
    return in_flight


def test_chunks_come_in_order() -> None:
    in_flight = queue(0, 1, 2, 1, 0)
    chunks = []
    while in_flight.unsent:
        chunk = in_flight.next_chunk(2)
        in_flight.sent += len(chunk)
        chunks.append([drafted.token_id for drafted in chunk])
    assert chunks == [[0, 1], [2, 1], [0]]
    assert in_flight.token_ids == (0, 1, 2, 1, 0)


@pytest.mark.parametrize(("count", "left", "sent"), [(0, (0, 1, 2), 2), (1, (1, 2), 1), (3, (), 0)])
def test_removing_counts_against_what_was_sent(
    count: int, left: tuple[int, ...], sent: int
) -> None:
    in_flight = queue(0, 1, 2, sent=2)
    in_flight.remove(count)
    assert (in_flight.token_ids, in_flight.sent) == (left, sent)
    assert in_flight.unsent == len(left) - sent


def test_ends() -> None:
    assert queue(0, 1).ends_in(frozenset({1}))
    assert not queue(1, 0).ends_in(frozenset({1}))
    assert not queue().ends_in(frozenset({1}))


def test_clear() -> None:
    in_flight = queue(0, 1, sent=1)
    assert in_flight.first.token_id == 0
    in_flight.clear()
    assert (len(in_flight), in_flight.sent) == (0, 0)


def test_a_chunk_carries_what_its_uplink_names() -> None:
    frame = Frame(session=1, epoch=2, base=3, prefix=4)
    chunk = drafts(2, 0)
    ids = draft_frame(frame, chunk, PRESETS["coupled"])
    assert (ids.session, ids.epoch, ids.base, ids.prefix) == (1, 2, 3, 4)
    assert (ids.token_ids, ids.end_of_chunk) == ((2, 0), True)
    assert (ids.probabilities, ids.distributions) == (None, None)
    split = draft_frame(frame, chunk, PRESETS["dssd"])
    assert (split.probabilities, split.distributions) == ((0.5, 0.25), None)
    for name in ("dsd", "tslt"):
        full = draft_frame(frame, chunk, PRESETS[name])
        assert full.probabilities is None
        assert full.distributions is not None
        np.testing.assert_array_equal(full.distributions, np.stack([PROBS, PROBS]))


@pytest.mark.parametrize(
    ("name", "choices", "wanted"),
    [
        ("dsd", {}, 3 * 2 * 1000),
        ("dsd", {"uplink_precision": "float32"}, 3 * 4 * 1000),
        ("dssd-full", {}, 4 * 1000),
        ("dssd", {}, 0),
        ("tslt", {}, 0),
        ("coupled", {}, 0),
    ],
)
def test_whole_distributions_are_bulk(name: str, choices: dict[str, Any], wanted: int) -> None:
    preset = replace(find_preset(name), **choices)
    frames = [Draft(1, 0, 9, 0, token_ids=ids, end_of_chunk=True) for ids in ((5, 6), (7,))]
    request = EdgeRequest(1, (1,), "", 1000, GenerationParams(max_tokens=8), preset)
    assert bulk_bytes(frames, request) == wanted


@pytest.mark.parametrize("name", ["dsd", "tslt", "coupled"])
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_draft_is_drawn_from_what_its_uplink_can_carry(name: str, precision: Precision) -> None:
    preset = replace(find_preset(name), uplink_precision=precision, truncation=Truncation(top_k=2))
    probs = np.array([0.3, 0.25, 0.45], dtype=np.float32)
    cut = truncate(probs, preset.truncation)
    rounded = {"dsd": wire_probs(cut, "float16"), "tslt": sparse_wire_probs(cut, "float16")}
    expected = rounded.get(name, cut) if precision == "float16" else cut
    np.testing.assert_array_equal(probs_to_draft_from(probs, preset), expected)
    if precision == "float16" and name in rounded:
        assert (expected != cut).any()
