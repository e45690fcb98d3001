"""What `bench auto` compares in: cells of the grid, and conditions that change while answers are
written. In virtual time; all step times are declared. Invariant: a case is a value that says all
there is to declare, so it may be computed by any process."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from itertools import combinations, product
from math import inf

import numpy as np

from lab.bench.harness.models import Pacing
from lab.bench.speculation.methods_grid import HARDWARE, RTTS_S, VOCABULARY
from lab.simulation.answer_figures import steady_tokens_per_s
from tandem.control.estimates import WarmStart
from tandem.netem.link_model import shape_from
from tandem.services.drafter.warm_start import WarmStarts
from tandem.specdec.choices import CloudDrafts, Predraft
from tandem.specdec.presets import MAX_DRAFT_LENGTH, Preset
from tandem.testing.simulation.answer import Conditions, Question, SimulatedAnswer, simulate_answers
from tandem.testing.simulation.declared_pair import declared_pair
from tandem.testing.simulation.model_pair import SimulatedPair
from tandem.testing.simulation.model_times import ModelTimes

TOKENS = {1: 160, 4: 80, 16: 48, 64: 40}
"""Of each answer, by sessions."""
SEEDS = {1: 3, 4: 3, 16: 2, 64: 1}
"""How many, by sessions: many sessions write as many tokens with one seed as one with several."""
CHANCE = {1: 1.15, 4: 1.1, 16: 1.05, 64: 1.02}
"""By so much luck with its drafts may let a preset exceed what is to be expected."""
RATES = (0.05, 0.3, 0.6, 0.9)
WORDS = 64
"""Vocabulary of the declared pair: small ones draw sooner; whole distributions count padded."""
MEMORY_BOUND = "memory-bound"
PACINGS = {**HARDWARE, MEMORY_BOUND: Pacing(0.024, 0.072, 0.0005)}
"""The last one is a pass that reading the weights bounds: a further token adds its arithmetic
alone. Per parameter in bfloat16, 2 bytes at 4.8 TB/s and 2 operations at 700 TFLOP/s (an H200): a
further token takes 1/146 of the first."""
JUMPS_S = (2.0, 6.0)
"""When a condition changes, and when it changes back."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What is declared. `rate`: acceptance of every draft. `mbps_up`: of the uplink, where it is
    not that of the downlink. `cloud_draft`: whether there is a draft model in the cloud too, whose
    step takes a fifth of the edge's, and which is right as often."""

    hardware: str
    rtt_s: float
    mbps: float
    rate: float
    sessions: int
    mbps_up: float | None = None
    cloud_draft: bool = False

    def __str__(self) -> str:
        up = "" if self.mbps_up is None else f"{self.mbps_up:g}/"
        link = f"{self.rtt_s * 1e3:g} ms, {up}{self.mbps:g} Mbit/s"
        drafts = ", draft model in the cloud" if self.cloud_draft else ""
        return (
            f"{self.hardware}, {link}, acceptance {self.rate:g}, {self.sessions} sessions{drafts}"
        )

    @property
    def times(self) -> ModelTimes:
        return replace(times_of(PACINGS[self.hardware]), offers_cloud_drafts=self.cloud_draft)

    def has(self, preset: Preset) -> bool:
        """Return whether the cell has what the preset needs."""
        return self.cloud_draft or preset.cloud_drafts is not CloudDrafts.MODEL

    def tokens_per_s(self, preset: Preset, seed: int) -> float:
        """Return the tokens/s of all sessions together."""
        link = shape_from(self.rtt_s, self.mbps, mbps_up=self.mbps_up)
        conditions = Conditions(self.times, padded_vocabulary=VOCABULARY, link=link)
        pair = _pair(self.rate, seed)
        tokens, first_s = TOKENS[self.sessions], 4 * self.times.pass_s(1)
        questions = [
            Question((number, seed % WORDS), tokens, seed, start_s=number * 0.618 % 1 * first_s)
            for number in range(self.sessions)
        ]
        # Passes that bring several tokens to each of many sessions are few in such answers: one
        # more or less between two moments would be a tenth of all.
        return steady_tokens_per_s(simulate_answers(preset, pair, conditions, questions), 0)

    @property
    def seeds(self) -> int:
        """How many to take it with."""
        return SEEDS[self.sessions]

    def at_most(self, preset: Preset) -> float:
        """Return a limit that the preset's speed, relative to the cloud alone, is not expected to
        exceed: by what passes cost, and in stop and wait also by how long a round takes that waits
        for no other session."""
        schedule, times, limit = preset.schedule, self.times, self.limit_over_ar()
        if not schedule.stop_and_wait:
            return limit
        length = schedule.chunk
        tokens = sum(self.rate**count for count in range(length + 1))
        drafting_s = 0.0 if preset.predraft is not Predraft.OFF else length * times.draft_s
        round_s = self.rtt_s + drafting_s + times.pass_s(1 + length)
        return min(limit, tokens * times.pass_s(self.sessions) / round_s)

    def cannot_be_best(self, preset: Preset, best: float) -> bool:
        """Return whether the preset may be left out: even with luck it would not reach `best`, the
        speed of another preset relative to the cloud alone; or no draft is worth its place in a
        pass, so that the cloud alone is best."""
        lucky = CHANCE[self.sessions] * self.at_most(preset)
        return lucky < best or self.limit_over_ar() <= 1

    def limit_over_ar(self) -> float:
        """Return the speed, relative to the cloud alone, that no chain of drafts can exceed by what
        passes cost."""

        def tokens_per_s(length: int) -> float:
            tokens = sum(self.rate**count for count in range(length + 1))
            return self.sessions * tokens / self.times.pass_s(self.sessions * (1 + length))

        return max(map(tokens_per_s, range(MAX_DRAFT_LENGTH + 1))) / tokens_per_s(0)


