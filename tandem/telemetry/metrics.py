"""Every metric name of the suite, on an explicit registry.

Invariants: a metric is declared here, or where a leaf of the product declares its series
(`Metrics.series`); every duration was measured on one machine's monotonic clock, never as a
difference of two machines'.

    metrics = Metrics(new_registry(), side="device")
    series = metrics.method(preset="dsd", model_name="demo-target")
    series.time_to_first_token.observe(0.12)
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeVar, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

from tandem.core.version import __version__
from tandem.telemetry.cloud_series import CloudSeries
from tandem.telemetry.document_series import (
    MeasuredSideSeries,
    RetrieverSeries,
    SchedulerSeries,
)
from tandem.telemetry.engine_series import EngineSeries
from tandem.telemetry.metric import (
    COUNT_BUCKETS,
    REQUEST_BUCKETS_S,
    TOKEN_BUCKETS_S,
    Exported,
    Metric,
    Series,
    metrics_of,
)

Side = Literal["device", "cloud"]
"""Which end of the pair a process runs at."""

ANYONE = "anyone"
"""The holder where a port asks for no key."""

UNKNOWN_MODEL = "unknown"
"""The target's name where the cloud has not been heard yet."""


OtherSeries = TypeVar("OtherSeries", bound=Series)


class MethodSeries(Series):
    """Requests served with one preset and one target model."""

    LABELS = ("preset", "model_name", "side")

    time_to_first_token = Metric(
        Histogram,
        "time_to_first_token_seconds",
        "Time from the arrival of a request to its first committed token.",
        buckets=REQUEST_BUCKETS_S,
    )
    time_per_output_token = Metric(
        Histogram,
        "time_per_output_token_seconds",
        "Time per output token, (duration - TTFT) / (tokens - 1), once per finished request.",
        buckets=TOKEN_BUCKETS_S,
    )
    inter_token_latency = Metric(
        Histogram,
        "inter_token_latency_seconds",
        "Time between two commits of the same request.",
        buckets=TOKEN_BUCKETS_S,
    )
    e2e_request_latency = Metric(
        Histogram,
        "e2e_request_latency_seconds",
        "Time from the arrival of a request to its end.",
        buckets=REQUEST_BUCKETS_S,
    )
    requests_running = Metric(Gauge, "num_requests_running", "Requests being served.")
    requests_waiting = Metric(Gauge, "num_requests_waiting", "Requests admitted, not yet started.")
    requests = Metric(Counter, "requests_total", "Requests ended, by status.", more=("status",))
    tokens = Metric(Counter, "tokens_total", "Committed tokens.")
    drafts = Metric(Counter, "spec_decode_num_drafts_total", "Drafts sent for verification.")
    draft_tokens = Metric(
        Counter, "spec_decode_num_draft_tokens_total", "Tokens in the drafts sent."
    )
    accepted_tokens = Metric(
        Counter, "spec_decode_num_accepted_tokens_total", "Draft tokens accepted."
    )
    accepted_tokens_per_position = Metric(
        Counter,
        "spec_decode_num_accepted_tokens_per_pos_total",
        "Draft tokens accepted, by their position in the draft, from 0.",
        more=("position",),
    )
    prediction_tokens = Metric(
        Counter,
        "prediction_tokens_total",
        "Tokens drafted from the predictions of callers, by outcome: accepted or rejected.",
        more=("outcome",),
    )
    memory_tokens = Metric(
        Counter,
        "memory_tokens_total",
        "Tokens drafted from what is remembered (earlier texts of the tenant, the prompt, the"
        " answer so far), by outcome: accepted or rejected.",
        more=("outcome",),
    )
    judged_tokens = Metric(
        Counter,
        "spec_decode_num_judged_tokens_total",
        "Draft tokens compared with the final token at their position. Tokens"
        " after a rejected one are not compared. For answers from documents,"
        " `side` is the side that drafted.",
    )
    agreed_tokens = Metric(
        Counter,
        "spec_decode_num_agreed_tokens_total",
        "Compared draft tokens that were equal to the final token.",
    )
    cloud_draft_tokens = Metric(
        Counter,
        "spec_decode_num_cloud_draft_tokens_total",
        "Tokens that the verifier drafted itself, with a draft model or by lookup, and judged.",
    )
    cloud_accepted_tokens = Metric(
        Counter,
        "spec_decode_num_cloud_accepted_tokens_total",
        "Draft tokens of the verifier itself that were accepted.",
    )
    target_passes = Metric(
        Counter,
        "spec_decode_num_target_passes_total",
        "Forward passes of the target model for these requests, as counted by the cloud.",
    )
    draft_window = Metric(
        Histogram,
        "draft_window_tokens",
        "Draft tokens allowed in flight when a request ended.",
        buckets=COUNT_BUCKETS,
    )
    auto_decisions = Metric(
        Counter,
        "auto_decisions_total",
        "Schedules chosen for running requests, by the estimate that had changed most; `trial`: one"
        " chosen in order to measure it.",
        more=("reason",),
    )
    auto_expected_tpot = Metric(
        Histogram,
        "auto_expected_tpot_seconds",
        "Estimated time per output token with the last schedule chosen for a request.",
        buckets=TOKEN_BUCKETS_S,
    )
    auto_cloud_alone_tpot = Metric(
        Histogram,
        "auto_cloud_alone_tpot_seconds",
        "Time per output token without drafting at the same moment, measured or estimated.",
        buckets=TOKEN_BUCKETS_S,
    )
    auto_seen_tpot = Metric(
        Histogram,
        "auto_seen_tpot_seconds",
        "Measured time per output token with each kind of schedule, once per request and kind.",
        buckets=TOKEN_BUCKETS_S,
        more=("schedule",),
    )
    early_verdicts = Metric(Counter, "early_verdicts_total", "Early verdicts received.")
    predraft_hits = Metric(
        Counter, "predraft_hits_total", "Verdicts whose outcome had been pre-drafted whole."
    )
    predraft_misses = Metric(
        Counter, "predraft_misses_total", "Verdicts whose outcome had not been pre-drafted whole."
    )
    draft_step = Metric(
        Histogram,
        "draft_step_seconds",
        "Duration of the draft model's forward pass, once per draft token. At the side cloud: of"
        " a draft model or lookup of the verifier, averaged over the drafts of a pass.",
        buckets=TOKEN_BUCKETS_S,
    )
    verify_step = Metric(
        Histogram,
        "verify_step_seconds",
        "Duration of the target model's forward pass. The first pass of a session"
        " (its prefill) is left out.",
        buckets=TOKEN_BUCKETS_S,
    )
    queue = Metric(
        Histogram,
        "queue_seconds",
        "Time that a draft, or a decoding step with documents, waited for its forward pass.",
        buckets=TOKEN_BUCKETS_S,
    )
    round_trip = Metric(
        Histogram,
        "round_trip_seconds",
        "Time from sending a draft to receiving its verdict, minus the time that"
        " the cloud reports spending on it.",
        buckets=TOKEN_BUCKETS_S,
    )
    uplink_bytes = Metric(
        Counter, "uplink_bytes_total", "Message bytes sent from the device to the cloud."
    )
    downlink_bytes = Metric(
        Counter, "downlink_bytes_total", "Message bytes sent from the cloud to the device."
    )
    link_lost = Metric(Counter, "link_lost_total", "Broken streams to the cloud.")
    resumes = Metric(Counter, "resumes_total", "Sessions resumed after a lost link.")
    aggregation_side = Metric(
        Gauge, "aggregation_side", "Running requests, by the side that aggregates them."
    )

    def chose(self, reason: str, count: int) -> None:
        """Count schedules chosen for `reason`: a fixed word, never free text."""
        for _ in range(count):
            self.count(MethodSeries.auto_decisions, "reason", reason)

    def took(self, schedule: str, tpot_s: float) -> None:
        """Observe what a token took with a kind of schedule: a fixed word, never free text."""
        MethodSeries.auto_seen_tpot.child(self, schedule=schedule).observe(tpot_s)

    def request_ended(self, status: str) -> None:
        """Count one request that ended with `status`, a gRPC status name such as "OK"."""
        self.count(MethodSeries.requests, "status", status)

    def accepted_at(self, histogram: Sequence[int]) -> None:
        """Count accepted drafts by position; `histogram`: verdicts that accepted 0, 1, 2, …"""
        reached = sum(histogram)
        for position, ended in enumerate(histogram[:-1]):
            reached -= ended
            admitted = self.exported.admit("position", str(position))
            child = MethodSeries.accepted_tokens_per_position.child(self, position=admitted)
            child.inc(reached)

    def predicted(self, accepted: int, rejected: int) -> None:
        """Count tokens of a caller's prediction."""
        for outcome, count in (("accepted", accepted), ("rejected", rejected)):
            MethodSeries.prediction_tokens.child(self, outcome=outcome).inc(count)

    def recalled(self, accepted: int, rejected: int) -> None:
        """Count tokens that were drafted from what is remembered."""
        for outcome, count in (("accepted", accepted), ("rejected", rejected)):
            MethodSeries.memory_tokens.child(self, outcome=outcome).inc(count)

    def judged(self, judged: int, agreed: int, side: Side) -> None:
        """Count drafts of `side` that were compared with the token that came, whoever tells."""
        MethodSeries.judged_tokens.child(self, side=side).inc(judged)
        MethodSeries.agreed_tokens.child(self, side=side).inc(agreed)

    def aggregating_at(self, side: Side) -> Gauge:
        """Return the gauge of requests aggregated at `side`, whichever side reports it."""
        return MethodSeries.aggregation_side.child(self, side=side)


