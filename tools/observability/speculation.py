"""*Speculation*: how much of the draft model's work was of use, and what it cost."""

from __future__ import annotations

from tandem.telemetry.metrics import MethodSeries as Method
from tools.observability.grafana import Dashboard, Panel, Query, Row, Variable
from tools.observability.promql import (
    PRESET_AND_MODEL,
    mean,
    or_zero,
    quantile,
    rate,
    ratio,
)

AT_EDGE = {**PRESET_AND_MODEL, "side": "device"}
AT_CLOUD = {**PRESET_AND_MODEL, "side": "cloud"}
AUTO = {"model_name": "$model", "side": "device", "preset": "auto"}

_DRAFTED = rate(Method.draft_tokens, "preset", AT_EDGE)
_ACCEPTED = rate(Method.accepted_tokens, "preset", AT_EDGE)
_CLOUD_DRAFTED = rate(Method.cloud_draft_tokens, "preset", AT_CLOUD)
_CLOUD_ACCEPTED = rate(Method.cloud_accepted_tokens, "preset", AT_CLOUD)
_TOKENS = rate(Method.tokens, "preset", AT_EDGE)
_HITS = rate(Method.predraft_hits, "preset", AT_EDGE)
_MISSES = rate(Method.predraft_misses, "preset", AT_EDGE)

