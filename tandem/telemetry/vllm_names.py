"""Metrics under the names that vLLM has for them, beside our own: for dashboards, autoscalers and
tools that read those. Invariant: both names have the same samples with the same labels, at every
scrape; nothing is counted twice."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from tandem.telemetry.engine_series import EngineSeries
from tandem.telemetry.metric import PREFIX
from tandem.telemetry.metrics import MethodSeries, Metrics

VLLM_PREFIX = "vllm:"
_TOTAL = "_total"
_SAME_NAME = (
    *(MethodSeries.time_to_first_token, MethodSeries.inter_token_latency),
    *(MethodSeries.e2e_request_latency, MethodSeries.requests_running),
    *(MethodSeries.requests_waiting, MethodSeries.drafts, MethodSeries.draft_tokens),
    *(MethodSeries.accepted_tokens, MethodSeries.accepted_tokens_per_position),
)
VLLM_NAMES: Mapping[str, str] = MappingProxyType(
    {
        **{each.name: VLLM_PREFIX + each.name.removeprefix(PREFIX) for each in _SAME_NAME},
        MethodSeries.time_per_output_token.name: "vllm:request_time_per_output_token_seconds",
        MethodSeries.tokens.name: "vllm:generation_tokens_total",
        EngineSeries.prefix_queried_tokens.name: "vllm:prefix_cache_queries_total",
        EngineSeries.prefix_hit_tokens.name: "vllm:prefix_cache_hits_total",
    }
)
"""vLLM's names by ours, where both measure the same."""


class VllmNames(Collector):
    """Exports what `metrics` has under `VLLM_NAMES`."""

    def __init__(self, metrics: Metrics) -> None:
        self._families = {other: metrics.family(name) for name, other in VLLM_NAMES.items()}

    def collect(self) -> Iterable[Family]:
        for name, collector in self._families.items():
            for family in collector.collect():
                yield _renamed(family, name.removesuffix(_TOTAL))


def _renamed(family: Family, name: str) -> Family:
    renamed = Family(name, family.documentation, family.type, family.unit)
    for sample in family.samples:
        suffix = sample.name.removeprefix(family.name)
        renamed.samples.append(sample._replace(name=name + suffix))
    return renamed
