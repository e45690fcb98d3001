"""What other edges ask of the cloud changes where an answer from two sides is aggregated: all
services, and a real Prometheus with this repository's rules between them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tandem.services.aggregator import side_resources
from tandem.services.aggregator.config import AggregatorSettings
from tandem.telemetry.endpoint import serve_metrics
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.prometheus_server import PrometheusServer, labels_of
from tandem.testing.paced import PacedEngine
from tandem.testing.scripted import ScriptedEngine, scripted_probs
from tests.services.prometheus_process import prometheus
from tests.services.scripted_suite import emulated
from tests.services.two_sided_suite import VOCABULARY, TwoSides, asking, two_sides

STEP_S = 0.08
ONE_WAY_S = 0.01
QUEUE_S = 0.4
"""The device decodes slower than a draft of the cloud takes to come, so at rest it aggregates,
whatever is accepted; drafts that wait so long at the cloud come late, and are sent no further."""
TOKENS = 250
IDLE_TOKENS = 10


def asked_often(settings: AggregatorSettings) -> PrometheusServer:
    """The server of the settings, asked ten times a second."""
    labels = labels_of(settings.prometheus_labels)
    return PrometheusServer(settings.prometheus, labels, period_s=0.1)


@asynccontextmanager
async def paced_sides(folder: Path, address: str) -> AsyncIterator[TwoSides]:
    probs = scripted_probs(5, VOCABULARY, order=80, sharpness=6.0)
    device, cloud = (ScriptedEngine(VOCABULARY, probs, context_length=2 * TOKENS) for _ in range(2))
    async with two_sides(
        folder,
        engines=[PacedEngine(device, STEP_S, 0.0), cloud],
        way=partial(emulated, links=[], delay_s=ONE_WAY_S),
        prometheus=address,
    ) as suite:
        yield suite


async def test_others_load_on_the_cloud_moves_a_running_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that began while the cloud was idle is aggregated at the device, until Prometheus
    says that drafts wait there. Before, what it said later counted for later answers only."""
    monkeypatch.setattr(side_resources, "prometheus_server", asked_often)
    registry = CollectorRegistry()
    busy = Metrics(registry, "cloud").method("dragon", "large")
    with serve_metrics(registry, "127.0.0.1", 0) as scraped:
        async with (
            prometheus(tmp_path, [scraped.port]) as address,
            paced_sides(tmp_path, address) as suite,
        ):
            await suite.client.describe()  # the target's name is known from here on
            idle = await suite.client.generate(asking("dragon", max_tokens=12))
            assert idle.summary is not None
            assert idle.summary.side_moves == 0
            stream: Any = suite.client.stream(asking("dragon", max_tokens=TOKENS))
            async with aclosing(stream) as answers:
                async for answer in answers:
                    if len(answer.token_ids) <= IDLE_TOKENS:
                        assert not at_cloud(suite)
                        continue
                    if at_cloud(suite):
                        return
                    busy.queue.observe(QUEUE_S)
    pytest.fail("the answer ended at the device")


def at_cloud(suite: TwoSides) -> bool:
    """Whether the running answer is aggregated in the cloud."""
    labels = {"preset": "dragon", "model_name": suite.cloud.model_name, "side": "cloud"}
    value = suite.device_metrics.registry.get_sample_value
    return value("tandem_aggregation_side", labels) == 1
