"""A cloud that takes fewer drafts at once than a preset makes: each frame has as many as it takes,
and the text is that of any other cloud."""

from typing import Any

import pytest

from tandem.specdec.messages import Drafts
from tandem.specdec.presets import PRESETS, Preset
from tests.virtual_time.cases import model_pair
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


@pytest.mark.parametrize("name", ["dsd", "coupled", "mc-dsd", "stream"])
def test_a_cloud_of_which_nothing_is_known_is_sent_the_same_frames(name: str) -> None:
    chosen = PRESETS[name].fitted(20)
    assert frames_of(chosen, Pace(draft=3), known_longest=0) == frames_of(chosen, Pace(draft=3))
