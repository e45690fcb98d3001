"""The cost of any preset, composed from its choices, whatever its name. The schedule says which
model counts the time, the payloads what travels. Invariant: pure arithmetic on values."""

from dataclasses import dataclass
from functools import partial

from lab.analysis.cost_models import LinkTimes, Prediction
from lab.analysis.cost_tslt import sparse_probs_bytes, tree_distributions
from lab.analysis.epoch_timeline import Expected, StepTimes, expected
from lab.analysis.shared_passes import expected_together
from tandem.control.cloud_draft_budget import tokens_per_pass, worth_drafting
from tandem.control.conditions import Conditions, PairTimes
from tandem.control.cost import expected_tpot_s, stream_within
from tandem.control.latency_aware import latency_aware
from tandem.control.schedule import cloud_alone
from tandem.core.codecs import Precision
from tandem.core.errors import InvalidArgument
from tandem.specdec.choices import (
    CloudDrafts,
    Control,
    Predraft,
    RejectionPayload,
    Schedule,
    Uplink,
)
from tandem.specdec.presets import Preset

PRECISION_BYTES: dict[Precision, int] = {"float32": 4, "float16": 2}
TAIL_MASS_BYTES = 4
PARENT_BYTES = 1


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a message's parts in bytes; `head_bytes`: without payload. The defaults are the
    wire's: varint ids beyond 16,383, float32 probabilities, frames as `bench bytes` measures."""

    vocabulary_size: int
    token_bytes: float = 3.0
    probability_bytes: float = 4.0
    head_bytes: float = 30.0
    hidden_bytes: float = 4.0
    """Of a hidden state, where the target is split."""


@dataclass(frozen=True, slots=True)
class CloudDrafting:
    """A step of the draft model in the cloud, in seconds, and how often its drafts are right."""

    step_s: float
    acceptance_rate: float


def predict(
    preset: Preset,
    pair: PairTimes,
    link: LinkTimes,
    *,
    acceptance_rate: float,
    sizes: Sizes,
    miss_rate: float = 1.0,
    sessions: int = 1,
    cloud_drafting: CloudDrafting | None = None,
) -> Prediction:
    """Return what a preset is expected to take of each of `sessions` that share one verifier, each
    with an edge of its own. `acceptance_rate` is that of its own acceptance rule, `miss_rate` that
    of its pre-draft cache; of a tree the rate is a layer's. A pass over t tokens of all sessions
    takes verify_first + (t - 1)·further. `cloud_drafting`: of a preset whose cloud drafts with a
    model. Raises InvalidArgument for drafts that are looked up in the cloud, since no model says
    how often something is found, and for several sessions where both sides draft."""
    if preset.split_layers:
        return _split(pair, link, sizes, sessions)
    if preset.drafts_in_cloud:
        drafting = cloud_drafting or CloudDrafting(pair.draft_s / 5, acceptance_rate)
        return _with_cloud_drafts(preset, pair, link, sizes, sessions, acceptance_rate, drafting)
    expected = _expected(preset, pair, link, sessions, acceptance_rate, sizes, miss_rate)
    rejection = payload_bytes(preset, sizes) if preset.drafts else 0.0
    answers = expected.passes * sizes.head_bytes + expected.corrections * rejection
    up = expected.frames * sizes.head_bytes + expected.drafted * _bytes_per_draft(preset, sizes)
    return Prediction(
        pair.verify_s(sessions - 1),
        tokens_per_round=1.0,
        round_s=expected.tpot_s,
        communication_s=link.communication_s(up, answers) if preset.drafts else 0.0,
        uplink_bytes=up if preset.drafts else 0.0,
        downlink_bytes=answers,
    )


def _split(pair: PairTimes, link: LinkTimes, sizes: Sizes, sessions: int) -> Prediction:
    """Predict split layers. Every token crosses the link: its hidden state goes up, the next one's
    id comes down. A pass is that of the layers in the cloud; those at the edge are not counted."""
    up = sizes.head_bytes + sizes.hidden_bytes
    communication_s = link.communication_s(up, sizes.head_bytes)
    pass_s = pair.verify_s(sessions - 1)
    return Prediction(
        pass_s,
        tokens_per_round=1.0,
        round_s=communication_s + pass_s,
        communication_s=communication_s,
        uplink_bytes=up,
        downlink_bytes=sizes.head_bytes,
    )


def _with_cloud_drafts(
    preset: Preset,
    pair: PairTimes,
    link: LinkTimes,
    sizes: Sizes,
    sessions: int,
    acceptance_rate: float,
    drafting: CloudDrafting,
) -> Prediction:
    """Predict sessions that all draft in shared steps, as many tokens as the verifier's budget
    finds worth their time; where the text depends on drafts, as many as the preset says."""
    if preset.cloud_drafts is CloudDrafts.LOOKUP:
        raise InvalidArgument("preset", "no model says how often lookup finds something")
    if preset.drafts and sessions > 1:
        raise InvalidArgument("sessions", "must be 1 where edge and cloud both draft")
    pass_s, row_s = pair.verify_s(sessions - 1), sessions * pair.verify_further_s
    count = preset.cloud_draft_length
    if preset.drafter_invariant:
        step = (drafting.step_s + row_s) / pass_s
        count = worth_drafting(drafting.acceptance_rate, count, step)
    tokens = tokens_per_pass(drafting.acceptance_rate, count)
    conditions = Conditions(
        PairTimes(pair.draft_s, pass_s, row_s),
        link.rtt_s,
        acceptance_rate,
        alone_s=(pass_s + count * (drafting.step_s + row_s)) / tokens,
        cloud_drafts=count,
    )
    schedule = schedule_of(preset, conditions)
    up = 0.0
    down = sizes.head_bytes / tokens
    if preset.drafts:  # as many as beside a cloud that drafts nothing
        edge = _expected(preset, pair, link, 1, acceptance_rate, sizes, miss_rate=1.0)
        up = edge.frames * sizes.head_bytes + edge.drafted * _bytes_per_draft(preset, sizes)
        down = edge.passes * sizes.head_bytes
    return Prediction(
        pass_s,
        tokens_per_round=1.0,
        round_s=expected_tpot_s(schedule, conditions),
        communication_s=link.communication_s(up, down) if preset.drafts else 0.0,
        uplink_bytes=up,
        downlink_bytes=down,
    )


