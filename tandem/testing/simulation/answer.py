"""Answers in virtual time, with their latencies and bytes. Invariant: a pure function of its
arguments; the same seed gives the same answer to the last bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tandem.control.estimates import NO_WARM_START, WarmStart
from tandem.core.errors import InvalidArgument
from tandem.netem.link_model import LinkShape, shape_from
from tandem.specdec.edge_stats import EdgeStats
from tandem.specdec.events import EdgeRequest
from tandem.specdec.liveness import LivenessTimes
from tandem.specdec.messages import GenerationParams
from tandem.specdec.presets import Preset
from tandem.testing.simulation.model_pair import SimulatedPair
from tandem.testing.simulation.model_times import ModelTimes
from tandem.testing.simulation.simulated_verifier import TargetModel
from tandem.testing.simulation.simulator import (
    SimulatedRequest,
    SimulationResult,
    simulate_together,
)
from tandem.testing.simulation.wire_sizes import WireSizes

NEVER_LOST = LivenessTimes(dead_after_s=3600.0, give_up_after_s=3600.0)
"""These links are not cut; a padded distribution takes longer than the machine would wait."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Step times of the hardware, and the link: round trip in seconds, 10⁶ bit/s each way."""

    times: ModelTimes
    rtt_s: float = 0.0
    mbps: float | None = None
    jitter_s: float = 0.0
    padded_vocabulary: int | None = None
    link_changes: tuple[tuple[float, LinkShape], ...] = ()
    """Other settings, each from a moment on."""
    link: LinkShape | None = None
    """Replaces `rtt_s`, `mbps` and `jitter_s`, where the directions differ."""

    @property
    def shape(self) -> LinkShape:
        """The link at the start."""
        return self.link or shape_from(self.rtt_s, self.mbps, self.jitter_s)


@dataclass(frozen=True, slots=True)
class Question:
    """What one session is asked, and when. `warm_start`: what its edge knows from before."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    seed: int
    start_s: float = 0.0
    warm_start: WarmStart = NO_WARM_START


@dataclass(frozen=True, slots=True)
class SimulatedAnswer:
    """An answer and its cost in virtual time. `ttft_s` and `last_commit_s` count from the request,
    `commits` from the beginning of virtual time;
    bytes are those of every message; `rejections` counts the verdicts that reject a draft,
    `cloud_rejections` the passes that reject one of the cloud's own."""

    token_ids: tuple[int, ...]
    ttft_s: float
    last_commit_s: float
    uplink_bytes: int
    downlink_bytes: int
    rejections: int
    stats: EdgeStats
    commits: tuple[tuple[float, int], ...] = ()
    """When how many tokens were committed."""
    cloud_rejections: int = 0
    measured: WarmStart = field(default=NO_WARM_START, compare=False, repr=False)
    """What the session measured, for those after it."""

    @property
    def tpot_s(self) -> float | None:
        """(last commit − first commit)/(tokens − 1); None for fewer than two tokens."""
        if len(self.token_ids) < 2:
            return None
        return (self.last_commit_s - self.ttft_s) / (len(self.token_ids) - 1)


def simulate_answer(
    preset: Preset,
    pair: SimulatedPair,
    conditions: Conditions,
    prompt_ids: tuple[int, ...],
    max_tokens: int,
    seed: int,
) -> SimulatedAnswer:
    """Simulate an answer of exactly `max_tokens` tokens. Raises InvalidArgument naming a bad
    setting."""
    return simulate_answers(preset, pair, conditions, [Question(prompt_ids, max_tokens, seed)])[0]


def simulate_answers(
    preset: Preset, pair: SimulatedPair, conditions: Conditions, questions: Sequence[Question]
) -> list[SimulatedAnswer]:
    """Simulate the answers of sessions that share one verifier, each with an edge and a link of its
    own."""
    preset = preset.fitted(pair.vocabulary_size)
    preset.validate()
    for question in questions:
        _check(question, pair)
    sizes = [
        WireSizes(preset, pair.vocabulary_size, conditions.padded_vocabulary) for _ in questions
    ]
    requests = [
        _request_of(preset, pair, conditions, question, number, weighed)
        for number, (question, weighed) in enumerate(zip(questions, sizes, strict=True))
    ]
    done = simulate_together(requests, conditions.times)
    return [_answer(*parts) for parts in zip(questions, done, sizes, strict=True)]


def tokens_per_s_together(answers: Sequence[SimulatedAnswer]) -> float:
    """Return the tokens of all sessions per second, while all of them are past their first token
    and before their last."""
    begun_s = max(answer.commits[0][0] for answer in answers)
    ended_s = min(answer.commits[-1][0] for answer in answers)
    if ended_s <= begun_s:
        raise InvalidArgument("max_tokens", "the sessions are never all under way")
    tokens = sum(
        count
        for answer in answers
        for moment, count in answer.commits
        if begun_s < moment <= ended_s
    )
    return tokens / (ended_s - begun_s)


def verified_acceptance(answers: Sequence[SimulatedAnswer]) -> float | None:
    """Return accepted ÷ settled drafts, without those after a rejected one; None if none was
    settled."""
    accepted = sum(answer.stats.accepted for answer in answers)
    rejected = sum(answer.stats.rejected for answer in answers)
    return accepted / (accepted + rejected) if accepted + rejected else None


def _check(question: Question, pair: SimulatedPair) -> None:
    prompt_ids = question.prompt_ids
    max_tokens = question.max_tokens
    if not prompt_ids:
        raise InvalidArgument("prompt", "has no tokens")
    if max_tokens < 1:
        raise InvalidArgument("max_tokens", f"must be at least 1, is {max_tokens}")
    if len(prompt_ids) + max_tokens > pair.context_length:
        why = f"{len(prompt_ids)} + {max_tokens} tokens exceed the context of {pair.context_length}"
        raise InvalidArgument("max_tokens", why)


def _request_of(
    preset: Preset,
    pair: SimulatedPair,
    conditions: Conditions,
    question: Question,
    number: int,
    sizes: WireSizes,
) -> SimulatedRequest:
    seed = question.seed
    request = EdgeRequest(
        session=number + 1,
        prompt_ids=question.prompt_ids,
        vocabulary_hash="simulated",
        vocabulary_size=pair.vocabulary_size,
        params=GenerationParams(
            sampling=pair.sampling, seed=seed, max_tokens=question.max_tokens, ignore_eos=True
        ),
        preset=preset,
        warm_start=question.warm_start,
    )
    return SimulatedRequest(
        request,
        pair.draft_probs,
        TargetModel(
            pair.target_probs,
            pair.exit_distributions,
            pair.exit_depths,
            pair.exit_temperatures,
        ),
        conditions.shape.opened(seed + number),
        start_s=question.start_s,
        link_changes=conditions.link_changes,
        liveness_times=NEVER_LOST,
        size_of=sizes.size_of,
    )


def _answer(question: Question, done: SimulationResult, sizes: WireSizes) -> SimulatedAnswer:
    return SimulatedAnswer(
        done.token_ids,
        ttft_s=done.commits[0][0] - question.start_s,
        last_commit_s=done.commits[-1][0] - question.start_s,
        uplink_bytes=sizes.uplink_bytes,
        downlink_bytes=sizes.downlink_bytes,
        rejections=sizes.rejections,
        stats=done.stats,
        commits=tuple((moment, len(commit.token_ids)) for moment, commit in done.commits),
        cloud_rejections=sizes.cloud_rejections,
        measured=done.measured,
    )
