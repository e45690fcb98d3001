"""How much the edge drafts when, and when it leaves: its machine's tasks and frames."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tandem.core.codecs import Precision, sparse_wire_probs, wire_probs
from tandem.core.errors import ProtocolError
from tandem.core.probs import Array, Truncation, truncate
from tandem.specdec.choices import Control, Predraft, RejectionPayload, Schedule
from tandem.specdec.drafting import bulk_bytes, draw_draft, probs_to_draft_from
from tandem.specdec.edge import EdgeMachine
from tandem.specdec.events import Drafted, EdgeOutput, EdgeRequest, Interrupt
from tandem.specdec.messages import Drafts, GenerationParams, GoingAway
from tandem.specdec.presets import PRESETS, Preset
from tests.virtual_time.cases import preset, scheduled
from tests.virtual_time.edge_frames import (
    drafts_of,
    edge_of,
    frame_of,
    sent,
    task_of,
    tokens_of,
    verdict_of,
)

CHUNKS = scheduled("coupled", Schedule(6, 2, verify_on_arrival=True))
PIECES = scheduled("coupled", Schedule(6, 2, verify_on_arrival=True, token_by_token=True))
LIKELY = preset("coupled", 2, predraft=Predraft.LIKELY_OUTCOMES)
Frames = list[tuple[tuple[int, ...], bool]]


def connected(chosen: Preset = CHUNKS, **options: Any) -> EdgeMachine:
    edge = edge_of(chosen, **options)
    edge.connect(0.0)
    return edge


def frames(outputs: list[EdgeOutput]) -> Frames:
    return [(frame.token_ids, frame.end_of_chunk) for frame in sent(outputs)]


def handed(edge: EdgeMachine, *token_ids: int, draft_s: float = 0.0) -> tuple[int, Frames]:
    """How many drafts are due, and what leaves once it has these."""
    task = task_of(edge)
    kv_length = task.position + len(token_ids) - 1
    return task.count, frames(edge.drafted(task, drafts_of(*token_ids), kv_length, draft_s, 0.0))


def test_chunks_are_drafted_until_the_window_or_the_answer_is_full() -> None:
    edge = connected()
    assert handed(edge, 0) == (2, [])
    assert handed(edge, 1) == (1, [((0, 1), True)]), "the rest of the chunk, which leaves whole"
    assert handed(edge, 0, 1) == (2, [((0, 1), True)])
    assert handed(edge, 0, 1) == (2, [((0, 1), True)])
    assert edge.work(0.0) is None, "the window is full"
    short = connected(max_tokens=3)
    handed(short, 0, 1)
    assert handed(short, 2) == (1, [((2,), True)]), "the answer's last chunk leaves as it is"
    assert connected(preset("ar")).work(0.0) is None


def test_pieces_leave_as_they_come_and_the_last_one_ends_the_chunk() -> None:
    edge = connected(PIECES)
    task = task_of(edge)
    assert (task.count, task.stepwise) == (2, True)
    assert frames(edge.drafted(task, drafts_of(0), 2, 0.0, 0.0)) == [((0,), False)]
    assert edge.receive(GoingAway(*frame_of(edge)), 0.0) == []
    last = edge.drafted(task, drafts_of(1), 3, 0.0, 0.0)
    assert frames(last) == [((1,), True)], "a chunk that is begun is completed on its stream"
    assert edge.work(0.0) is None, "no other is begun on one that is about to end"


def test_a_chunk_that_took_its_time_is_whole() -> None:
    for draft_s, leaves in ((0.49, []), (0.5, [((0,), True)])):
        edge = connected(scheduled("coupled", Schedule(9, 3, verify_on_arrival=True)))
        edge.controller.chunk_budget_s = 0.5
        assert handed(edge, 0, draft_s=draft_s) == (3, leaves)
    assert handed(edge, 1, draft_s=0.25) == (3, []), "a chunk of its own"
    edge.receive(verdict_of(edge, 0, True, 2), 0.0)
    assert handed(edge, 1, draft_s=0.25) == (3, []), "what was discarded counts no more"
    assert handed(edge, 2, draft_s=0.25) == (2, [((1, 2), True)])
    assert handed(edge, 2, draft_s=0.25) == (3, []), "and the next one is not overdue"


@pytest.mark.parametrize("chosen", [CHUNKS, PIECES], ids=["chunks", "pieces"])
def test_another_schedule_waits_for_the_end_of_a_chunk(chosen: Preset) -> None:
    other, adaptive = Schedule(1, 1), replace(chosen, control=Control.LATENCY_AWARE)
    edge = connected(adaptive)
    task = task_of(edge)
    edge.drafted(task, drafts_of(0), 2, 0.0, 0.0)
    edge.controller.schedule = other
    assert edge.work(0.0) is None
    assert edge.schedule == chosen.schedule
    edge.drafted(task, drafts_of(1), 3, 0.0, 0.0)
    edge.controller.schedule = other
    assert edge.work(0.0) is None, "two drafts are more than its window"
    assert edge.schedule == other
    edge.lost(0.1)
    again = frames(edge.connect(0.2)[1:])
    expected: Frames = [((0, 1), True)]
    assert again == expected, "what is sent again is cut as the preset says"
    assert edge.schedule == chosen.schedule


def test_tokens_are_handed_over_one_by_one_where_somebody_waits_for_each() -> None:
    reports = replace(CHUNKS, control=Control.LATENCY_AWARE)
    for chosen, max_tokens, stepwise in (
        *[(CHUNKS, 12, False), (PIECES, 12, True), (PIECES, 1, False)],
        *[(reports, 12, True), (reports, 1, False)],
    ):
        assert task_of(connected(chosen, max_tokens=max_tokens)).stepwise is stepwise
    assert task_of(connected(LIKELY)).alternatives == 4
    assert task_of(connected()).alternatives == 0


def test_a_task_ends_with_its_last_token_or_an_end() -> None:
    edge = connected(PIECES, ends=frozenset({2}))
    task = task_of(edge)
    edge.drafted(task, drafts_of(0), 2, 0.0, 0.0)
    assert edge.work(0.0) is None, "it is under way"
    edge.drafted(task, drafts_of(1), 3, 0.0, 0.0)
    assert edge.drafted(task, drafts_of(1), 4, 0.0, 0.0) == [], "it has all its tokens"
    ended = task_of(edge)
    assert frames(edge.drafted(ended, drafts_of(2), 4, 0.0, 0.0)) == [((2,), True)]
    assert edge.work(0.0) is None, "nothing follows an end"
    assert edge.kv_length == 4


def test_a_rejection_keeps_the_kv_of_what_is_committed() -> None:
    edge = connected()
    handed(edge, 0, 1)
    stale = task_of(edge)
    assert (stale.keep, stale.token_ids, edge.context(stale)) == (3, (1,), (1, 2, 0, 1))
    assert Interrupt(stale) in edge.receive(tokens_of(edge, 2), 0.0)
    task = task_of(edge)
    assert (task.keep, task.token_ids, task.position) == (2, (2,), 3)
    assert edge.context(task) == (1, 2, 2)


def test_a_kv_that_holds_less_is_fed_what_is_missing() -> None:
    edge = connected()
    edge.adopt_prefix(1)
    task = task_of(edge)
    assert (task.keep, task.token_ids) == (1, (2,))
    edge.drafted(task, drafts_of(0, 1), 1, 0.0, 0.0)
    task = task_of(edge)
    assert (task.keep, task.token_ids) == (1, (2, 0, 1))
    edge.receive(tokens_of(edge, 2), 0.0)
    task = task_of(edge)
    assert (task.keep, task.token_ids) == (1, (2, 2)), "it never held more"


@pytest.mark.parametrize("begun", ["task", "draft"])
def test_a_prefix_is_adopted_before_anything_is_drafted(begun: str) -> None:
    edge = connected()
    task = task_of(edge)
    if begun == "draft":
        edge.drafted(task, drafts_of(0), 2, 0.0, 0.0)
    with pytest.raises(ProtocolError, match="adopt_prefix"):
        edge.adopt_prefix(2)


SHARES = np.array([0.25, 0.25, 0.5], dtype=np.float32)


def test_a_chunk_carries_what_its_uplink_names() -> None:
    found = {}
    for name in ("coupled", "dssd", "dsd", "tslt"):
        edge = connected(preset(name, 2))
        chunk = [Drafted(token_id, SHARES) for token_id in (2, 0)]
        (frame,) = sent(edge.drafted(task_of(edge), chunk, 3, 0.0, 0.0))
        assert (frame.session, frame.base) == (7, 2)
        assert frame.prefix_hash == edge.committed.prefix
        assert (frame.token_ids, frame.end_of_chunk) == ((2, 0), True)
        found[name] = frame
    assert (found["coupled"].probabilities, found["coupled"].distributions) == (None, None)
    assert (found["dssd"].probabilities, found["dssd"].distributions) == ((0.5, 0.25), None)
    for name in ("dsd", "tslt"):
        assert found[name].probabilities is None
        np.testing.assert_array_equal(found[name].distributions, np.stack([SHARES, SHARES]))


@pytest.mark.parametrize(
    ("name", "choices", "wanted"),
    [
        ("dsd", {}, 3 * 2 * 1000),
        ("dsd", {"uplink_precision": "float32"}, 3 * 4 * 1000),
        ("dsd", {"rejection_payload": RejectionPayload.FULL_DISTRIBUTION}, (4 + 3 * 2) * 1000),
        ("dssd-full", {}, 4 * 1000),
        ("dssd", {}, 0),
        ("tslt", {}, 0),
        ("coupled", {}, 0),
    ],
)
def test_whole_distributions_are_bulk(name: str, choices: dict[str, Any], wanted: int) -> None:
    chosen = replace(PRESETS[name], **choices)
    frames = [Drafts(1, 9, 0, token_ids=ids, end_of_chunk=True) for ids in ((5, 6), (7,))]
    request = EdgeRequest(1, (1,), "", 1000, GenerationParams(max_tokens=8), chosen)
    assert bulk_bytes(frames, request) == wanted


@pytest.mark.parametrize("name", ["dsd", "tslt", "coupled"])
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_draft_is_drawn_from_what_its_uplink_can_carry(name: str, precision: Precision) -> None:
    chosen = replace(PRESETS[name], uplink_precision=precision, truncation=Truncation(top_k=2))
    probs = np.array([0.3, 0.25, 0.45], dtype=np.float32)
    cut = truncate(probs, chosen.truncation)
    rounded = {"dsd": wire_probs(cut, "float16"), "tslt": sparse_wire_probs(cut, "float16")}
    expected = rounded.get(name, cut) if precision == "float16" else cut
    np.testing.assert_array_equal(probs_to_draft_from(probs, chosen), expected)
    if precision == "float16" and name in rounded:
        assert (expected != cut).any()


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_what_is_cut_after_the_draw_keeps_the_draft(precision: Precision) -> None:
    """However unlikely it is: a cloud cannot judge a draft that its distribution does not have."""
    chosen = replace(
        PRESETS["tslt-after"], uplink_precision=precision, truncation=Truncation(top_k=2)
    )
    probs = np.array([0.5, 0.3, 0.2 - 1e-7, 1e-7], dtype=np.float32)
    given: list[Array] = []

    def draw(drawn_from: Array, position: int) -> int:
        given.append(drawn_from)
        return 3

    token_id, sent_probs = draw_draft(probs, chosen, draw, 7)
    assert token_id == 3
    np.testing.assert_array_equal(given[0], probs)  # the whole distribution
    assert np.flatnonzero(sent_probs).tolist() == [0, 1, 3]
    assert sent_probs.sum() == pytest.approx(1, abs=1e-6)
    if precision == "float16":
        np.testing.assert_array_equal(sparse_wire_probs(sent_probs, "float16"), sent_probs)
