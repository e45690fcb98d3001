"""The metrics of a draft model that learns on the device."""

from prometheus_client import Counter, Gauge

from tandem.telemetry.metric import Metric, Series


class LearningSeries(Series):
    """The draft model of one process. Acceptance is that of the tenant whose adapter was judged
    last."""

    LABELS = ("model_name", "side")

    acceptance_before = Metric(
        Gauge,
        "learning_acceptance_before",
        "Acceptance on held-back texts without any adapter, when an adapter was last judged.",
    )
    acceptance_after = Metric(
        Gauge,
        "learning_acceptance_after",
        "Acceptance on the same texts with the adapter that is used since then.",
    )
    judgements = Metric(
        Counter,
        "learning_judgements_total",
        "Adapters judged on held-back texts, by outcome: adopted, rejected or rolled_back.",
        more=("outcome",),
    )
    steps = Metric(Counter, "learning_steps_total", "Training steps of the draft model.")
    interrupted = Metric(
        Counter,
        "learning_interrupted_total",
        "Training steps that were given up because a request arrived.",
    )
    seconds = Metric(
        Counter, "learning_seconds_total", "Time spent on training and judging, in seconds."
    )
    cpu_seconds = Metric(
        Counter,
        "learning_cpu_seconds_total",
        "Processor time of the same, in seconds: what learning costs in energy.",
    )
    backlog_tokens = Metric(
        Gauge, "learning_backlog_tokens", "Tokens still to be trained on, each counted per pass."
    )
    stored_bytes = Metric(
        Gauge, "learning_stored_bytes", "Size of the texts kept to learn from, in bytes."
    )

    def evaluated(self, outcome: str, before: float, after: float) -> None:
        """Count an evaluation; `outcome` is a fixed word."""
        self.count(LearningSeries.judgements, "outcome", outcome)
        self.acceptance_before.set(before)
        self.acceptance_after.set(after)
