"""Metrics of answers from documents: the scheduler's decisions and their inputs, the retriever."""

from prometheus_client import Counter, Gauge, Histogram

from tandem.telemetry.metric import TOKEN_BUCKETS_S, Metric, Series


class SchedulerSeries(Series):
    """The scheduler of one process: what it decided, and the ΔZ that said so."""

    LABELS = ("side",)

    gain = Metric(
        Gauge,
        "scheduler_gain_seconds",
        "The last decision's delta Z: seconds a token that moving to the other side saves.",
    )
    decisions = Metric(
        Counter, "scheduler_decisions_total", "Decisions taken, by reason.", more=("reason",)
    )

    def decided(self, reason: str) -> None:
        """Count one decision taken for `reason`: a fixed word, never free text."""
        self.count(SchedulerSeries.decisions, "reason", reason)


class MeasuredSideSeries(Series):
    """The inputs of a scheduler's ΔZ; `side` is the measured one, whichever side measures."""

    LABELS = ("side",)

    decode = Metric(Gauge, "scheduler_decode_seconds", "Decoding of one draft token at this side.")
    transfer = Metric(
        Gauge,
        "scheduler_transfer_seconds",
        "The way of a draft from this side to the other; both sides' sum is the round trip.",
    )
    acceptance = Metric(
        Gauge, "scheduler_acceptance_ratio", "Share of this side's drafts that are accepted."
    )
    bandwidth = Metric(
        Gauge,
        "scheduler_bandwidth_bytes_per_second",
        "Bandwidth from this side to the other; +Inf where frames showed no limit.",
    )


class OtherSideSeries(Series):
    """Of a device with more than two sides: each other one, by what its settings call it."""

    LABELS = ("side",)

    drafted = Metric(
        Counter,
        "other_side_judged_tokens_total",
        "Drafts of another side that were there when their position was decided.",
        more=("other",),
    )
    agreed = Metric(
        Counter,
        "other_side_agreed_tokens_total",
        "Those of them that were the token.",
        more=("other",),
    )
    made = Metric(
        Counter,
        "other_side_made_tokens_total",
        "Tokens that are another side's drafts, by the coin or as no other side's was the same.",
        more=("other",),
    )
    documents = Metric(
        Counter,
        "other_side_documents_total",
        "Documents that another side answered from.",
        more=("other",),
    )
    bytes = Metric(
        Counter,
        "other_side_bytes_total",
        "Bytes of messages to (up) and from (down) another side.",
        more=("other", "direction"),
    )
    round_trip = Metric(
        Gauge,
        "other_side_round_trip_seconds",
        "Median round trip to another side in the last answer, without what it held back.",
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
    chunks = Metric(Gauge, "document_chunks", "Chunks that can be found.")
    search = Metric(
        Histogram,
        "search_seconds",
        "One search, with embedding of the query and re-ranking.",
        buckets=TOKEN_BUCKETS_S,
    )
    ingests = Metric(
        Counter, "ingested_documents_total", "Documents handed in, by outcome.", more=("outcome",)
    )

    def ingested(self, outcome: str) -> None:
        """Count one document with this outcome: a fixed word, never free text."""
        self.count(RetrieverSeries.ingests, "outcome", outcome)
