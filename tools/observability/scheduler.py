"""*Scheduler*: which side aggregates, and the measurements that say so."""

from __future__ import annotations

from tandem.telemetry.document_series import MeasuredSideSeries as Measured
from tandem.telemetry.document_series import SchedulerSeries as Scheduler
from tandem.telemetry.metrics import MethodSeries as Method
from tools.observability.grafana import Dashboard, Panel, Query, Row, Variable
from tools.observability.promql import PRESET_AND_MODEL, average, quantile, rate, total

AT_EDGE = {**PRESET_AND_MODEL, "side": "device"}

SCHEDULER = Dashboard(
    uid="tandem-scheduler",
    title="Tandem: Scheduler",
    description="The side that aggregates documents of both sides, and what decides it.",
    variables=(
        Variable("preset", "preset", Method.requests.name, "Preset"),
        Variable("model", "model_name", Method.requests.name, "Model"),
    ),
    rows=(
        Row(
            "Decisions",
            (
                Panel(
                    "Aggregating side",
                    "Running requests with documents, by the side that aggregates them.",
                    "short",
                    (Query(total(Method.aggregation_side, "side", PRESET_AND_MODEL), "{{side}}"),),
                    stacked=True,
                ),
                Panel(
                    "Decisions",
                    "Decisions per second, by reason.",
                    "ops",
                    (Query(rate(Scheduler.decisions, "reason", {}), "{{reason}}"),),
                    stacked=True,
                ),
                Panel(
                    "ΔZ",
                    "Seconds per token that a move to the other side would save, at each "
                    "scheduler's last decision. Above zero it moves.",
                    "s",
                    (Query(average(Scheduler.gain, "side, instance", {}), "{{instance}}"),),
                ),
            ),
        ),
        Row(
            "Inputs of ΔZ",
            (
                Panel(
                    "Decoding",
                    "Time for one draft token at each side.",
                    "s",
                    (Query(average(Measured.decode, "side", {}), "{{side}}"),),
                ),
                Panel(
                    "Acceptance",
                    "Share of each side's drafts that are accepted.",
                    "percentunit",
                    (Query(average(Measured.acceptance, "side", {}), "{{side}}"),),
                    highest=1.0,
                ),
                Panel(
                    "Transfer",
                    "Time of a draft from each side to the other.",
                    "s",
                    (Query(average(Measured.transfer, "side", {}), "from {{side}}"),),
                ),
                Panel(
                    "Round trip",
                    "The scheduler's value (the sum of both directions) and the value measured by "
                    "speculation.",
                    "s",
                    (
                        Query(f"sum({average(Measured.transfer, 'side', {})})", "scheduler"),
                        Query(quantile(0.5, Method.round_trip, "", AT_EDGE), "speculation p50"),
                    ),
                    width=12,
                ),
                Panel(
                    "Bandwidth",
                    "In each direction. Infinite, and not drawn, if frames of different sizes "
                    "show no limit.",
                    "Bps",
                    (Query(average(Measured.bandwidth, "side", {}), "from {{side}}"),),
                    width=12,
                ),
            ),
        ),
    ),
)
