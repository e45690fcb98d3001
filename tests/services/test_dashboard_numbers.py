"""The first row of the overview dashboard, asked of a real Prometheus that scrapes a suite."""

from __future__ import annotations

import asyncio
import math
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests

import tandem
from tandem.suite.embedded import EmbeddedSuite
from tandem.telemetry.endpoint import serve_metrics
from tests.long_runs import with_long_cases
from tests.prometheus_process import prometheus
from tests.unit.cli.scripted_pair import scripted_pair
from tools.observability.dashboards import substituted
from tools.observability.overview import OVERVIEW

TOKENS = 24


def asked(address: str) -> list[float]:
    """What each query of the row is answered with; nan where it is nothing."""
    first_row = replace(OVERVIEW, rows=OVERVIEW.rows[:1])
    numbers = []
    for query in substituted(first_row, rate_interval="30s"):
        answer = requests.get(f"{address}/api/v1/query", {"query": query}, timeout=10)
        answer.raise_for_status()
        result: list[dict[str, Any]] = answer.json()["data"]["result"]
        numbers.append(float(result[0]["value"][1]) if result else math.nan)
    return numbers


@pytest.mark.parametrize("preset", with_long_cases(["dssd", "ar"], ("dssd",)))
async def test_every_number_of_the_first_row_is_that_of_the_answers(
    tmp_path: Path, preset: str
) -> None:
    async with EmbeddedSuite(scripted_pair()) as running:
        with ExitStack() as stack:
            ports = [
                stack.enter_context(serve_metrics(each.registry, "127.0.0.1", 0)).port
                for each in running.metrics.values()
            ]
            async with (
                prometheus(tmp_path, ports, rules=False) as address,
                tandem.connect_async(running.target) as suite,
                asyncio.timeout(90),
            ):
                numbers, tokens_per_pass = [math.nan], 0.0
                # The two counters of tokens per pass are scraped one after the other, so their
                # first rates are of other moments.
                while not (
                    all(map(math.isfinite, numbers))
                    and numbers[5] == pytest.approx(tokens_per_pass, rel=0.2)
                ):
                    answer = await suite.generate("hello", max_tokens=TOKENS, preset=preset)
                    figures = answer.figures
                    tokens_per_pass = figures.tokens / figures.target_passes
                    try:
                        numbers = await asyncio.to_thread(asked, address)
                    except requests.RequestException:
                        await asyncio.sleep(0.1)  # it has not begun to answer
    ttft_p50, ttft_p95, tpot_p50, tpot_p95, tokens_per_s, _, failed = numbers
    assert 0 < ttft_p50 <= ttft_p95
    assert 0 < tpot_p50 <= tpot_p95
    assert tokens_per_s > 0
    assert failed == 0
