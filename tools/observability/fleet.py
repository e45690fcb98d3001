"""*Fleet*: every edge beside the others, their ways to the cloud, and what speculation saves."""

from __future__ import annotations

from tandem.telemetry.cloud_series import CloudSeries as Cloud
from tandem.telemetry.document_series import MeasuredSideSeries as Measured
from tandem.telemetry.engine_series import EngineSeries as Engine
from tandem.telemetry.metrics import AccessSeries as Access
from tandem.telemetry.metrics import MethodSeries as Method
from tools.observability.grafana import Dashboard, Number, Panel, Query, Row, Threshold
from tools.observability.overview import NO_FAILURES
from tools.observability.promql import (
    average,
    mean,
    or_zero,
    quantile,
    rate,
    ratio,
    scoped,
    time_share,
    total,
)

AT_EDGE = {"side": "device"}
IN_CLOUD = {"side": "cloud"}
ALERT_BEFORE_S = 7 * 86400
PLACE = "namespace, instance"
EDGE = "{{namespace}} {{instance}}"
CLOUD = "{{instance}} → {{cloud}}"
ALONE = "ar"
"""The preset of the large model alone."""


def _by_edge(title: str, description: str, unit: str, expression: str) -> Panel:
    return Panel(title, description, unit, (Query(expression, EDGE),))


