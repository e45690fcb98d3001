"""What a running service takes: memory, descriptors, threads, keys and values, metric series."""

from __future__ import annotations

import asyncio
import os
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

FIGURES = ("rss_bytes", "descriptors", "threads", "kv_bytes", "series")
_KV = ("tandem_kv_bytes", "tandem_document_kv_bytes")
_METRICS_TIMEOUT_S = 10.0


@dataclass(slots=True)
class Samples:
    """Samples by service and figure, each as long as `times_s`."""

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
                figures |= _of_metrics(text)
            for figure in FIGURES:
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


def _of_metrics(text: str) -> dict[str, float]:
    """Return the number of series on a metrics page, and its bytes of keys and values. A series is
    a name with labels, so each bucket of a histogram is one."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    kv = [line for line in lines if line.startswith(_KV) and "budget" not in line]
    return {
        "series": float(len(lines)),
        "kv_bytes": sum((float(line.rsplit(" ", 1)[1]) for line in kv), 0.0),
    }
