"""Every panel of every dashboard shows something once the composed suite has had traffic."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.deploy.composed import Composed
from tests.deploy.traffic import ask, completion
from tools.observability.dashboards import DASHBOARDS, substituted

PRESETS = ("dssd", "fsd", "stream", "dragon", "auto", "ar", "cloud-draft")
"""A split answer, early exits and pre-drafts, a window, documents of both sides, a chosen schedule,
the cloud alone, and drafting by itself."""
NOT_COMPOSED = ("tandem_cloud_", "tandem_other_side_", "tandem_learning_")
"""What only drafters that know several clouds export, devices with more than one other side, and
drafters that learn; compose has one of each, and its drafter does not learn."""

DOCUMENT = "A house has rooms. In the cellar of a house one finds a list of things."
SHOWN_WITHIN_S = 90.0
pytestmark = pytest.mark.timeout(1800)  # the first test waits for images and suite


def test_every_query_of_every_dashboard_is_answered(suite: Composed, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "house.md").write_text(DOCUMENT)
    for retriever in ("edge-retriever", "cloud-retriever"):
        suite.ingest(retriever, tmp_path)
    prometheus = suite.address("prometheus", 9090)
    deadline_s = time.monotonic() + SHOWN_WITHIN_S
    while empty := list(unanswered(prometheus)):
        # Rates need two scrapes with requests between them.
        assert time.monotonic() < deadline_s, empty
        for preset in PRESETS:
            send(suite.address("edge-aggregator", 8000), preset)


def send(front: str, preset: str) -> None:
    body = completion(preset, seed=3, max_tokens=24)
    if preset in ("dragon", "auto", "ar", "cloud-draft"):  # these take no draft length
        body["tandem"] = {"preset": preset}
    answer = ask(front, body)
    assert answer.status == "ok", (preset, answer.http_status, answer.status)


def unanswered(prometheus: str) -> Iterator[tuple[str, str]]:
    """Dashboard and query, where the result is empty."""
    for dashboard in DASHBOARDS:
        for query in substituted(dashboard):
            if any(each in query for each in NOT_COMPOSED):
                continue
            found = requests.get(f"http://{prometheus}/api/v1/query", {"query": query}, timeout=10)
            assert found.status_code == 200, (query, found.text)
            if not found.json()["data"]["result"]:
                yield dashboard.uid, query
