"""What a request took at the drafter: counted in metrics, and told to its caller. Invariant: each
request counts once, however it ended."""

from tandem.control.controller import Controller
from tandem.generation.figures import summary_of
from tandem.net.frame_stream import Traffic
from tandem.specdec.edge import EdgeMachine
from tandem.telemetry.logging import get_logger
from tandem.telemetry.metrics import MethodSeries
from tandem_api.common.v1 import generation_pb2 as pb

log = get_logger(__name__)

UINT32_MAX = 2**32 - 1


def count_request(series: MethodSeries, machine: EdgeMachine, traffic: Traffic) -> None:
    """Count a request that ended."""
    stats = machine.stats
    series.drafts.inc(stats.rounds)
    series.draft_tokens.inc(stats.drafted)
    series.accepted_tokens.inc(stats.accepted)
    series.accepted_at(stats.acceptance_histogram)
    if stats.proposed_prediction_tokens:
        series.predicted(stats.accepted_prediction_tokens, stats.rejected_prediction_tokens)
    if stats.proposed_memory_tokens:
        series.recalled(stats.accepted_memory_tokens, stats.rejected_memory_tokens)
    series.target_passes.inc(stats.target_passes)
    reached = bool(machine.target_name)
    if reached:  # dozens of series each, which say nothing of a target that nobody reached
        series.draft_window.observe(machine.schedule.window)
    series.uplink_bytes.inc(traffic.uplink_bytes)
    series.downlink_bytes.inc(traffic.downlink_bytes)
    series.link_lost.inc(stats.links_lost)
    series.resumes.inc(stats.resumes)
    controller, measuring = machine.controller, machine.measuring
    series.judged(controller.acceptance.judged, controller.acceptance.agreed, "device")
    series.early_verdicts.inc(stats.early_verdicts)
    series.predraft_hits.inc(stats.predraft_hits)
    series.predraft_misses.inc(stats.predraft_misses)
    if reached and stats.model_drafts > 0:
        series.draft_step.observe(stats.draft_s / stats.model_drafts)
    for trip_s in measuring.trips_s:
        series.round_trip.observe(trip_s)
    for reason, count in controller.decisions.items():
        series.chose(reason, count)
    if (decision := controller.decision) is not None:
        series.auto_expected_tpot.observe(decision.tpot_s)
        series.auto_cloud_alone_tpot.observe(decision.alone_tpot_s)
    for kind, (tokens, seconds) in measuring.spent.items():
        if tokens:  # a cloud may send an answer without any
            series.took(kind, seconds / tokens)
    log.info(
        "request finished",
        tokens=stats.tokens,
        rounds=stats.rounds,
        resumes=stats.resumes,
        uplink_bytes=traffic.uplink_bytes,
        downlink_bytes=traffic.downlink_bytes,
    )


def request_summary(
    machine: EdgeMachine,
    traffic: Traffic,
    *,
    reasoning_tokens: int = 0,
    draft_context: int = 0,
    stop_sequence: str = "",
) -> pb.Summary:
    """Summarize a finished request. `reasoning_tokens`: how many of its tokens are thinking.
    `draft_context`: how many tokens the draft model reads at once. `stop_sequence`: the stop string
    that ended its text."""
    stats = machine.stats
    tokens = len(machine.request.prompt_ids) + stats.tokens
    read_the_end = stats.drafted > 0 and tokens > draft_context
    return summary_of(
        stats,
        finish_reason=str(machine.finish_reason),
        preset=machine.request.preset.name,
        prompt_tokens=len(machine.request.prompt_ids),
        target_passes=min(stats.target_passes, UINT32_MAX),  # the cloud's word, any number
        uplink_bytes=traffic.uplink_bytes,
        downlink_bytes=traffic.downlink_bytes,
        lossy=machine.request.preset.lossy,
        choice=_choice(machine.controller),
        reasoning_tokens=reasoning_tokens,
        stop_sequence=stop_sequence,
        draft_context=draft_context if read_the_end else 0,
    )


def _choice(controller: Controller) -> pb.ScheduleChoice | None:
    """Return the last schedule chosen; None if none was."""
    if (decision := controller.decision) is None:
        return None
    conditions = decision.conditions
    pair = decision.conditions.pair
    return pb.ScheduleChoice(
        schedule=decision.words,
        reason=decision.reason,
        decisions=controller.decisions.total(),
        expected_tpot_s=decision.tpot_s,
        cloud_alone_tpot_s=decision.alone_tpot_s,
        cloud_alone_measured=decision.alone_measured,
        acceptance_rate=conditions.acceptance_rate,
        draft_step_s=pair.draft_s,
        target_pass_s=pair.verify_first_s,
        per_draft_token_s=pair.verify_further_s,
        batch_sessions=conditions.sharing,
        round_trip_s=conditions.rtt_s,
    )
