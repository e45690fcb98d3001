"""Metrics of answers from documents: the scheduler's decisions and their inputs, the retriever."""

from prometheus_client import Counter, Gauge, Histogram

from tandem.telemetry.metric import TOKEN_BUCKETS_S, Metric, Series


class SchedulerSeries(Series):
    """The scheduler of one process: what it decided, and the ΔZ that said so."""

    LABELS = ("side",)

    gain = Metric(
        Gauge,
        "scheduler_gain_seconds",
        "Delta Z of the last decision: seconds per token saved by moving"
        " aggregation to the other side.",
    )
    decisions = Metric(
        Counter, "scheduler_decisions_total", "Scheduler decisions, by reason.", more=("reason",)
    )

    def decided(self, reason: str) -> None:
        """Count one decision taken for `reason`: a fixed word, never free text."""
        self.count(SchedulerSeries.decisions, "reason", reason)


class MeasuredSideSeries(Series):
    """The inputs of a scheduler's ΔZ; `side` is the measured one, whichever side measures."""

    LABELS = ("side",)

    decode = Metric(
        Gauge, "scheduler_decode_seconds", "Time to decode one draft token at this side."
    )
    transfer = Metric(
        Gauge,
        "scheduler_transfer_seconds",
        "Time of a draft from this side to the other. The sum over both sides is"
        " the round-trip time.",
    )
    acceptance = Metric(
        Gauge, "scheduler_acceptance_ratio", "Acceptance rate of this side's draft tokens."
    )
    bandwidth = Metric(
        Gauge,
        "scheduler_bandwidth_bytes_per_second",
        "Bandwidth from this side to the other; +Inf if no limit was measured.",
    )


class OtherSideSeries(Series):
    """Names of the other sides of a device with more than two sides, by its settings."""

    LABELS = ("side",)

    drafted = Metric(
        Counter,
        "other_side_judged_tokens_total",
        "Draft tokens of another side that arrived before their position was decided.",
        more=("other",),
    )
    agreed = Metric(
        Counter,
        "other_side_agreed_tokens_total",
        "Arrived draft tokens of another side that were equal to the final token.",
        more=("other",),
    )
    made = Metric(
        Counter,
        "other_side_made_tokens_total",
        "Tokens selected from another side, or drafted by no other side.",
        more=("other",),
    )
    documents = Metric(
        Counter,
        "other_side_documents_total",
        "Documents used by another side.",
        more=("other",),
    )
    bytes = Metric(
        Counter,
        "other_side_bytes_total",
        "Message bytes to (up) and from (down) another side.",
        more=("other", "direction"),
    )
    round_trip = Metric(
        Gauge,
        "other_side_round_trip_seconds",
        "Median round-trip time to another side in the last answer, without the"
        " time that the side held messages back.",
        more=("other",),
    )

    def judged(self, other: str, drafted: int, agreed: int, made: int) -> None:
        """Count the drafts of one answer."""
        OtherSideSeries.drafted.child(self, other=other).inc(drafted)
        OtherSideSeries.agreed.child(self, other=other).inc(agreed)
        OtherSideSeries.made.child(self, other=other).inc(made)

    def used(self, other: str, documents: int) -> None:
        OtherSideSeries.documents.child(self, other=other).inc(documents)

    def carried(self, other: str, up_bytes: int, down_bytes: int) -> None:
        for direction, count in (("up", up_bytes), ("down", down_bytes)):
            OtherSideSeries.bytes.child(self, other=other, direction=direction).inc(count)

    def answered(self, other: str, round_trip_s: float) -> None:
        OtherSideSeries.round_trip.child(self, other=other).set(round_trip_s)


class RetrieverSeries(Series):
    """The documents of one process."""

    LABELS = ("side",)

    documents = Metric(Gauge, "documents", "Documents stored.")
    chunks = Metric(Gauge, "document_chunks", "Searchable chunks.")
    search = Metric(
        Histogram,
        "search_seconds",
        "Duration of a search, including query embedding and re-ranking.",
        buckets=TOKEN_BUCKETS_S,
    )
    ingests = Metric(
        Counter,
        "ingested_documents_total",
        "Documents submitted for ingestion, by outcome.",
        more=("outcome",),
    )

    def ingested(self, outcome: str) -> None:
        """Count one document with this outcome: a fixed word, never free text."""
        self.count(RetrieverSeries.ingests, "outcome", outcome)