class HttpSeries(Series):
    """The HTTP API of one process."""

    LABELS = ("side",)

    requests = Metric(
        Counter, "http_requests_total", "HTTP requests answered.", more=("route", "code")
    )

    def answered(self, route: str, code: int) -> None:
        """Count one answer: `route` is a path of the API, never one that a caller made up."""
        admitted = self.exported.admit("route", route)
        HttpSeries.requests.child(self, route=admitted, code=str(code)).inc()


class KeysFileCondition(Protocol):
    """State of a keys file that `AccessSeries` exports."""

    @property
    def malformed_lines(self) -> Sequence[int]: ...
    @property
    def unreadable_s(self) -> float: ...


class AccessSeries(Series):
    """Credentials of one process, as callers and called services see them."""

    LABELS = ("side",)

    certificate_valid = Metric(
        Gauge,
        "tls_certificate_valid_seconds",
        "Seconds until the certificate expires; 0 if it has expired.",
    )
    keys_file_malformed_lines = Metric(
        Gauge,
        "keys_file_malformed_lines",
        "Malformed lines of a keys file, which are ignored. `file` is the setting"
        " that names the file: `keys_file` or `http_keys_file`.",
        more=("file",),
    )
    keys_file_unreadable = Metric(
        Gauge,
        "keys_file_unreadable_seconds",
        "Seconds since a keys file became unreadable; 0 if it is readable. From"
        " 300 s on, all keys are refused.",
        more=("file",),
    )

    def follow_keys_file(self, file: str, state: Callable[[], KeysFileCondition]) -> None:
        """Export what `state` says at each scrape; `file`: the name of the setting."""
        malformed = AccessSeries.keys_file_malformed_lines.child(self, file=file)
        malformed.set_function(lambda: len(state().malformed_lines))
        unreadable = AccessSeries.keys_file_unreadable.child(self, file=file)
        unreadable.set_function(lambda: state().unreadable_s)