SPECULATION = Dashboard(
    uid="tandem-speculation",
    title="Tandem: Speculation",
    description="Drafts, their acceptance and what they cost, by preset.",
    variables=(
        Variable("preset", "preset", Method.tokens.name, "Preset"),
        Variable("model", "model_name", Method.tokens.name, "Model"),
    ),
    rows=(
        Row(
            "Drafts",
            (
                Panel(
                    "Acceptance",
                    "Share of the drafted tokens that the target accepted: of edges' drafts, and "
                    "of those that verifiers make themselves.",
                    "percentunit",
                    (
                        Query(ratio(_ACCEPTED, _DRAFTED), "{{preset}}"),
                        Query(ratio(_CLOUD_ACCEPTED, _CLOUD_DRAFTED), "{{preset}}, in the cloud"),
                    ),
                    highest=1.0,
                ),
                Panel(
                    "Tokens per target pass",
                    "Committed tokens per pass of the target model. The target alone has 1. A "
                    "cloud that decodes when idle also makes passes whose tokens are not used.",
                    "short",
                    (
                        Query(
                            ratio(_TOKENS, rate(Method.target_passes, "preset", AT_EDGE)),
                            "{{preset}}",
                        ),
                    ),
                ),
                Panel(
                    "Drafts wasted",
                    "Drafted tokens per second that were rejected, or came after a rejected one.",
                    "suffix: tok/s",
                    (Query(f"{_DRAFTED} - {_ACCEPTED}", "{{preset}}"),),
                ),
                Panel(
                    "Draft length",
                    "Mean number of tokens per draft.",
                    "short",
                    (Query(ratio(_DRAFTED, rate(Method.drafts, "preset", AT_EDGE)), "{{preset}}"),),
                ),
                Panel(
                    "Accepted by position",
                    "Drafted tokens that the target accepted, by their position in the draft; 0 "
                    "is the first. The decrease from position to position shows how long drafts "
                    "should be.",
                    "suffix: tok/s",
                    (
                        Query(
                            rate(Method.accepted_tokens_per_position, "position", AT_EDGE),
                            "{{position}}",
                        ),
                    ),
                ),
                Panel(
                    "Tokens of texts",
                    "Tokens drafted from callers' predictions and from what is remembered, by "
                    "outcome.",
                    "suffix: tok/s",
                    (
                        Query(
                            or_zero(rate(Method.prediction_tokens, "outcome", AT_EDGE)),
                            "predicted, {{outcome}}",
                        ),
                        Query(
                            or_zero(rate(Method.memory_tokens, "outcome", AT_EDGE)),
                            "remembered, {{outcome}}",
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    "Window",
                    "Draft tokens allowed in flight when requests ended. A preset with a "
                    "controller adapts this to the link. 0: the cloud decodes alone.",
                    "short",
                    (Query(mean(Method.draft_window, "preset", AT_EDGE), "mean {{preset}}"),),
                ),
                Panel(
                    "Pre-draft hits",
                    "Share of verdicts whose outcome had been pre-drafted. Only for presets that "
                    "pre-draft.",
                    "percentunit",
                    (Query(ratio(_HITS, f"({_HITS} + {_MISSES})"), "{{preset}}"),),
                    highest=1.0,
                ),
            ),
        ),
        Row(
            "Choice of the schedule",
            (
                Panel(
                    "Schedules chosen anew",
                    "How often preset auto changed the schedule of running requests, by the "
                    "estimate that had changed most.",
                    "ops",
                    (Query(or_zero(rate(Method.auto_decisions, "reason", AT_EDGE)), "{{reason}}"),),
                    stacked=True,
                ),
                Panel(
                    "Expected TPOT",
                    "TPOT that auto expected of its schedules and of the large model alone, and "
                    "the measured one. If that is above both, the estimates were wrong.",
                    "s",
                    (
                        Query(mean(Method.auto_expected_tpot, "", AUTO), "chosen"),
                        Query(mean(Method.auto_cloud_alone_tpot, "", AUTO), "large model alone"),
                        Query(mean(Method.time_per_output_token, "", AUTO), "measured"),
                        Query(mean(Method.auto_seen_tpot, "schedule"), "seen: {{schedule}}"),
                    ),
                ),
                Panel(
                    "Agreement",
                    "Share of the compared draft tokens that were equal to the final token: how "
                    "similar the two models are, independently of the schedule.",
                    "percentunit",
                    (
                        Query(
                            ratio(
                                rate(Method.agreed_tokens, "preset", AT_EDGE),
                                rate(Method.judged_tokens, "preset", AT_EDGE),
                            ),
                            "{{preset}}",
                        ),
                    ),
                    highest=1.0,
                ),
            ),
        ),
        Row(
            "Cost",
            (
                Panel(
                    "Uplink per token",
                    "Message bytes from device to cloud per committed token, with gRPC's framing "
                    "and without TCP's.",
                    "bytes",
                    (
                        Query(
                            ratio(rate(Method.uplink_bytes, "preset", AT_EDGE), _TOKENS),
                            "{{preset}}",
                        ),
                    ),
                ),
                Panel(
                    "Downlink per token",
                    "Message bytes from cloud to device per committed token.",
                    "bytes",
                    (
                        Query(
                            ratio(rate(Method.downlink_bytes, "preset", AT_EDGE), _TOKENS),
                            "{{preset}}",
                        ),
                    ),
                ),
                Panel(
                    "Early verdicts",
                    "Early verdicts received per second. Only for presets that use them.",
                    "ops",
                    (Query(rate(Method.early_verdicts, "preset", AT_EDGE), "{{preset}}"),),
                ),
                Panel(
                    "Draft step",
                    "Forward pass of the draft model per token, averaged per request.",
                    "s",
                    (
                        Query(
                            quantile(0.5, Method.draft_step, "preset", AT_EDGE), "p50 {{preset}}"
                        ),
                        Query(
                            quantile(0.95, Method.draft_step, "preset", AT_EDGE), "p95 {{preset}}"
                        ),
                    ),
                ),
                Panel(
                    "Verify step",
                    "Forward pass of the target model, including other requests in the same pass.",
                    "s",
                    (
                        Query(
                            quantile(0.5, Method.verify_step, "preset", AT_CLOUD), "p50 {{preset}}"
                        ),
                        Query(
                            quantile(0.95, Method.verify_step, "preset", AT_CLOUD), "p95 {{preset}}"
                        ),
                    ),
                ),
                Panel(
                    "Round trip",
                    "Time from sending a draft to its verdict, without the time of both models.",
                    "s",
                    (
                        Query(
                            quantile(0.5, Method.round_trip, "preset", AT_EDGE), "p50 {{preset}}"
                        ),
                        Query(
                            quantile(0.95, Method.round_trip, "preset", AT_EDGE), "p95 {{preset}}"
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "Link",
            (
                Panel(
                    "Links lost and sessions resumed",
                    "Broken streams to the cloud, and sessions that resumed. Neither changes the "
                    "text.",
                    "ops",
                    (
                        Query(rate(Method.link_lost, "", AT_EDGE), "lost"),
                        Query(rate(Method.resumes, "", AT_EDGE), "resumed"),
                    ),
                    width=12,
                ),
                Panel(
                    "Rounds",
                    "Verified drafts and target passes per second, as counted by the edges.",
                    "ops",
                    (
                        Query(rate(Method.drafts, "preset", AT_EDGE), "drafts {{preset}}"),
                        Query(rate(Method.target_passes, "preset", AT_EDGE), "passes {{preset}}"),
                    ),
                    width=12,
                ),
            ),
        ),
    ),
)
