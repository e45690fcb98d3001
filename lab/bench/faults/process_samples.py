"""What a running service takes: memory, descriptors, threads, keys and values, and how many values
the labels of its metrics have."""

from __future__ import annotations

import asyncio
import os
import re
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

BUSY_FIGURES = ("rss_bytes", "descriptors", "threads", "label_values")
HELD = "kv_bytes"
"""Of sessions. Goes up and down with what is asked, and says something only while nothing is."""
DOCUMENTS_HELD = "document_kv_bytes"
"""Of documents that are kept, which has a budget."""
PREFIX = "tandem_"
_METRICS_TIMEOUT_S = 10.0
_SERIES = re.compile(r"(?P<name>[^{ ]+)(?:{(?P<labels>.*)})? (?P<value>\S+)")
_LABEL = re.compile(r'(?P<label>\w+)="(?P<value>(?:[^"\\]|\\.)*)"')
_BUCKETS = "le"
"""The label that tells buckets of a histogram apart: they are declared."""


@dataclass(slots=True)
class Samples:
    """Samples of some figures, by service and figure, each as long as `times_s`."""

    figures: tuple[str, ...]
    times_s: list[float] = field(default_factory=list)
    values: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    async def take(self, pids: Mapping[str, int], metrics: Mapping[str, str]) -> None:
        """Take one sample of each service; `metrics` are the addresses of their metrics endpoints.
        A service that does not answer in time (it may be paused) keeps its last figures."""
        self.times_s.append(time.monotonic())
        for name, pid in pids.items():
            figures = _of_process(pid)
            with suppress(OSError):
                text = await asyncio.to_thread(_read, metrics[name])
                figures |= of_metrics(text)
            for figure in self.figures:
                values = self.values.setdefault((name, figure), [])
                values.append(figures.get(figure, values[-1] if values else 0.0))


def _of_process(pid: int) -> dict[str, float]:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    status = dict(line.split(":", 1) for line in lines if ":" in line)
    return {
        "rss_bytes": float(status["VmRSS"].split()[0]) * 1024,
        "threads": float(status["Threads"]),
        "descriptors": float(len(os.listdir(f"/proc/{pid}/fd"))),
    }


def _read(address: str) -> str:
    url = f"http://{address}/metrics"
    with urllib.request.urlopen(url, timeout=_METRICS_TIMEOUT_S) as answer:
        text: str = answer.read().decode()
        return text


def of_metrics(text: str) -> dict[str, float]:
    """Return the figures of a metrics page: the bytes of keys and values of sessions and of kept
    documents, and the number of values that all labels have together, a metric's name being one
    too. The series themselves say less: there is one for each combination of values that occurred,
    and rare ones occur late. Where every label's values are known, there is an end of them."""
    values = set[tuple[str, str]]()
    sums = dict.fromkeys((HELD, DOCUMENTS_HELD), 0.0)
    for line in text.splitlines():
        if line.startswith("#") or not (series := _SERIES.fullmatch(line)):
            continue
        name = series["name"].removeprefix(PREFIX)
        values.add(("", name))
        values |= {(label, value) for label, value in _LABEL.findall(series["labels"] or "")}
        if name in sums:
            sums[name] += float(series["value"])
    return {"label_values": float(sum(label != _BUCKETS for label, _ in values)), **sums}
