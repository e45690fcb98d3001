"""Two-sided answers in virtual time, over added latency: the top two documents of each side,
prompts of held-out text, temperature 1, added round trips with a jitter of a fifth. The
state machines are real, distributions are the pair's, and the time of a decoding step is
declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from lab.bench.harness.models import Models
from lab.bench.two_sided.dragon_corpus import read_windows
from lab.bench.two_sided.dragon_probs import Question, question_from
from tandem.backends.model_description import load_tokenizer
from tandem.backends.torch.loading import load_engine
from tandem.core.probs import SamplingParams
from tandem.core.randomness import SeededRandom
from tandem.netem.link_model import LinkPair, LinkSettings
from tandem.testing.simulation.two_sided_answer import (
    SimulatedSide,
    TwoSidedAnswer,
    simulate_two_sided,
)
from tandem.two_sided.protocol.messages import AggregationRequest
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.placement import PlacementPolicy, placement_policy_for
from tandem.two_sided.protocol.presets import AggregationPreset
from tandem.two_sided.protocol.profiler import SideProfiler

DOCUMENTS = 2
TOKENS = 24
ADDED_S = (0.0, 0.05, 0.1, 0.2, 0.3)
QUICK_ADDED_S = (0.0, 0.3)
BASE_RTT_S = 0.002
JITTER_SHARE = 0.2
NO_START_S: Mapping[Side, float] = MappingProxyType(dict.fromkeys(Side, 0.0))


@dataclass(frozen=True, slots=True)
class Pacing:
    """Declared times of a decoding step."""

    name: str
    device_s: float
    cloud_s: float


PACINGS = (Pacing("device 110 ms, cloud 40 ms", 0.110, 0.040), Pacing("both 60 ms", 0.060, 0.060))


@dataclass(frozen=True, slots=True)
class Times:
    """Declared: a decoding step of each side, and the way there and back."""

    device_s: float
    cloud_s: float
    rtt_s: float


def ask_questions(models: Models, peps: Path, seed: int, count: int) -> list[Question]:
    windows = read_windows(peps, load_tokenizer(models.target), DOCUMENTS, seed)[:count]
    device, cloud = load_engine(models.draft), load_engine(models.target)
    return [question_from(one, device, cloud, DOCUMENTS, SamplingParams()) for one in windows]


def answer(
    preset: AggregationPreset,
    question: Question,
    times: Times,
    added_s: float,
    seed: int,
    *,
    tokens: int = TOKENS,
    first_s: Mapping[Side, float] = NO_START_S,
) -> TwoSidedAnswer:
    """Return the answer to one question in virtual time; both directions have half of the latency
    and the jitter.

    `first_s`: seconds that a side takes before its first step, for the documents' and the prompt's
    keys.
    """
    rng = SeededRandom(seed)

    def placement_policy(side: Side) -> tuple[PlacementPolicy | None, SideProfiler | None]:
        profiler = SideProfiler()
        return placement_policy_for(preset.placement, rng, measured=profiler.sides), profiler

    one_way = LinkSettings(times.rtt_s / 2, JITTER_SHARE * added_s / 2)
    request = AggregationRequest(
        session=seed % 2**32,
        prompt_ids=question.prompt_ids,
        vocabulary_hash="demo",
        vocabulary_size=len(question.cloud(question.prompt_ids)),
        sampling=SamplingParams(),
        seed=seed,
        max_tokens=tokens,
        preset=preset,
        ignore_eos=True,
    )
    return simulate_two_sided(
        request,
        SimulatedSide(
            question.device,
            question.device.log_mass,
            lambda step: times.device_s + (0.0 if step else first_s[Side.DEVICE]),
        ),
        SimulatedSide(
            question.cloud,
            question.cloud.log_mass,
            lambda step: times.cloud_s + (0.0 if step else first_s[Side.CLOUD]),
        ),
        LinkPair.of(one_way, one_way, seed),
        placement_policy_for=placement_policy,
    )


def answer_tpot_s(one: TwoSidedAnswer) -> float:
    return (one.commits[-1][0] - one.commits[0][0]) / (len(one.token_ids) - 1)