_FAILED = {**AT_EDGE, "status": f"!{NO_FAILURES}"}
_NOW = Row(
    "Now",
    (
        Panel(
            "Alerts", "Alerts of Tandem's rules that are firing or pending.", "", (), "alertlist"
        ),
        Panel(
            "Alerts over time",
            "Number of pending and firing alerts.",
            "short",
            (
                Query(
                    or_zero(
                        "sum by (alertname, alertstate)"
                        f" ({scoped('ALERTS', {'alertname': 'Tandem.*'})})"
                    ),
                    "{{alertname}} {{alertstate}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Services up",
            "Processes that Prometheus can and cannot reach.",
            "short",
            (
                Query(f"sum({scoped('up', {'suite': 'tandem'})})", "up"),
                Query(or_zero(f"count({scoped('up', {'suite': 'tandem'})} == 0)"), "down"),
            ),
            "stat",
            width=4,
        ),
        Panel(
            "Certificate expires in",
            "The certificate that expires first. An alert fires a week before.",
            "dtdurations",
            (Query(f"min({total(Access.certificate_valid, PLACE, {})})", "first"),),
            "stat",
            width=4,
            lowest="red",
            thresholds=(Threshold("green", ALERT_BEFORE_S),),
        ),
    ),
)
_EDGES = Row(
    "Edges",
    (
        _by_edge(
            "Requests by edge",
            "Requests that ended, per second.",
            "reqps",
            rate(Method.requests, PLACE, AT_EDGE),
        ),
        _by_edge(
            "Tokens by edge",
            "Committed tokens per second.",
            "suffix: tok/s",
            rate(Method.tokens, PLACE, AT_EDGE),
        ),
        _by_edge(
            "Failed by edge",
            "Share of an edge's requests that failed, without refusals and callers' own errors.",
            "percentunit",
            ratio(
                f"({rate(Method.requests, PLACE, _FAILED)}"
                f" or 0 * {rate(Method.requests, PLACE, AT_EDGE)})",
                rate(Method.requests, PLACE, AT_EDGE),
            ),
        ),
        _by_edge(
            "TTFT p95 by edge",
            "95 % of the requests had their first token within this time.",
            "s",
            quantile(0.95, Method.time_to_first_token, PLACE, AT_EDGE),
        ),
        _by_edge(
            "TPOT p95 by edge",
            "95 % of the requests took at most this long per further token.",
            "s",
            quantile(0.95, Method.time_per_output_token, PLACE, AT_EDGE),
        ),
        _by_edge(
            "Acceptance by edge",
            "Share of an edge's drafted tokens that the target accepted. An edge far "
            "below the others uses another draft model, or generates another kind of "
            "text.",
            "percentunit",
            ratio(
                rate(Method.accepted_tokens, PLACE, AT_EDGE),
                rate(Method.draft_tokens, PLACE, AT_EDGE),
            ),
        ),
    ),
)
_LINKS = Row(
    "Links",
    (
        _by_edge(
            "Round trip p95 by edge",
            "Time from sending a draft to its verdict, without the time of both models.",
            "s",
            quantile(0.95, Method.round_trip, PLACE, AT_EDGE),
        ),
        _by_edge(
            "Links lost by edge",
            "Broken streams to the cloud per draft sent.",
            "percentunit",
            ratio(
                rate(Method.link_lost, PLACE, AT_EDGE),
                rate(Method.drafts, PLACE, AT_EDGE),
            ),
        ),
        Panel(
            "Traffic by edge",
            "Message bytes per second in each direction.",
            "Bps",
            (
                Query(rate(Method.uplink_bytes, PLACE, AT_EDGE), f"up {EDGE}"),
                Query(rate(Method.downlink_bytes, PLACE, AT_EDGE), f"down {EDGE}"),
            ),
        ),
        Panel(
            "Bandwidth by edge",
            "Measured from the messages of answers from documents, in each direction. "
            "Infinite, and not drawn, if no limit was measured.",
            "Bps",
            (
                Query(
                    average(Measured.bandwidth, f"{PLACE}, side", {}), f"from {{{{side}}}} {EDGE}"
                ),
            ),
        ),
        Panel(
            "Clouds reached",
            "For drafters with several clouds: 1 if the cloud can be reached and is "
            "serving, otherwise 0.",
            "short",
            (Query(total(Cloud.cloud_usable, "instance, cloud", {}), CLOUD),),
        ),
        Panel(
            "Round trip to each cloud",
            "Last measured value, without model time.",
            "s",
            (Query(total(Cloud.cloud_round_trip, "instance, cloud", {}), CLOUD),),
        ),
        Panel(
            "Sessions at each cloud",
            "Sessions at each cloud, for drafters with several clouds.",
            "short",
            (Query(total(Cloud.cloud_sessions, "cloud", {}), "{{cloud}}"),),
            width=12,
            stacked=True,
        ),
        Panel(
            "Moves between clouds",
            "Sessions that moved to another cloud, by reason. Their text is the same.",
            "ops",
            (Query(rate(Cloud.cloud_moves, "reason", {}), "{{reason}}"),),
            width=12,
        ),
    ),
)
_AVOIDED = (
    f"({rate(Method.tokens, 'preset', AT_EDGE)} - {rate(Method.target_passes, 'preset', AT_EDGE)})"
)
_ENGINE_TIME = time_share(Engine.engine_pass, "", IN_CLOUD)
_SECONDS_PER_JOB = f"scalar({ratio(_ENGINE_TIME, time_share(Engine.batch_size, '', IN_CLOUD))})"
_TPOT_ALONE = mean(Method.time_per_output_token, "", {**AT_EDGE, "preset": ALONE})
_PRICE = Number("accelerator_hour", "Price of an accelerator's hour", "2.5")
_SAVED = Row(
    "Saved",
    (
        Panel(
            "Target passes avoided",
            "Tokens minus target passes, per second: the large model alone needs one pass per "
            "token of a session. Below zero, drafts cost more passes than they save.",
            "ops",
            (Query(_AVOIDED, "{{preset}}"),),
        ),
        Panel(
            "Engine time saved",
            "The passes avoided times the current engine time of one session's part of a "
            "pass. 1 means that one verifier's engine is saved.",
            "short",
            (Query(f"{_AVOIDED} * {_SECONDS_PER_JOB}", "{{preset}}"),),
        ),
        Panel(
            "Money saved per hour",
            "The engine time saved at the price set at the top of the page. The cost of "
            "the edges is not included.",
            "currencyUSD",
            (Query(f"{_AVOIDED} * {_SECONDS_PER_JOB} * ${_PRICE.name}", "{{preset}}"),),
        ),
        Panel(
            "Speed over the large model alone",
            "Mean TPOT of preset ar, divided by each preset's. Only drawn while there are "
            "requests with ar.",
            "suffix: ×",
            (
                Query(
                    f"scalar({_TPOT_ALONE})"
                    f" / ({mean(Method.time_per_output_token, 'preset', AT_EDGE)})",
                    "{{preset}}",
                ),
            ),
            width=12,
        ),
        Panel(
            "Speed over the large model alone, as expected",
            "For sessions with preset auto: the TPOT expected of the large model alone divided "
            "by that expected of the chosen schedule.",
            "suffix: ×",
            (
                Query(
                    ratio(
                        time_share(Method.auto_cloud_alone_tpot, PLACE, AT_EDGE),
                        f"({time_share(Method.auto_expected_tpot, PLACE, AT_EDGE)})",
                    ),
                    EDGE,
                ),
            ),
            width=12,
        ),
    ),
)

FLEET = Dashboard(
    uid="tandem-fleet",
    title="Tandem: Fleet",
    description="Edges beside each other, their links and clouds, and what drafts save.",
    variables=(),
    rows=(_NOW, _EDGES, _LINKS, _SAVED),
    numbers=(_PRICE,),
)
