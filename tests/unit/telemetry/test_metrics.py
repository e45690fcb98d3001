"""Metric names, labels and bounds, read back through the exposition format."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tandem.learning.series import LearningSeries
from tandem.net.keys_file import KeysFileState
from tandem.telemetry.metric import MAX_LABEL_VALUES
from tandem.telemetry.metrics import Metrics

METHOD = {"preset", "model_name", "side"}
ENGINE = {"model_name", "side"}

# The public names: dashboards and the profiler read these.
PUBLISHED = {
    "tandem_time_to_first_token_seconds": ("histogram", METHOD),
    "tandem_time_per_output_token_seconds": ("histogram", METHOD),
    "tandem_inter_token_latency_seconds": ("histogram", METHOD),
    "tandem_e2e_request_latency_seconds": ("histogram", METHOD),
    "tandem_num_requests_running": ("gauge", METHOD),
    "tandem_num_requests_waiting": ("gauge", METHOD),
    "tandem_requests_total": ("counter", METHOD | {"status"}),
    "tandem_tokens_total": ("counter", METHOD),
    "tandem_spec_decode_num_drafts_total": ("counter", METHOD),
    "tandem_spec_decode_num_draft_tokens_total": ("counter", METHOD),
    "tandem_spec_decode_num_accepted_tokens_total": ("counter", METHOD),
    "tandem_spec_decode_num_cloud_draft_tokens_total": ("counter", METHOD),
    "tandem_spec_decode_num_cloud_accepted_tokens_total": ("counter", METHOD),
    "tandem_spec_decode_num_accepted_tokens_per_pos_total": ("counter", METHOD | {"position"}),
    "tandem_prediction_tokens_total": ("counter", METHOD | {"outcome"}),
    "tandem_memory_tokens_total": ("counter", METHOD | {"outcome"}),
    "tandem_spec_decode_num_judged_tokens_total": ("counter", METHOD),
    "tandem_spec_decode_num_agreed_tokens_total": ("counter", METHOD),
    "tandem_spec_decode_num_target_passes_total": ("counter", METHOD),
    "tandem_draft_window_tokens": ("histogram", METHOD),
    "tandem_draft_step_seconds": ("histogram", METHOD),
    "tandem_auto_decisions_total": ("counter", METHOD | {"reason"}),
    "tandem_auto_expected_tpot_seconds": ("histogram", METHOD),
    "tandem_auto_cloud_alone_tpot_seconds": ("histogram", METHOD),
    "tandem_auto_seen_tpot_seconds": ("histogram", METHOD | {"schedule"}),
    "tandem_verify_step_seconds": ("histogram", METHOD),
    "tandem_queue_seconds": ("histogram", METHOD),
    "tandem_round_trip_seconds": ("histogram", METHOD),
    "tandem_uplink_bytes_total": ("counter", METHOD),
    "tandem_downlink_bytes_total": ("counter", METHOD),
    "tandem_link_lost_total": ("counter", METHOD),
    "tandem_resumes_total": ("counter", METHOD),
    "tandem_early_verdicts_total": ("counter", METHOD),
    "tandem_predraft_hits_total": ("counter", METHOD),
    "tandem_predraft_misses_total": ("counter", METHOD),
    "tandem_aggregation_side": ("gauge", METHOD),
    "tandem_kv_bytes": ("gauge", ENGINE),
    "tandem_kv_budget_bytes": ("gauge", ENGINE),
    "tandem_sessions_open": ("gauge", ENGINE),
    "tandem_document_kv_bytes": ("gauge", ENGINE),
    "tandem_document_kv_budget_bytes": ("gauge", ENGINE),
    "tandem_document_kv_lookups_total": ("counter", ENGINE | {"source"}),
    "tandem_prefix_kv_bytes": ("gauge", ENGINE),
    "tandem_prefix_kv_budget_bytes": ("gauge", ENGINE),
    "tandem_prefix_lookups_total": ("counter", ENGINE | {"outcome"}),
    "tandem_prefix_queried_tokens_total": ("counter", ENGINE),
    "tandem_prefix_hit_tokens_total": ("counter", ENGINE),
    "tandem_queue_depth": ("gauge", ENGINE),
    "tandem_batch_size": ("histogram", ENGINE),
    "tandem_pass_tokens": ("histogram", ENGINE),
    "tandem_engine_pass_seconds": ("histogram", ENGINE),
    "tandem_engine_working": ("gauge", ENGINE),
    "tandem_learning_acceptance_before": ("gauge", ENGINE),
    "tandem_learning_acceptance_after": ("gauge", ENGINE),
    "tandem_learning_judgements_total": ("counter", ENGINE | {"outcome"}),
    "tandem_learning_steps_total": ("counter", ENGINE),
    "tandem_learning_interrupted_total": ("counter", ENGINE),
    "tandem_learning_seconds_total": ("counter", ENGINE),
    "tandem_learning_cpu_seconds_total": ("counter", ENGINE),
    "tandem_learning_backlog_tokens": ("gauge", ENGINE),
    "tandem_learning_stored_bytes": ("gauge", ENGINE),
    "tandem_scheduler_decisions_total": ("counter", {"side", "reason"}),
    "tandem_scheduler_gain_seconds": ("gauge", {"side"}),
    "tandem_scheduler_decode_seconds": ("gauge", {"side"}),
    "tandem_scheduler_transfer_seconds": ("gauge", {"side"}),
    "tandem_scheduler_acceptance_ratio": ("gauge", {"side"}),
    "tandem_scheduler_bandwidth_bytes_per_second": ("gauge", {"side"}),
    "tandem_http_requests_total": ("counter", {"side", "route", "code"}),
    "tandem_tls_certificate_valid_seconds": ("gauge", {"side"}),
    "tandem_keys_file_malformed_lines": ("gauge", {"side", "file"}),
    "tandem_keys_file_unreadable_seconds": ("gauge", {"side", "file"}),
    "tandem_event_loop_lag_seconds": ("histogram", {"side"}),
    "tandem_cloud_sessions": ("gauge", {"cloud", "side"}),
    "tandem_cloud_round_trip_seconds": ("gauge", {"cloud", "side"}),
    "tandem_cloud_usable": ("gauge", {"cloud", "side"}),
    "tandem_cloud_moves_total": ("counter", {"reason", "side"}),
    "tandem_holder_sessions": ("gauge", {"holder", "side"}),
    "tandem_holder_refusals_total": ("counter", {"holder", "limit", "side"}),
    "tandem_build_info": ("gauge", {"side", "version"}),
    "tandem_documents": ("gauge", {"side"}),
    "tandem_document_chunks": ("gauge", {"side"}),
    "tandem_search_seconds": ("histogram", {"side"}),
    "tandem_ingested_documents_total": ("counter", {"side", "outcome"}),
}


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Metrics:
    return Metrics(registry, side="device")


def touch_everything(metrics: Metrics) -> None:
    method = metrics.method(preset="dsd", model_name="m")
    method.accepted_at([1, 2])
    method.predicted(3, 1)
    method.recalled(5, 2)
    learning = metrics.series(LearningSeries, model_name="m")
    learning.evaluated("adopted", 0.4, 0.5)
    for counter in (
        learning.steps,
        learning.interrupted,
        learning.seconds,
        learning.cpu_seconds,
    ):
        counter.inc()
    learning.backlog_tokens.set(1)
    learning.stored_bytes.set(1)
    metrics.http().answered("/v1/models", 200)
    metrics.access().certificate_valid.set(1)
    metrics.access().follow_keys_file("keys_file", KeysFileState)
    metrics.loop().lag.observe(0.01)
    metrics.holders().holds("edge-1", 1)
    metrics.clouds().knows("cloud-1:50051")
    metrics.clouds().asked("cloud-1:50051", 0.02)
    metrics.clouds().moved("lost")
    metrics.holders().refused("", "kv")
    retriever = metrics.retriever()
    retriever.documents.set(1)
    retriever.chunks.set(1)
    retriever.search.observe(0.01)
    retriever.ingested("OUTCOME_ADDED")
    for histogram in (
        method.time_to_first_token,
        method.time_per_output_token,
        method.inter_token_latency,
        method.e2e_request_latency,
        method.draft_step,
        method.verify_step,
        method.queue,
        method.round_trip,
        method.draft_window,
        method.auto_expected_tpot,
        method.auto_cloud_alone_tpot,
    ):
        histogram.observe(0.01)
    for counter in (
        method.tokens,
        method.drafts,
        method.draft_tokens,
        method.accepted_tokens,
        method.cloud_draft_tokens,
        method.cloud_accepted_tokens,
        method.target_passes,
        method.uplink_bytes,
        method.downlink_bytes,
        method.link_lost,
        method.resumes,
        method.early_verdicts,
        method.predraft_hits,
        method.predraft_misses,
    ):
        counter.inc()
    method.requests_running.inc()
    method.requests_waiting.inc()
    method.aggregating_at("cloud").inc()
    method.judged(3, 2, "device")
    method.request_ended("OK")
    method.chose("load", 2)
    method.took("rounds", 0.01)
    engine = metrics.engine("m")
    engine.passed(0.01, 2, 5)
    engine.document_found("disk")
    engine.looked_up(tokens=3, hit_tokens=2)
    scheduler, measured = metrics.scheduler(), metrics.measured_side("cloud")
    scheduler.decided("bandwidth")
    for gauge in (
        *(engine.kv_bytes, engine.kv_budget_bytes, engine.sessions_open, engine.queue_depth),
        *(engine.document_kv_bytes, engine.document_kv_budget_bytes, engine.engine_working),
        *(measured.decode, measured.transfer, measured.acceptance, measured.bandwidth),
        *(engine.prefix_kv_bytes, engine.prefix_kv_budget_bytes, scheduler.gain),
    ):
        gauge.set(1)


def test_the_published_names_kinds_and_labels(
    metrics: Metrics, registry: CollectorRegistry
) -> None:
    touch_everything(metrics)
    exposed: dict[str, tuple[str, set[str]]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        assert not family.name.endswith("_created")
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        exposed[name] = (family.type, labels)
    assert exposed == PUBLISHED


def test_what_is_observed_is_exposed(metrics: Metrics, registry: CollectorRegistry) -> None:
    series = metrics.method(preset="dssd", model_name="m")
    series.draft_tokens.inc(5)
    series.time_to_first_token.observe(0.03)
    labels = {"preset": "dssd", "model_name": "m", "side": "device"}
    name = "tandem_spec_decode_num_draft_tokens_total"
    assert registry.get_sample_value(name, labels) == 5
    ttft = "tandem_time_to_first_token_seconds"
    assert registry.get_sample_value(f"{ttft}_sum", labels) == 0.03
    assert registry.get_sample_value(f"{ttft}_bucket", {**labels, "le": "0.02"}) == 0
    assert registry.get_sample_value(f"{ttft}_bucket", {**labels, "le": "0.04"}) == 1


def test_label_values_are_bounded(metrics: Metrics, registry: CollectorRegistry) -> None:
    for number in range(10 * MAX_LABEL_VALUES):
        metrics.method(preset=f"preset-{number}", model_name="m").tokens.inc()
    samples = [s for family in registry.collect() for s in family.samples]
    presets = {s.labels["preset"] for s in samples if s.name == "tandem_tokens_total"}
    assert len(presets) == MAX_LABEL_VALUES + 1
    other = {"preset": "other", "model_name": "m", "side": "device"}
    assert registry.get_sample_value("tandem_tokens_total", other) == 9 * MAX_LABEL_VALUES
    # A value admitted before keeps its own series.
    metrics.method(preset="preset-0", model_name="m").tokens.inc()
    kept = {**other, "preset": "preset-0"}
    assert registry.get_sample_value("tandem_tokens_total", kept) == 2


def test_statuses_and_reasons_are_bounded_too(
    metrics: Metrics, registry: CollectorRegistry
) -> None:
    series = metrics.method(preset="dsd", model_name="m")
    for number in range(MAX_LABEL_VALUES + 3):
        series.request_ended(f"status-{number}")
        metrics.scheduler().decided(f"reason-{number}")
    labels = {"preset": "dsd", "model_name": "m", "side": "device", "status": "other"}
    assert registry.get_sample_value("tandem_requests_total", labels) == 3
    decided = {"side": "device", "reason": "other"}
    assert registry.get_sample_value("tandem_scheduler_decisions_total", decided) == 3