def cells(
    hardware: Sequence[str], rtts_s: Sequence[float], links: Sequence[tuple[float | None, float]]
) -> list[Cell]:
    """Return cells with every acceptance and number of sessions, without and with a draft model in
    the cloud. `links`: Mbit/s up and down; None up: as down."""
    return [
        Cell(name, rtt_s, down, rate, sessions, mbps_up=up, cloud_draft=cloud_draft)
        for name, rtt_s, (up, down), rate, sessions, cloud_draft in product(
            hardware, rtts_s, links, RATES, TOKENS, (False, True)
        )
    ]


LINKS = ((1.0, 10.0), (None, 10.0), (None, 100.0))
"""Mbit/s up and down: a mobile uplink, and both alike."""
GRID = cells(tuple(HARDWARE), RTTS_S, LINKS)
LOAD = cells((MEMORY_BOUND,), (0.030,), LINKS[-1:])
QUICK = [
    *(
        Cell("server", 0.030, 100.0, rate, sessions, cloud_draft=cloud_draft)
        for rate, sessions, cloud_draft in product((0.05, 0.6, 0.9), (1, 4), (False, True))
    ),
    *(
        Cell(MEMORY_BOUND, 0.030, 100.0, rate, 16, cloud_draft=cloud_draft)
        for rate, cloud_draft in product((0.05, 0.6, 0.9), (False, True))
    ),
]


def covering(cells: Sequence[Cell], seed: int) -> list[Cell]:
    """Return the cells in an order in which every two values of different axes soon meet. The next
    cell is always one of those whose pairs of values came up least so far; the seed decides
    which."""
    left = list(cells)
    random.Random(seed).shuffle(left)
    numbers = dict[object, int]()  # of each pair of values, each with its axis
    pairs = np.array(
        [[numbers.setdefault(pair, len(numbers)) for pair in _pairs(cell)] for cell in left]
    )
    news = np.ones(len(numbers))
    ordered = list[Cell]()
    taken = np.zeros(len(left), dtype=bool)
    while len(ordered) < len(left):
        best = int(np.where(taken, -1.0, news[pairs].sum(axis=1)).argmax())
        taken[best] = True
        news[pairs[best]] *= 0.25
        ordered.append(left[best])
    return ordered


def _pairs(cell: Cell) -> Iterator[object]:
    return combinations(enumerate(astuple(cell)), 2)


USUAL_TIMES = ModelTimes()


