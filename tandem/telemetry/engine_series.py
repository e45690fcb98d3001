"""The metrics of one engine: its memory, its passes, and what it keeps."""

from prometheus_client import Counter, Gauge, Histogram

from tandem.telemetry.metric import COUNT_BUCKETS, TOKEN_BUCKETS_S, Metric, Series


class EngineSeries(Series):
    """The engine of one model in this process."""

    LABELS = ("model_name", "side")

    kv_bytes = Metric(Gauge, "kv_bytes", "KV cache used by sessions, in bytes.")
    kv_budget_bytes = Metric(Gauge, "kv_budget_bytes", "KV cache budget of sessions, in bytes.")
    sessions_open = Metric(Gauge, "sessions_open", "Open engine sessions.")
    document_kv_bytes = Metric(Gauge, "document_kv_bytes", "KV cache used by documents, in bytes.")
    document_kv_budget_bytes = Metric(
        Gauge, "document_kv_budget_bytes", "KV cache budget of documents, in bytes."
    )
    document_kv = Metric(
        Counter,
        "document_kv_lookups_total",
        "Lookups of a document's KV cache, by where it was found.",
        more=("source",),
    )
    prefix_kv_bytes = Metric(Gauge, "prefix_kv_bytes", "Size of the prefix cache, in bytes.")
    prefix_kv_budget_bytes = Metric(
        Gauge, "prefix_kv_budget_bytes", "Budget of the prefix cache, in bytes."
    )
    prefix_lookups = Metric(
        Counter,
        "prefix_lookups_total",
        "Prefix cache lookups, by outcome: hit or miss.",
        more=("outcome",),
    )
    prefix_queried_tokens = Metric(
        Counter, "prefix_queried_tokens_total", "Prompt tokens looked up in the prefix cache."
    )
    prefix_hit_tokens = Metric(
        Counter, "prefix_hit_tokens_total", "Prompt tokens found in the prefix cache."
    )
    queue_depth = Metric(Gauge, "queue_depth", "Forward passes waiting for the engine.")
    batch_size = Metric(
        Histogram, "batch_size", "Sequences per forward pass.", buckets=COUNT_BUCKETS
    )
    pass_tokens = Metric(
        Histogram, "pass_tokens", "Tokens per forward pass.", buckets=COUNT_BUCKETS
    )
    engine_pass = Metric(
        Histogram,
        "engine_pass_seconds",
        "Duration of a packed forward pass of the engine.",
        buckets=TOKEN_BUCKETS_S,
    )

    engine_working = Metric(
        Gauge, "engine_working", "1 if the engine works, 0 if a pass is stuck or every pass fails."
    )

    def document_found(self, source: str) -> None:
        """Count one document whose keys and values came from `source`: a fixed word."""
        self.count(EngineSeries.document_kv, "source", source)

    def looked_up(self, tokens: int, hit_tokens: int) -> None:
        """Count one session's look-up of a kept prefix: `hit_tokens` of `tokens` tokens."""
        outcome = "hit" if hit_tokens else "miss"
        EngineSeries.prefix_lookups.child(self, outcome=outcome).inc()
        self.prefix_queried_tokens.inc(tokens)
        self.prefix_hit_tokens.inc(hit_tokens)

    def passed(self, pass_s: float, jobs: int, tokens: int) -> None:
        """Count one forward pass over `tokens` tokens of `jobs` jobs; from any thread."""
        self.engine_pass.observe(pass_s)
        self.batch_size.observe(jobs)
        self.pass_tokens.observe(tokens)
