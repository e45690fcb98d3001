"""Where a cloud is silent, a second one is asked for the same position: whichever answers, and
however often, the text is the same."""

from __future__ import annotations

import random
from collections import deque

import pytest

from tandem.specdec.choices import Schedule
from tandem.specdec.messages import CloudMessage
from tandem.specdec.presets import Preset
from tests.long_runs import with_long_cases
from tests.virtual_time.cases import model_pair, preset, scheduled, tree
from tests.virtual_time.lockstep import Lockstep, Pace

MODELS = model_pair(20, sharpness=5.0, noise=0.3)
HEDGED = {
    "coupled": preset("coupled"),
    "dssd": preset("dssd", payload_top=4),
    "a full distribution is asked for": preset("dssd", payload_top=0, payload_tail_draws=0),
    "mc-dsd": preset("mc-dsd"),
    "predraft": preset("predraft"),
    "tree": tree((3, 2, 1), "coupled"),
    "ar": preset("ar"),
    "stream": preset("stream"),
    "parts of chunks": scheduled(
        "coupled", Schedule(6, 2, verify_on_arrival=True, token_by_token=True)
    ),
    "several chunks": scheduled("coupled", Schedule(6, 2, verify_on_arrival=True)),
}


class SilentClouds(Lockstep):
    """Before a frame of its cloud arrives, a second one may answer in its place; `chance` of it."""

    def __init__(self, chosen: Preset, seed: int, chance: float) -> None:
        self._source, self._chance = random.Random(seed), chance
        self.hedges = 0
        source = random.Random(f"pace {seed}")
        pace = Pace(*(source.randint(1, 4) for _ in range(4)))
        super().__init__(chosen, MODELS, seed=seed, max_tokens=16, pace=pace)

    def _receive_at_edge(self, message: CloudMessage) -> None:
        silent = self.edge.target_name and self._source.random() < self._chance
        frames = self.edge.frames_beside() if silent else []
        if not frames:
            super()._receive_at_edge(message)
            return
        self.hedges += 1
        self.edge.switched(0.0)
        self.cloud, self._judging = None, None
        self._speaking.clear()
        self._down.clear()
        self._up = deque((self._turn + self._pace.up, frame) for frame in frames)


@pytest.mark.parametrize(
    "name",
    with_long_cases(
        HEDGED,
        (
            *("dssd", "a full distribution is asked for", "tree", "ar", "stream"),
            "parts of chunks",
        ),
    ),
)
def test_whoever_answers_first_the_text_is_the_same(name: str) -> None:
    hedges = 0
    for seed in range(6):
        expected = Lockstep(HEDGED[name], MODELS, seed=seed, max_tokens=16).run()
        silent = SilentClouds(HEDGED[name], seed, chance=0.3)
        assert silent.run() == expected
        hedges += silent.hedges
    assert hedges > 6


def test_where_the_text_depends_on_arrival_times_nobody_else_is_asked() -> None:
    silent = SilentClouds(preset("stream-rejection"), 1, chance=1.0)
    silent.run()
    assert silent.hedges == 0