@dataclass(frozen=True, slots=True)
class Change:
    """Something that changes and changes back: how often drafts are right, the link, who else asks,
    or what else the machine does. Each pair is what it is first and last, and what it is between.
    `times`: of the models. `before`: so many answers of the same edge precede the first one, which
    knows what they measured."""

    words: str
    rates: tuple[float, float] = (0.8, 0.8)
    rtts_s: tuple[float, float] = (0.030, 0.030)
    mbps: tuple[float, float] = (100.0, 100.0)
    others: int = 0
    times: ModelTimes = USUAL_TIMES
    before: int = 0

    def __str__(self) -> str:
        return self.words

    @property
    def seeds(self) -> int:
        """As of one session."""
        return SEEDS[1]

    def has(self, preset: Preset) -> bool:
        """Return whether the conditions have what the preset needs."""
        in_cloud = self.times.offers_cloud_drafts
        return in_cloud or preset.cloud_drafts is not CloudDrafts.MODEL

    def at_most(self, preset: Preset) -> float:
        """Return infinity, since no limit is known."""
        return inf

    def cannot_be_best(self, preset: Preset, best: float) -> bool:
        """Return False, since this cannot be known in advance."""
        return False

    def tokens_per_s(self, preset: Preset, seed: int) -> float:
        """Return the summed tokens/s of the answers, each by the time that it took."""
        answers = self.answers(preset, seed)
        return sum(len(answer.token_ids) / answer.last_commit_s for answer in answers)

    def answers(self, preset: Preset, seed: int) -> list[SimulatedAnswer]:
        """Return the simulated answers. The first one is written from the beginning on; the
        `others` are asked for when the conditions change."""
        usual, other = self.rates
        pair = declared_pair(lambda at: other if 40 <= at < 120 else usual, seed=seed)
        conditions = Conditions(self.times, self.rtts_s[0], self.mbps[0])
        links = [shape_from(self.rtts_s[turn], self.mbps[turn]) for turn in (1, 0)]
        if links[0] != links[1]:
            moments = tuple(zip(JUMPS_S, links, strict=True))
            conditions = replace(conditions, link_changes=moments)
        first = Question((1, seed), 200, seed)
        for number in range(self.before):
            earlier = replace(first, prompt_ids=(*first.prompt_ids, number))
            measured = simulate_answers(preset, pair, conditions, [earlier])[0]
            first = replace(first, warm_start=_known_after(measured, preset))
        questions = [first]
        questions += [
            Question((number + 2, seed), 20, seed, start_s=JUMPS_S[0] + 0.05 * number)
            for number in range(self.others)
        ]
        return simulate_answers(preset, pair, conditions, questions)


LAPTOP = ModelTimes(
    draft_s=0.009,
    verify_first_s=0.055,
    verify_further_s=0.0035,
    slowed=1.2,
    cloud_draft_s=0.008,
    offers_cloud_drafts=True,
    loaded=1.9,
    load_every_s=1.0,
)
"""The SmolLM2 pair with both sides on two cores, and a busy loop on each every other second."""
CHANGES = [
    Change("acceptance 0.9, 0.05, 0.9", rates=(0.9, 0.05)),
    Change("acceptance 0.05, 0.9, 0.05", rates=(0.05, 0.9)),
    Change("round trip 10, 300, 10 ms", rtts_s=(0.010, 0.300)),
    Change("round trip 300, 10, 300 ms", rtts_s=(0.300, 0.010)),
    Change("bandwidth 100, 1, 100 Mbit/s", mbps=(100.0, 1.0)),
    Change("verifier idle, 15 others, idle", others=15),
    *(
        Change(
            f"other load, each second, acceptance {rate:g}",
            rates=(rate, rate),
            rtts_s=(0.040, 0.040),
            times=LAPTOP,
            before=3,
        )
        for rate in (0.45, 0.6, 0.8)
    ),
]


@lru_cache(maxsize=1)
def _pair(rate: float, seed: int) -> SimulatedPair:
    """Return one pair for all presets, which mostly ask for the same distributions."""
    return declared_pair(rate, seed=seed, vocabulary_size=WORDS)


def _known_after(answer: SimulatedAnswer, preset: Preset) -> WarmStart:
    """Return what a drafter that wrote this answer knows when its next request begins."""
    warm_starts = WarmStarts("simulated", clock=lambda: 0.0)
    warm_starts.ended(preset.name, "simulated", answer.measured)
    return warm_starts.known(preset.name)


def times_of(pacing: Pacing) -> ModelTimes:
    """Return the same step times for virtual time."""
    return ModelTimes(pacing.draft_s, pacing.verify_first_s, pacing.verify_further_s)