HOLDER_LIMITS = ("sessions", "kv", "requests", "tokens", "grammars", "extraction", "queue")
"""What a holder of a key may have enough of."""


class HolderSeries(Series):
    """Usage of one process by key holders; keys files name them."""

    LABELS = ("side",)

    sessions = Metric(
        Gauge, "holder_sessions", "Open sessions and requests, by key holder.", more=("holder",)
    )
    refusals = Metric(
        Counter,
        "holder_refusals_total",
        "Requests refused because a key holder had reached its quota or its fair"
        " share, by the exhausted resource: sessions, kv, requests, tokens,"
        " grammars, extraction of documents, or places in a queue (queue).",
        more=("holder", "limit"),
    )

    def holds(self, holder: str, sessions: int) -> None:
        """Show how many sessions a holder has open; "" stands for callers without keys."""
        HolderSeries.sessions.child(self, holder=holder or ANYONE).set(sessions)
        for limit in HOLDER_LIMITS:  # at 0 from the start, so that the first refusal is a change
            HolderSeries.refusals.child(self, holder=holder or ANYONE, limit=limit)

    def refused(self, holder: str, limit: str) -> None:
        HolderSeries.refusals.child(self, holder=holder or ANYONE, limit=limit).inc()


class LoopSeries(Series):
    """The event loop of one process."""

    LABELS = ("side",)

    lag = Metric(
        Histogram,
        "event_loop_lag_seconds",
        "Delay of a timer on the event loop, measured ten times a second. Every"
        " message waits this long.",
        buckets=TOKEN_BUCKETS_S,
    )


