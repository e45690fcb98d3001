"""*Services*: engines, queues, documents and processes."""

from __future__ import annotations

from tandem.learning.series import LearningSeries as Learning
from tandem.telemetry.document_series import RetrieverSeries as Retriever
from tandem.telemetry.engine_series import EngineSeries as Engine
from tandem.telemetry.metrics import AccessSeries as Access
from tandem.telemetry.metrics import HolderSeries as Holder
from tandem.telemetry.metrics import HttpSeries as Http
from tandem.telemetry.metrics import LoopSeries as Loop
from tandem.telemetry.metrics import MethodSeries as Method
from tools.observability.grafana import Dashboard, Panel, Query, Row, Variable
from tools.observability.promql import (
    MODEL,
    RANGE,
    average,
    mean,
    observations,
    or_zero,
    quantile,
    rate,
    ratio,
    scoped,
    time_share,
    total,
)

SERVICE = {"service": "$service"}
"""Process metrics have no label of the suite's own; `service` is given where they are scraped."""

BY_ENGINE = "model_name, side"
ENGINE = "{{model_name}} ({{side}})"
PROCESS = "{{service}} {{instance}}"
HIT = {**MODEL, "outcome": "hit"}
HOLDER = "{{holder}} ({{side}})"

SERVICES = Dashboard(
    uid="tandem-services",
    title="Tandem: Services",
    description="Engines, queues, documents and processes of every service.",
    variables=(
        Variable("model", "model_name", Engine.sessions_open.name, "Model"),
        Variable(
            "service",
            "service",
            "process_start_time_seconds",
            "Service",
            # No capturing group: Grafana would take what it captures for the value.
            among=".*(?:aggregator|drafter|retriever|verifier).*",
        ),
    ),
    rows=(
        Row(
            "Queues",
            (
                Panel(
                    "Waiting for the engine",
                    "Forward passes that are waiting for the engine.",
                    "short",
                    (Query(total(Engine.queue_depth, BY_ENGINE, MODEL), ENGINE),),
                ),
                Panel(
                    "Waiting for a slot",
                    "Requests that an aggregator has admitted and not yet started.",
                    "short",
                    (Query(total(Method.requests_waiting, "side", {}), "{{side}}"),),
                ),
                Panel(
                    "Sessions",
                    "Sessions open at drafters and verifiers.",
                    "short",
                    (Query(total(Engine.sessions_open, BY_ENGINE, MODEL), ENGINE),),
                ),
            ),
        ),
        Row(
            "Engines",
            (
                Panel(
                    "KV memory",
                    "Keys and values of sessions.",
                    "bytes",
                    (Query(total(Engine.kv_bytes, BY_ENGINE, MODEL), ENGINE),),
                ),
                Panel(
                    "KV memory, share of the budget",
                    "At 100 % new sessions are refused with RESOURCE_EXHAUSTED.",
                    "percentunit",
                    (
                        Query(
                            ratio(
                                total(Engine.kv_bytes, BY_ENGINE, MODEL),
                                total(Engine.kv_budget_bytes, BY_ENGINE, MODEL),
                            ),
                            ENGINE,
                        ),
                    ),
                    highest=1.0,
                ),
                Panel(
                    "KV headroom",
                    "Bytes of keys and values available for new sessions.",
                    "bytes",
                    (
                        Query(
                            f"{total(Engine.kv_budget_bytes, BY_ENGINE, MODEL)}"
                            f" - {total(Engine.kv_bytes, BY_ENGINE, MODEL)}",
                            ENGINE,
                        ),
                    ),
                ),
                Panel(
                    "Engine works",
                    "0 if a pass is stuck or every pass fails, otherwise 1.",
                    "short",
                    (
                        Query(
                            average(Engine.engine_working, f"{BY_ENGINE}, instance", MODEL),
                            f"{ENGINE} {{{{instance}}}}",
                        ),
                    ),
                    highest=1.0,
                ),
                Panel(
                    "Tokens of a pass",
                    "Tokens fed to a forward pass: one for each session that decodes, more for "
                    "drafts and prompts.",
                    "short",
                    (
                        Query(mean(Engine.pass_tokens, BY_ENGINE, MODEL), f"mean {ENGINE}"),
                        Query(
                            quantile(0.95, Engine.pass_tokens, BY_ENGINE, MODEL), f"p95 {ENGINE}"
                        ),
                    ),
                ),
                Panel(
                    "Batch size",
                    "Jobs that shared a forward pass.",
                    "short",
                    (
                        Query(mean(Engine.batch_size, BY_ENGINE, MODEL), f"mean {ENGINE}"),
                        Query(quantile(0.95, Engine.batch_size, BY_ENGINE, MODEL), f"p95 {ENGINE}"),
                    ),
                ),
                Panel(
                    "Forward pass",
                    "One packed pass of an engine.",
                    "s",
                    (
                        Query(quantile(0.5, Engine.engine_pass, BY_ENGINE, MODEL), f"p50 {ENGINE}"),
                        Query(
                            quantile(0.95, Engine.engine_pass, BY_ENGINE, MODEL), f"p95 {ENGINE}"
                        ),
                    ),
                ),
                Panel(
                    "Passes",
                    "Forward passes per second.",
                    "ops",
                    (Query(observations(Engine.engine_pass, BY_ENGINE, MODEL), ENGINE),),
                ),
                Panel(
                    "Engine busy",
                    "Share of the time an engine computes, summed over replicas.",
                    "percentunit",
                    (Query(time_share(Engine.engine_pass, BY_ENGINE, MODEL), ENGINE),),
                ),
            ),
        ),
        Row(
            "Kept prefixes",
            (
                Panel(
                    "Prefixes found",
                    "Share of the sessions whose beginning was in the prefix cache.",
                    "percentunit",
                    (
                        Query(
                            ratio(
                                f"({rate(Engine.prefix_lookups, BY_ENGINE, HIT)}"
                                f" or 0 * {rate(Engine.prefix_lookups, BY_ENGINE, MODEL)})",
                                rate(Engine.prefix_lookups, BY_ENGINE, MODEL),
                            ),
                            ENGINE,
                        ),
                    ),
                    highest=1.0,
                ),
                Panel(
                    "Tokens found",
                    "Share of their prompt tokens that were found there and needed no pass.",
                    "percentunit",
                    (
                        Query(
                            ratio(
                                rate(Engine.prefix_hit_tokens, BY_ENGINE, MODEL),
                                rate(Engine.prefix_queried_tokens, BY_ENGINE, MODEL),
                            ),
                            ENGINE,
                        ),
                    ),
                    highest=1.0,
                ),
                Panel(
                    "Memory of prefixes",
                    "Size and limit of the prefix cache. Sessions take the memory back when they "
                    "need it.",
                    "bytes",
                    (
                        Query(total(Engine.prefix_kv_bytes, BY_ENGINE, MODEL), f"kept {ENGINE}"),
                        Query(
                            total(Engine.prefix_kv_budget_bytes, BY_ENGINE, MODEL),
                            f"budget {ENGINE}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "Learning",
            (
                Panel(
                    "Acceptance on held-back texts",
                    "Of a draft model that learns: without an adapter, and with the one in use,"
                    " when an adapter was last judged.",
                    "percentunit",
                    (
                        Query(average(Learning.acceptance_before, BY_ENGINE, MODEL), "without"),
                        Query(average(Learning.acceptance_after, BY_ENGINE, MODEL), "in use"),
                    ),
                    highest=1.0,
                ),
                Panel(
                    "Adapters judged",
                    "Adapters judged on held-back texts, by outcome.",
                    "short",
                    (Query(rate(Learning.judgements, "outcome", MODEL), "{{outcome}}"),),
                ),
                Panel(
                    "Time for learning",
                    "Share of the time that a draft model learns, and of a processor that this"
                    " takes. It learns only while no request is open.",
                    "percentunit",
                    (
                        Query(rate(Learning.seconds, BY_ENGINE, MODEL), f"time {ENGINE}"),
                        Query(rate(Learning.cpu_seconds, BY_ENGINE, MODEL), f"processor {ENGINE}"),
                    ),
                ),
                Panel(
                    "Training steps",
                    "Steps of training, and those that a request interrupted.",
                    "ops",
                    (
                        Query(rate(Learning.steps, BY_ENGINE, MODEL), f"steps {ENGINE}"),
                        Query(rate(Learning.interrupted, BY_ENGINE, MODEL), f"given up {ENGINE}"),
                    ),
                ),
                Panel(
                    "Left to learn",
                    "Tokens still to be trained on, each counted per pass.",
                    "short",
                    (Query(total(Learning.backlog_tokens, BY_ENGINE, MODEL), ENGINE),),
                ),
                Panel(
                    "Texts to learn from",
                    "Size of the texts kept on the device to learn from.",
                    "bytes",
                    (Query(total(Learning.stored_bytes, BY_ENGINE, MODEL), ENGINE),),
                ),
            ),
        ),
        Row(
            "Documents",
            (
                Panel(
                    "Documents and chunks",
                    "Documents and chunks in the retrievers.",
                    "short",
                    (
                        Query(total(Retriever.documents, "side", {}), "documents {{side}}"),
                        Query(total(Retriever.chunks, "side", {}), "chunks {{side}}"),
                    ),
                ),
                Panel(
                    "Search",
                    "Duration of a search, including query embedding and re-ranking.",
                    "s",
                    (
                        Query(quantile(0.5, Retriever.search, "side", {}), "p50 {{side}}"),
                        Query(quantile(0.95, Retriever.search, "side", {}), "p95 {{side}}"),
                    ),
                ),
                Panel(
                    "Documents handed in",
                    "By outcome, per second.",
                    "ops",
                    (
                        Query(
                            rate(Retriever.ingests, "side, outcome", {}), "{{outcome}} ({{side}})"
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "Documents' keys and values",
            (
                Panel(
                    "Memory of documents",
                    "Keys and values of documents at decoders, and their limit.",
                    "bytes",
                    (
                        Query(total(Engine.document_kv_bytes, BY_ENGINE, MODEL), f"held {ENGINE}"),
                        Query(
                            total(Engine.document_kv_budget_bytes, BY_ENGINE, MODEL),
                            f"budget {ENGINE}",
                        ),
                    ),
                    width=12,
                ),
                Panel(
                    "Documents by source",
                    "Documents used by decoders, by the source of their keys and values.",
                    "ops",
                    (
                        Query(
                            rate(Engine.document_kv, "source, side", MODEL), "{{source}} ({{side}})"
                        ),
                    ),
                    width=12,
                    stacked=True,
                ),
            ),
        ),
        Row(
            "Processes",
            (
                Panel(
                    "CPU",
                    "Cores in use. An engine's thread uses one; the setting `threads` allows more.",
                    "short",
                    (
                        Query(
                            "sum by (service, instance)"
                            f" (rate({scoped('process_cpu_seconds_total', SERVICE)}[{RANGE}]))",
                            PROCESS,
                        ),
                    ),
                ),
                Panel(
                    "Resident memory",
                    "Weights, keys and values, and the process itself.",
                    "bytes",
                    (
                        Query(
                            "sum by (service, instance)"
                            f" ({scoped('process_resident_memory_bytes', SERVICE)})",
                            PROCESS,
                        ),
                    ),
                ),
                Panel(
                    "Open files",
                    "File descriptors, connections included.",
                    "short",
                    (
                        Query(
                            f"sum by (service, instance) ({scoped('process_open_fds', SERVICE)})",
                            PROCESS,
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "Callers",
            (
                Panel(
                    "Event loop lag, 99th percentile",
                    "How late the event loop runs its timers. Every message waits this long.",
                    "s",
                    (Query(quantile(0.99, Loop.lag, "side", {}), "{{side}}"),),
                ),
                Panel(
                    "Open by holder",
                    "Sessions and requests of each holder of a key.",
                    "short",
                    (Query(total(Holder.sessions, "holder, side", {}), HOLDER),),
                ),
                Panel(
                    "Refused by holder",
                    "Calls refused because a key holder had reached its share or its quota (429 "
                    "over HTTP), by the exhausted resource.",
                    "reqps",
                    (
                        Query(
                            rate(Holder.refusals, "holder, limit, side", {}),
                            f"{HOLDER} {{{{limit}}}}",
                        ),
                    ),
                ),
                Panel(
                    "429 by edge",
                    "HTTP answers that asked a caller to retry later: its quota or the capacity "
                    "was exhausted.",
                    "reqps",
                    (
                        Query(
                            or_zero(rate(Http.requests, "instance", {"code": "429"})),
                            "{{instance}}",
                        ),
                    ),
                    width=12,
                ),
                Panel(
                    "Certificates",
                    "How long each service's certificate is still valid.",
                    "dtdurations",
                    (
                        Query(
                            total(Access.certificate_valid, "service, instance", SERVICE), PROCESS
                        ),
                    ),
                    width=12,
                ),
                Panel(
                    "Malformed lines of keys files",
                    "Lines that give no access; the other lines of the file remain valid.",
                    "short",
                    (
                        Query(
                            total(
                                Access.keys_file_malformed_lines,
                                "service, instance, file",
                                SERVICE,
                            ),
                            f"{PROCESS} {{{{file}}}}",
                        ),
                    ),
                    width=12,
                ),
                Panel(
                    "Unreadable keys files",
                    "Time since the file became unreadable. After five minutes no key is accepted.",
                    "dtdurations",
                    (
                        Query(
                            total(Access.keys_file_unreadable, "service, instance, file", SERVICE),
                            f"{PROCESS} {{{{file}}}}",
                        ),
                    ),
                    width=12,
                ),
            ),
        ),
    ),
)
