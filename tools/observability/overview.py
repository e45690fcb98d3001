"""*Overview*: what users of the suite feel."""

from __future__ import annotations

from prometheus_client import Histogram

from tandem.telemetry.metric import Metric
from tandem.telemetry.metrics import HttpSeries as Http
from tandem.telemetry.metrics import MethodSeries as Method
from tools.observability.grafana import Dashboard, Panel, Query, Row, Threshold, Variable
from tools.observability.promql import (
    PRESET_AND_MODEL,
    mean,
    or_zero,
    quantile,
    rate,
    ratio,
    total,
)

# What the owner of a request counts: whoever helps with it from the cloud counts its part too, and
# a request must be shown once.
OWN = {**PRESET_AND_MODEL, "side": "device"}
NO_FAILURES = "OK|CANCELLED|INVALID_ARGUMENT|RESOURCE_EXHAUSTED"
"""A caller's own faults, cancellation and refusals for lack of room; the alerts have the same."""
FAILED = {**OWN, "status": f"!{NO_FAILURES}"}
IN_CLOUD = {**PRESET_AND_MODEL, "side": "cloud"}
_MEAN_TTFT = mean(Method.time_to_first_token, "", OWN)


SLOW_TTFT = (Threshold("yellow", 1.0), Threshold("red", 5.0))
SLOW_TPOT = (Threshold("yellow", 0.1), Threshold("red", 0.5))
"""In seconds; a person reads some ten tokens a second."""


def _latency_now(
    title: str, description: str, metric: Metric[Histogram], slow: tuple[Threshold, ...]
) -> Panel:
    queries = tuple(
        Query(quantile(share, metric, "", OWN), name)
        for share, name in ((0.5, "p50"), (0.95, "p95"))
    )
    return Panel(
        title,
        description,
        "s",
        queries,
        "stat",
        width=6,
        height=4,
        lowest="green",
        thresholds=slow,
    )


def _quantiles(
    title: str,
    description: str,
    metric: Metric[Histogram],
    slow: tuple[Threshold, ...] = (),
) -> Panel:
    queries = tuple(
        Query(quantile(share, metric, "preset", OWN), f"{name} {{{{preset}}}}")
        for share, name in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
    )
    return Panel(title, description, "s", queries, width=12, lowest="green", thresholds=slow)


OVERVIEW = Dashboard(
    uid="tandem-overview",
    title="Tandem: Overview",
    description="Latency, throughput and errors of requests, as their aggregator saw them.",
    variables=(
        Variable("preset", "preset", Method.requests.name, "Preset"),
        Variable("model", "model_name", Method.requests.name, "Model"),
    ),
    rows=(
        Row(
            "Now",
            (
                _latency_now(
                    "TTFT",
                    "Time to first token: half of the requests, and 95 % of them, had it within "
                    "this. Red as the alert TandemSlowFirstToken.",
                    Method.time_to_first_token,
                    SLOW_TTFT,
                ),
                _latency_now(
                    "TPOT",
                    "Time per output token after the first: of half of the requests, and of 95 % "
                    "of them, at most this. Red as the alert TandemSlowTokens.",
                    Method.time_per_output_token,
                    SLOW_TPOT,
                ),
                Panel(
                    "Tokens per second",
                    "Committed tokens of all requests.",
                    "suffix: tok/s",
                    (Query(rate(Method.tokens, "", OWN), "tokens"),),
                    "stat",
                    width=4,
                    height=4,
                ),
                Panel(
                    "Tokens per pass",
                    "Committed tokens per forward pass of the target model. The target alone makes "
                    "1; below that, drafts cost more passes than they save.",
                    "none",
                    (
                        Query(
                            ratio(
                                rate(Method.tokens, "", OWN), rate(Method.target_passes, "", OWN)
                            ),
                            "tokens",
                        ),
                    ),
                    "stat",
                    width=4,
                    height=4,
                    lowest="red",
                    thresholds=(Threshold("text", 1.0), Threshold("green", 1.2)),
                ),
                Panel(
                    "Failed requests",
                    "Share of the requests that failed, without cancelled and refused ones and "
                    "callers' own errors. Red as the alert TandemRequestsFail, yellow beyond the "
                    "error budget.",
                    "percentunit",
                    (
                        Query(
                            ratio(
                                or_zero(rate(Method.requests, "", FAILED)),
                                rate(Method.requests, "", OWN),
                            ),
                            "failed",
                        ),
                    ),
                    "stat",
                    width=4,
                    height=4,
                    lowest="green",
                    thresholds=(Threshold("yellow", 0.01), Threshold("red", 0.05)),
                ),
            ),
        ),
        Row(
            "Latency",
            (
                _quantiles(
                    "Time to first token",
                    "TTFT: from the arrival of a request to its first committed token. It "
                    "includes waiting for a slot, prefill on both sides and one round trip.",
                    Method.time_to_first_token,
                    SLOW_TTFT,
                ),
                _quantiles(
                    "Time per output token",
                    "TPOT: (duration - TTFT) / (tokens - 1), once per finished request.",
                    Method.time_per_output_token,
                    SLOW_TPOT,
                ),
                _quantiles(
                    "Inter-token latency",
                    "Time between two commits of the same request. A commit may have several "
                    "tokens, so this is above TPOT if drafts are accepted.",
                    Method.inter_token_latency,
                ),
                _quantiles(
                    "Whole request",
                    "From the arrival of a request to its end.",
                    Method.e2e_request_latency,
                ),
                Panel(
                    "Waiting, share of TTFT",
                    "The mean wait for a slot of the aggregator (requests that wait, divided by "
                    "those that end per second) and of a draft for its pass, each as a share of "
                    "the mean TTFT. Above one half, more replicas help more than a faster model.",
                    "percentunit",
                    (
                        Query(
                            f"{total(Method.requests_waiting, '', OWN)}"
                            f" / {rate(Method.requests, '', OWN)} / ({_MEAN_TTFT})",
                            "for a slot",
                        ),
                        Query(
                            f"{mean(Method.queue, '', IN_CLOUD)} / ({_MEAN_TTFT})", "for the engine"
                        ),
                    ),
                    width=24,
                ),
            ),
        ),
        Row(
            "Traffic",
            (
                Panel(
                    "Requests by status",
                    "How requests ended, as gRPC statuses. RESOURCE_EXHAUSTED: refused because "
                    "capacity was exhausted. UNAVAILABLE: a lost cloud or a stopping service.",
                    "reqps",
                    (Query(rate(Method.requests, "status", OWN), "{{status}}"),),
                    stacked=True,
                ),
                Panel(
                    "Tokens by preset",
                    "Committed tokens per second.",
                    "suffix: tok/s",
                    (Query(rate(Method.tokens, "preset", OWN), "{{preset}}"),),
                    stacked=True,
                ),
                Panel(
                    "Running and waiting",
                    "Requests being served, and requests waiting for a slot.",
                    "short",
                    (
                        Query(total(Method.requests_running, "", OWN), "running"),
                        Query(total(Method.requests_waiting, "", OWN), "waiting"),
                    ),
                ),
                Panel(
                    "HTTP answers",
                    "Answers of the OpenAI-compatible API by route and code. 429: refused because "
                    "capacity or a quota was exhausted. 5xx: a failure of the services.",
                    "reqps",
                    (Query(rate(Http.requests, "route, code", {}), "{{code}} {{route}}"),),
                    width=24,
                ),
            ),
        ),
    ),
)
