"""Any valid composition, over any link, under any faults: it ends, with the right text."""

import random
from dataclasses import dataclass, replace

import pytest

from tandem.core.errors import InvalidArgument
from tandem.core.probs import SamplingParams, Truncation
from tandem.netem.link_model import link_from
from tandem.specdec.choices import (
    Acceptance,
    Control,
    Predraft,
    PredraftOrder,
    RejectionPayload,
    Schedule,
    Uplink,
)
from tandem.specdec.presets import PRESETS, Preset
from tandem.testing.simulation.model_times import ModelTimes
from tandem.testing.simulation.simulator import SimulationResult
from tandem.testing.simulation.virtual_time import Faults
from tests.long_runs import with_long_cases
from tests.virtual_time.cases import ModelPair, faults_of, model_pair, preset, run, scheduled

SAMPLINGS = [
    SamplingParams(),
    SamplingParams(temperature=0.7, top_k=5),
    SamplingParams(top_p=0.8),
    SamplingParams(0.0),
]
MODELS = [
    model_pair(12, sharpness=4.0, noise=noise, sampling=sampling)
    for sampling in SAMPLINGS
    for noise in (0.1, 0.8)
]


@dataclass(frozen=True)
class Case:
    """One random request; everything in it follows from its seed."""

    seed: int
    chosen: Preset
    models: ModelPair
    max_tokens: int
    ends: frozenset[int]
    times: ModelTimes
    faults: Faults

    def run(self, chosen: Preset | None = None, faults: Faults | None = None) -> SimulationResult:
        """The request, by another method or with other faults if given."""
        return run(
            chosen or self.chosen,
            self.models,
            self.seed,
            max_tokens=self.max_tokens,
            ends=self.ends,
            times=self.times,
            faults=self.faults if faults is None else faults,
        )


DRAFTING_UPLINKS = [uplink for uplink in Uplink if uplink is not Uplink.HIDDEN_STATES]


def random_preset(source: random.Random, prepares: random.Random) -> Preset:
    while True:
        window = source.choice((0, 1, 2, 3, 5, 8, 13))
        composed = Preset(
            name="random",
            schedule=Schedule(
                window=window,
                chunk=source.randint(1, max(1, window)),
                verify_on_arrival=source.random() < 0.5,
                bonus=source.random() < 0.5,
                decode_when_idle=source.random() < 0.5,
                token_by_token=source.random() < 0.5,
                prepare_on_arrival=prepares.random() < 0.3,
            ),
            acceptance=source.choice(list(Acceptance)),
            uplink=source.choice(DRAFTING_UPLINKS),
            rejection_payload=source.choice(list(RejectionPayload)),
            uplink_precision=source.choice(("float32", "float16")),
            payload_top=source.choice((0, 1, 3, 64)),
            payload_tail_draws=source.choice((0, 1, 4)),
            truncation=source.choice((Truncation(), Truncation(2), Truncation(top_p=0.6))),
            control=source.choice((Control.FIXED, *Control)),
            predraft=source.choice((Predraft.OFF, Predraft.LIKELY_OUTCOMES)),
            predraft_order=source.choice(list(PredraftOrder)),
            predraft_workers=source.choice((1, 4)),
            predraft_outcomes=source.choice((1, 16)),
            with_replacement=source.random() < 0.3,
            confidence_threshold=source.choice((0.0, 0.0, 0.5)),
        )
        layers = source.randint(1, 4) if source.random() < 0.4 else 0
        expansion = tuple(source.randint(1, 3) for _ in range(layers))
        try:
            composed = composed.with_expansion(expansion) if expansion else composed
            composed.validate()
        except InvalidArgument:
            continue
        return composed


def random_case(seed: int) -> Case:
    source = random.Random(f"composition {seed}")
    return Case(
        seed,
        random_preset(source, random.Random(f"prepares {seed}")),
        source.choice(MODELS),
        max_tokens=source.randint(1, 24),
        ends=frozenset(source.sample(range(12), source.choice((0, 0, 1)))),
        times=ModelTimes(
            draft_s=source.choice((0.001, 0.02, 0.1)),
            verify_first_s=source.choice((0.005, 0.07, 0.3)),
            verify_further_s=source.choice((0.0, 0.01)),
        ),
        faults=faults_of(seed, span_s=2.0) if source.random() < 0.6 else Faults(),
    )


def check_support(case: Case, result: SimulationResult) -> None:
    """No token that the target model could not have drawn there."""
    context: tuple[int, ...] = (1, 2)
    for token in result.token_ids:
        assert case.models.target_probs(context)[token] > 0
        context = (*context, token)


@pytest.mark.parametrize("block", with_long_cases(range(8), range(1)))
def test_random_compositions(block: int) -> None:
    kinds = set()
    for seed in range(50 * block, 50 * (block + 1)):
        case = random_case(seed)
        result = case.run()
        ended = bool(result.token_ids) and result.token_ids[-1] in case.ends
        assert ended or len(result.token_ids) == case.max_tokens, case
        check_support(case, result)
        if case.chosen.acceptance is Acceptance.GUMBEL or case.models.sampling.greedy:
            kinds.add("ar")
            assert result.token_ids == case.run(preset("ar"), Faults()).token_ids, case
        elif case.chosen.drafts:
            kinds.add("uncut")
            assert result.token_ids == case.run(faults=Faults()).token_ids, case
    assert kinds == {"ar", "uncut"}


@pytest.mark.parametrize("uplink", [Uplink.FULL_DISTRIBUTIONS, PRESETS["auto"].uplink])
@pytest.mark.parametrize("window", [1, 2])
def test_no_more_drafts_than_the_window_while_nothing_is_known(uplink: Uplink, window: int) -> None:
    """A cloud refuses more drafts than it was told of, so `auto` may not begin with more. One draft
    at a time is never worth a try over this link."""
    narrow = replace(PRESETS["auto"].schedule, window=window, chunk=1)
    chosen = scheduled("auto", narrow, uplink=uplink)
    times = ModelTimes(draft_s=0.02, verify_first_s=0.3, verify_further_s=0.0)
    for seed in range(3):
        result, alone = (
            run(
                each,
                MODELS[0],
                seed,
                max_tokens=12,
                times=times,
                link=link_from(0.06, None, 0.0, seed),
            )
            for each in (chosen, preset("ar"))
        )
        assert result.token_ids == alone.token_ids
        assert result.stats.drafted > 0 or window == 1