def _expected(
    preset: Preset,
    pair: PairTimes,
    link: LinkTimes,
    sessions: int,
    acceptance_rate: float,
    sizes: Sizes,
    miss_rate: float,
) -> Expected:
    """Return the expectation for one session by one timeline; for several by all of theirs, whose
    controllers see passes as long as they are with what the others feed to them."""
    times = _step_times(preset, pair, link, sizes)
    conditions = Conditions(pair, link.rtt_s, acceptance_rate)
    schedule = schedule_of(preset, conditions)
    hit_rate = 0.0 if preset.predraft is Predraft.OFF else 1 - miss_rate
    fed = schedule.chunk if schedule.stop_and_wait else 0
    head_s = link.rtt_s + pair.verify_s(sessions - 1 + fed)
    if sessions == 1:
        return expected(schedule, times, acceptance_rate, hit_rate=hit_rate, head_s=head_s)
    together, _ = expected_together(
        preset.schedule,  # until its controller has measured enough
        times,
        acceptance_rate,
        sessions=sessions,
        hit_rate=hit_rate,
        head_s=head_s,
        in_parts=preset.verify_settings.allows_partial_verification,
        control=None if preset.control is Control.FIXED else partial(schedule_of, preset),
    )
    return together


def schedule_of(preset: Preset, conditions: Conditions) -> Schedule:
    """Return the schedule that the preset's controller takes under known conditions."""
    match preset.control:
        case Control.FIXED:
            return preset.schedule
        case Control.LATENCY_AWARE:
            return latency_aware(preset.schedule, conditions)
        case Control.LEAST_COST:
            options = cloud_alone(preset.schedule), stream_within(preset.schedule)
            return min(options, key=lambda schedule: expected_tpot_s(schedule, conditions))


def _step_times(preset: Preset, pair: PairTimes, link: LinkTimes, sizes: Sizes) -> StepTimes:
    up = link.uplink_bytes_per_s
    down = link.downlink_bytes_per_s
    return StepTimes(
        draft_s=pair.draft_s,
        pass_s=pair.verify_first_s,
        further_s=pair.verify_further_s,
        up_s=link.rtt_s / 2,
        down_s=link.rtt_s / 2,
        frame_s=sizes.head_bytes / up,
        token_s=_bytes_per_draft(preset, sizes) / up,
        verdict_s=sizes.head_bytes / down,
        correction_s=(payload_bytes(preset, sizes) + sizes.head_bytes) / down,
        siblings=max(0, preset.tree_nodes - preset.schedule.chunk),
    )


def _bytes_per_draft(preset: Preset, sizes: Sizes) -> float:
    """Return the bytes of one draft of a chain, or of one layer of a tree."""
    if not preset.expansion:
        return draft_bytes(preset, sizes)
    probs_bytes = draft_bytes(preset, sizes) - sizes.token_bytes
    nodes_bytes = preset.tree_nodes * (sizes.token_bytes + PARENT_BYTES)
    distributions = tree_distributions(preset.expansion)
    return (distributions * probs_bytes + nodes_bytes) / len(preset.expansion)


def draft_bytes(preset: Preset, sizes: Sizes) -> float:
    """Return the uplink payload of one draft token; a distribution cut by its mass alone counts as
    uncut."""
    match preset.uplink:
        case Uplink.FULL_DISTRIBUTIONS:
            probs = sizes.vocabulary_size * PRECISION_BYTES[preset.uplink_precision]
            return sizes.token_bytes + probs
        case Uplink.SPARSE_DISTRIBUTIONS:
            kept = preset.fitted(sizes.vocabulary_size).truncation.top_k or sizes.vocabulary_size
            value_bytes = PRECISION_BYTES[preset.uplink_precision]
            return sizes.token_bytes + sparse_probs_bytes(kept, sizes.vocabulary_size, value_bytes)
        case Uplink.PROBABILITIES:
            return sizes.token_bytes + sizes.probability_bytes
        case Uplink.IDS:
            return sizes.token_bytes
        case Uplink.HIDDEN_STATES:
            return 0.0  # nothing is drafted


def payload_bytes(preset: Preset, sizes: Sizes) -> float:
    """Return the downlink payload of a rejection."""
    entry_bytes = sizes.token_bytes + sizes.probability_bytes
    match preset.rejection_payload:
        case RejectionPayload.TOKEN:
            return sizes.token_bytes
        case RejectionPayload.FULL_DISTRIBUTION:
            return sizes.vocabulary_size * PRECISION_BYTES["float32"]
        case RejectionPayload.TOP_K:
            return preset.payload_top * entry_bytes + TAIL_MASS_BYTES
        case RejectionPayload.LOSSLESS_SPARSE:
            return (preset.payload_top + preset.payload_tail_draws) * entry_bytes + TAIL_MASS_BYTES