class BuildSeries(Series):
    """The version of the program that a process runs."""

    LABELS = ("side",)

    build = Metric(Gauge, "build_info", "Always 1; the label has the version.", more=("version",))


ALL_SERIES: tuple[type[Series], ...] = (
    *(MethodSeries, EngineSeries, SchedulerSeries, MeasuredSideSeries),
    *(RetrieverSeries, HttpSeries, AccessSeries, HolderSeries, LoopSeries, BuildSeries),
    CloudSeries,
)
"""Every kind of series there is; a metric of another class would not be exported."""

ALL_METRICS: tuple[Metric[Any], ...] = tuple(
    metric for series in ALL_SERIES for metric in metrics_of(series)
)


class Metrics:
    """All metrics of one process, registered once. `side` labels everything it writes. The series
    it hands out are cheap; keep them rather than asking again per token."""

    def __init__(self, registry: CollectorRegistry, side: Side) -> None:
        if side not in get_args(Side):
            raise ValueError(f"side: must be one of {', '.join(get_args(Side))}, got {side!r}")
        self.registry = registry
        self.side: Side = side
        # One more series for each counter and histogram, read by nobody.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._exported = Exported(registry, ALL_METRICS)
        build = BuildSeries(self._exported, {"side": side})
        BuildSeries.build.child(build, version=__version__).set(1)

    def method(self, preset: str, model_name: str) -> MethodSeries:
        """Return the series of requests that `preset` serves with the target model `model_name`."""
        bounded = {"preset": preset, "model_name": model_name}
        labels = {label: self.admit(label, name) for label, name in bounded.items()}
        return MethodSeries(self._exported, {**labels, "side": self.side})

    def engine(self, model_name: str) -> EngineSeries:
        """Return the series of the engine that runs `model_name` in this process."""
        model_name = self.admit("model_name", model_name)
        return EngineSeries(self._exported, {"model_name": model_name, "side": self.side})

    def series(self, kind: type[OtherSeries], **labels: str) -> OtherSeries:
        """Return series of a kind that is declared elsewhere, exported from now on."""
        self._exported.add(metrics_of(kind))
        admitted = {label: self.admit(label, name) for label, name in labels.items()}
        return kind(self._exported, {**admitted, "side": self.side})

    def scheduler(self) -> SchedulerSeries:
        return SchedulerSeries(self._exported, {"side": self.side})

    def measured_side(self, side: Side) -> MeasuredSideSeries:
        """Return the series of what this process's scheduler holds of `side`."""
        return MeasuredSideSeries(self._exported, {"side": side})

    def retriever(self) -> RetrieverSeries:
        return RetrieverSeries(self._exported, {"side": self.side})

    def http(self) -> HttpSeries:
        return HttpSeries(self._exported, {"side": self.side})

    def clouds(self) -> CloudSeries:
        """Return the series of the clouds that this process chooses among."""
        return CloudSeries(self._exported, {"side": self.side})

    def loop(self) -> LoopSeries:
        """Return the series of this process's event loop."""
        return LoopSeries(self._exported, {"side": self.side})

    def holders(self) -> HolderSeries:
        """Return the series of this process's callers."""
        return HolderSeries(self._exported, {"side": self.side})

    def access(self) -> AccessSeries:
        """Return the series of this process's certificate and keys files; used by those that have
        them."""
        return AccessSeries(self._exported, {"side": self.side})

    def admit(self, label: str, name: str) -> str:
        """Return `name` while `label` has taken fewer than `MAX_LABEL_VALUES` values, else
        "other"."""
        return self._exported.admit(label, name)


def new_registry() -> CollectorRegistry:
    """Return a registry of its own, with the process's CPU, memory and open files on it."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry
