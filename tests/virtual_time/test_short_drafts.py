"""A cloud that takes fewer drafts at once than a preset makes: each frame has as many as it takes,
and the text is that of any other cloud."""

from dataclasses import replace
from typing import Any

import pytest

from tandem.specdec.choices import Schedule
from tandem.specdec.edge import EdgeMachine
from tandem.specdec.events import EdgeOutput
from tandem.specdec.liveness import Liveness, LostCloud
from tandem.specdec.messages import Drafts, Opened
from tandem.specdec.presets import PRESETS, Preset
from tests.virtual_time.cases import model_pair, preset, scheduled
from tests.virtual_time.edge_frames import (
    TIMES,
    connected,
    draft,
    drafts_of,
    edge_of,
    frame_of,
    sent,
    task_of,
)
from tests.virtual_time.lockstep import Lockstep, Pace

MODELS = model_pair(20, sharpness=5.0, noise=0.3)
DRAFTING = [chosen.fitted(20) for chosen in PRESETS.values() if chosen.drafts]
PACES = [Pace(), Pace(draft=3), Pace(up=6, down=6)]
"""Opened comes after the first draft, in the middle, or before it."""


def frames_of(chosen: Preset, pace: Pace, **cloud: Any) -> tuple[list[int], tuple[int, ...]]:
    """The drafts of each frame that the cloud was sent, and the text."""
    lengths: list[int] = []

    def count(_: object, message: object) -> None:
        if isinstance(message, Drafts):
            lengths.append(len(message.token_ids))

    run = Lockstep(chosen, MODELS, max_tokens=14, pace=pace, to_cloud=count, **cloud)
    return lengths, run.run()


@pytest.mark.parametrize("pace", PACES, ids=["late", "between", "later"])
@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
@pytest.mark.parametrize("longest", [1, 2, 3])
@pytest.mark.parametrize("chosen", DRAFTING, ids=lambda chosen: chosen.name)
def test_no_frame_has_more_drafts_than_the_cloud_takes(
    chosen: Preset, longest: int, known: bool, pace: Pace
) -> None:
    lengths, text = frames_of(
        chosen, pace, longest_draft=longest, known_longest=longest if known else 0
    )
    assert lengths or chosen.control == "least_cost", "something is drafted"
    assert max(lengths, default=0) <= longest
    assert len(text) == 14
    if chosen.drafter_invariant:
        assert text == frames_of(chosen, pace)[1]


@pytest.mark.parametrize("known", [0, 2])
@pytest.mark.parametrize("seed", range(4))
def test_rounds_stay_rounds_where_the_cloud_judges_on_arrival(known: int, seed: int) -> None:
    """With a second chunk in flight, the edge took the token after the first for a rejection."""
    rounds = Schedule(6, 6, verify_on_arrival=True)
    chosen = scheduled("dssd", rounds)
    pace = Pace(draft=3, down=6)
    lockstep = Lockstep(
        chosen,
        MODELS,
        seed=seed,
        max_tokens=14,
        pace=pace,
        longest_draft=2,
        known_longest=known,
    )
    assert len(lockstep.run()) == 14


def opened(edge: EdgeMachine, longest: int) -> Opened:
    return Opened(*frame_of(edge), longest, frozenset(), "scripted")


def lengths_of(outputs: list[EdgeOutput]) -> list[int]:
    return [len(frame.token_ids) for frame in sent(outputs) if isinstance(frame, Drafts)]


@pytest.mark.parametrize("name", ["dsd", "dssd", "dssd-full", "coupled"])
def test_a_round_for_a_cloud_that_takes_more_is_drafted_again(name: str) -> None:
    """Sent in two frames it got two verdicts, and after the first of them a bonus token, which the
    edge took for a rejection: on every stream again."""
    edge = connected(preset(name, 4), opened=False)
    assert lengths_of(draft(edge, 0, 1, 2, 0)) == [4]
    edge.receive(opened(edge, 2), 0.1)
    edge.lost(0.2)
    assert lengths_of(edge.connect(0.3)) == []
    again = task_of(edge, 0.3)
    assert again.keep + len(again.token_ids) == again.position
    assert again.token_ids, "a pass feeds a token"
    drafted = edge.drafted(again, drafts_of(0, 1), again.position + 1, 0.01, 0.3)
    assert lengths_of(drafted) == [2]


def test_another_cloud_is_sent_what_all_take_before_it_has_spoken() -> None:
    """The one before took more; this one would refuse the request."""
    request = replace(edge_of(preset("coupled", 4)).request, longest_draft=2)
    edge = EdgeMachine(request, Liveness(LostCloud.WAIT, TIMES, now=0.0))
    edge.connect(0.0)
    edge.receive(opened(edge, 64), 0.1)
    assert lengths_of(draft(edge, 0, 1)) == [2]
    edge.lost(0.2)
    assert lengths_of(edge.connect(0.3)) == [2]


@pytest.mark.parametrize("name", ["picospec", "stream"])
def test_a_chunk_made_shorter_than_its_first_part_leaves_no_empty_frame(name: str) -> None:
    edge = connected(preset(name), opened=False)
    task = task_of(edge)
    outputs = [
        output
        for number in range(3)
        for output in edge.drafted(task, drafts_of(0), task.position + number, 0.0, 0.0)
    ]
    assert lengths_of(outputs) == [1, 1, 1]
    edge.receive(opened(edge, 1), 0.1)
    assert lengths_of(edge.drafted(task, drafts_of(1), task.position + 3, 0.0, 0.2)) == [1]
