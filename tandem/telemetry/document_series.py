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
