"""Metrics under vLLM's names: the same samples, only where asked for."""

from __future__ import annotations

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tandem.telemetry.metrics import ALL_METRICS, Metrics, new_registry
from tandem.telemetry.vllm_names import VLLM_NAMES, VllmNames


def samples(metrics: Metrics) -> dict[str, list[tuple[dict[str, str], float]]]:
    """By name, in the order of the exposition."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    text = generate_latest(metrics.registry).decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def served() -> Metrics:
    metrics = Metrics(new_registry(), "device")
    series = metrics.method("coupled", "large")
    series.time_to_first_token.observe(0.2)
    series.drafts.inc(43)
    series.accepted_at([39, 1, 0, 3])
    series.tokens.inc(60)
    metrics.engine("large").looked_up(100, 64)
    return metrics


def test_both_names_have_the_same_samples() -> None:
    metrics = served()
    assert not any(name.startswith("vllm:") for name in samples(metrics))
    metrics.registry.register(VllmNames(metrics))
    found = samples(metrics)
    for own, other in VLLM_NAMES.items():
        same = {
            name: name.replace(own, other, 1) for name in samples(served()) if name.startswith(own)
        }
        for name, renamed in same.items():
            assert found[name] == found[renamed], name
    assert found["vllm:spec_decode_num_drafts_total"][0][1] == 43
    assert found["vllm:time_to_first_token_seconds_count"][0][1] == 1
    assert found["vllm:prefix_cache_hits_total"][0][1] == 64
    assert found["vllm:generation_tokens_total"][0][0]["model_name"] == "large"
    assert set(VLLM_NAMES) <= {metric.name for metric in ALL_METRICS}


def test_accepted_tokens_are_counted_by_their_position_as_vllm_does() -> None:
    """Of 43 drafts 4 had their first token accepted, and 3 the second and the third."""
    found = samples(served())["tandem_spec_decode_num_accepted_tokens_per_pos_total"]
    assert [(labels["position"], value) for labels, value in found] == [
        ("0", 4.0),
        ("1", 3.0),
        ("2", 3.0),
    ]
    assert sum(value for _, value in found) == 10, "all that were accepted"
