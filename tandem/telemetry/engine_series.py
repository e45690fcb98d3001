"""The metrics of one engine: its memory, its passes, and what it keeps."""

from prometheus_client import Counter, Gauge, Histogram

from tandem.telemetry.metric import COUNT_BUCKETS, TOKEN_BUCKETS_S, Metric, Series


class EngineSeries(Series):
    """The engine of one model in this process."""

    LABELS = ("model_name", "side")

    kv_bytes = Metric(Gauge, "kv_bytes", "KV memory held by sessions.")
    kv_budget_bytes = Metric(Gauge, "kv_budget_bytes", "KV memory that sessions may hold.")
    sessions_open = Metric(Gauge, "sessions_open", "Open engine sessions.")
    document_kv_bytes = Metric(Gauge, "document_kv_bytes", "KV memory held by documents.")
    document_kv_budget_bytes = Metric(
        Gauge, "document_kv_budget_bytes", "KV memory that documents may hold."
    )
    document_kv = Metric(
        Counter,
        "document_kv_lookups_total",
        "Documents asked for, by where their keys and values came from.",
        more=("source",),
    )
    prefix_kv_bytes = Metric(
        Gauge, "prefix_kv_bytes", "KV memory of the prefixes that are kept for later sessions."
    )
    prefix_kv_budget_bytes = Metric(
        Gauge, "prefix_kv_budget_bytes", "KV memory that kept prefixes may hold."
    )
    prefix_lookups = Metric(
        Counter,
        "prefix_lookups_total",
        "Sessions that a kept prefix was looked up for, by outcome: hit or miss.",
        more=("outcome",),
    )
    prefix_queried_tokens = Metric(
        Counter, "prefix_queried_tokens_total", "Tokens of those sessions' texts."
    )
    prefix_hit_tokens = Metric(
        Counter, "prefix_hit_tokens_total", "Tokens whose keys and values were found kept."
    )
    queue_depth = Metric(Gauge, "queue_depth", "Forward passes waiting for the engine.")
    batch_size = Metric(
        Histogram, "batch_size", "Jobs that shared a forward pass.", buckets=COUNT_BUCKETS
    )
    pass_tokens = Metric(
        Histogram, "pass_tokens", "Tokens fed to a forward pass.", buckets=COUNT_BUCKETS
    )
    engine_pass = Metric(
        Histogram,
        "engine_pass_seconds",
        "One packed forward pass of the engine.",
        buckets=TOKEN_BUCKETS_S,
    )

    engine_working = Metric(
        Gauge, "engine_working", "1, or 0 while a pass is stuck or every pass fails."
    )

    def document_found(self, source: str) -> None:
        """Count one document whose keys and values came from `source`: a fixed word."""
        self.count(EngineSeries.document_kv, "source", source)

    def looked_up(self, tokens: int, found: int) -> None:
        """Count one session's look-up of a kept prefix: `found` of `tokens` tokens."""
        self.looked_up_many(int(found > 0), int(not found), tokens, found)

    def looked_up_many(self, hits: int, misses: int, tokens: int, found: int) -> None:
        """Count what `looked_up` does, of several sessions together; from any thread."""
        for outcome, count in (("hit", hits), ("miss", misses)):
            if count:
                EngineSeries.prefix_lookups.child(self, outcome=outcome).inc(count)
        self.prefix_queried_tokens.inc(tokens)
        self.prefix_hit_tokens.inc(found)

    def passed(self, pass_s: float, jobs: int, tokens: int) -> None:
        """Count one forward pass over `tokens` tokens of `jobs` jobs; from any thread."""
        self.engine_pass.observe(pass_s)
        self.batch_size.observe(jobs)
        self.pass_tokens.observe(tokens)
