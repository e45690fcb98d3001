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
                    "Share of the drafted tokens that the target accepted.",
                    "percentunit",
                    (Query(ratio(_ACCEPTED, _DRAFTED), "{{preset}}"),),
                    highest=1.0,
                ),
                Panel(
                    "Tokens per target pass",
                    "Committed tokens for each pass of the target model; 1 is what the target "
                    "does alone. A cloud that decodes when idle also makes passes that come to "
                    "nothing.",
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
                    "Drafted tokens per second that came to nothing: refused, or behind one that "
                    "was.",
                    "suffix: tok/s",
                    (Query(f"{_DRAFTED} - {_ACCEPTED}", "{{preset}}"),),
                ),
                Panel(
                    "Draft length",
                    "Tokens of a draft, on average.",
                    "short",
                    (Query(ratio(_DRAFTED, rate(Method.drafts, "preset", AT_EDGE)), "{{preset}}"),),
                ),
                Panel(
                    "Accepted by position",
                    "Drafted tokens that the target accepted, by their position in the draft; 0 is "
                    "the first. How much less each further position has tells how long drafts "
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
                    "Tokens of predictions",
                    "Tokens drafted from what callers predicted, by what became of them.",
                    "suffix: tok/s",
                    (
                        Query(
                            or_zero(rate(Method.prediction_tokens, "outcome", AT_EDGE)),
                            "{{outcome}}",
                        ),
                    ),
                    stacked=True,
                ),
                Panel(
                    "Window",
                    "Draft tokens that may be in flight, as schedules stood when requests ended. "
                    "A preset with a controller moves it with the link; 0 is closed: the cloud "
                    "decodes alone.",
                    "short",
                    (Query(mean(Method.draft_window, "preset", AT_EDGE), "mean {{preset}}"),),
                ),
                Panel(
                    "Pre-draft hits",
                    "Share of the outcomes of verdicts that had been drafted for while waiting; "
                    "only presets that pre-draft have any.",
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
                    "How often preset auto chose another schedule while requests ran, by what had "
                    "changed most.",
                    "ops",
                    (Query(or_zero(rate(Method.auto_decisions, "reason", AT_EDGE)), "{{reason}}"),),
                    stacked=True,
                ),
                Panel(
                    "Expected TPOT",
                    "What auto expected of the schedules that it chose, of the cloud alone, and "
                    "what came. Where what came is above both, its measurements are at fault.",
                    "s",
                    (
                        Query(mean(Method.auto_expected_tpot, "", AUTO), "chosen"),
                        Query(mean(Method.auto_cloud_alone_tpot, "", AUTO), "cloud alone"),
                        Query(mean(Method.time_per_output_token, "", AUTO), "measured"),
                        Query(mean(Method.auto_seen_tpot, "schedule"), "seen: {{schedule}}"),
                    ),
                ),
                Panel(
                    "Agreement",
                    "Share of the draft tokens that were compared with the token that came and "
                    "equal it: what two models have in common, whatever the schedule.",
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
                    "Bytes of messages from device to cloud for each committed token, gRPC's "
                    "framing included, TCP's not.",
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
                    "Bytes of messages from cloud to device for each committed token.",
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
                    "Verdicts of early exits heard per second; only presets that listen have any.",
                    "ops",
                    (Query(rate(Method.early_verdicts, "preset", AT_EDGE), "{{preset}}"),),
                ),
                Panel(
                    "Draft step",
                    "A forward pass of the draft model that made a token, averaged per request.",
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
                    "A forward pass of the target model, shared with whatever ran beside it.",
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
                    "From sending a draft to its verdict, less what both models took.",
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
                    "Streams to the cloud that broke, and sessions that went on afterwards. The "
                    "text does not depend on either.",
                    "ops",
                    (
                        Query(rate(Method.link_lost, "", AT_EDGE), "lost"),
                        Query(rate(Method.resumes, "", AT_EDGE), "resumed"),
                    ),
                    width=12,
                ),
                Panel(
                    "Rounds",
                    "Drafts verified and passes of the target per second, as edges count them.",
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
