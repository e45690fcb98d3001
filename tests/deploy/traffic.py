"""Answers over HTTP while things break: what came, when, and how it ended."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import requests

TIMEOUT_S = 150.0
BROKEN = "connection broken"


@dataclass(slots=True)
class Answer:
    """A streamed answer. Times are `time.time()`; `status` is "ok", an error's code, or BROKEN."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    token_sources: list[str] = field(default_factory=list)
    arrivals_s: list[float] = field(default_factory=list)
    status: str = "ok"
    http_status: int = 200
    ended_s: float = 0.0
    figures: Mapping[str, Any] = field(default_factory=dict)
    began: threading.Event = field(default_factory=threading.Event)

    def longest_silence_s(self) -> float:
        """Between two arrivals, or the last of them and the end."""
        times = [*self.arrivals_s, self.ended_s]
        return max((after - before for before, after in pairwise(times)), default=0.0)

    def first_after(self, moment_s: float) -> float:
        """Seconds from `moment_s` to the next arrival; infinite where none came."""
        return min((at - moment_s for at in self.arrivals_s if at > moment_s), default=float("inf"))


def completion(
    preset: str, seed: int, max_tokens: int = 160, lost_cloud: str = "wait"
) -> dict[str, Any]:
    """A request for text that the demo pair can continue for long, in many small rounds.

    Not kept in the drafter's memory: a remembered text would be over too soon to be disturbed.
    """
    return {
        "model": "demo-target",
        "prompt": "A list of things that one can find in a house:",
        "max_tokens": max_tokens,
        "seed": seed,
        "stream": True,
        "store": False,
        "tandem": {
            "preset": preset,
            "draft_length": 1,
            "provenance": True,
            "lost_cloud": lost_cloud,
        },
    }


def from_documents(lost_cloud: str = "wait") -> dict[str, Any]:
    """A request that both aggregators answer together, from documents on both sides."""
    options = {"preset": "dragon", "rag": True, "provenance": True, "lost_cloud": lost_cloud}
    prompt = "When does the harbour of Brimmond freeze?"
    body = {"model": "demo-target", "prompt": prompt, "max_tokens": 120, "seed": 0}
    return {**body, "stream": True, "store": False, "tandem": options}


def ask(endpoint: str, body: Mapping[str, Any], answer: Answer | None = None) -> Answer:
    """To its end, whatever that is."""
    answer = answer or Answer()
    try:
        with requests.post(
            f"http://{endpoint}/v1/completions", json=body, stream=True, timeout=TIMEOUT_S
        ) as response:
            answer.http_status = response.status_code
            if response.status_code != 200:
                answer.status = str(response.json()["error"]["code"])
            else:
                _read(response, answer)
    except (requests.RequestException, OSError):
        answer.status = BROKEN
    answer.ended_s = time.time()
    answer.began.set()
    return answer


def _read(response: requests.Response, answer: Answer) -> None:
    ended = False
    for line in response.iter_lines(chunk_size=1):
        if not line.startswith(b"data: "):
            continue
        if line == b"data: [DONE]":
            ended = True
            continue
        event = json.loads(line[len(b"data: ") :])
        if "error" in event:
            answer.status = str(event["error"]["code"])
            continue
        _take(event["choices"][0], answer)
    if not ended:
        answer.status = BROKEN


def _take(choice: Mapping[str, Any], answer: Answer) -> None:
    answer.text += choice["text"]
    tandem = choice.get("tandem", {})
    tokens = tandem.get("provenance", [])
    if tokens:
        answer.token_ids += [token["id"] for token in tokens]
        answer.token_sources += [token["source"] for token in tokens]
        answer.arrivals_s.append(time.time())
        answer.began.set()
    if choice["finish_reason"] is not None:
        answer.figures = tandem


class Traffic:
    """Several answers at once, each on a thread of its own."""

    def __init__(self, endpoint: str, bodies: Sequence[Mapping[str, Any]]) -> None:
        self._pool = ThreadPoolExecutor(len(bodies))
        self._answers = [Answer() for _ in bodies]
        self._futures: list[Future[Answer]] = [
            self._pool.submit(ask, endpoint, body, answer)
            for body, answer in zip(bodies, self._answers, strict=True)
        ]

    def wait_until_all_flow(self, timeout_s: float = 60.0) -> None:
        """Until each answer has its first token."""
        for answer in self._answers:
            assert answer.began.wait(timeout_s)
            assert answer.status == "ok", answer
            assert answer.ended_s == 0.0, "it ended before anything could break"

    def results(self) -> list[Answer]:
        """When all have ended."""
        with self._pool:
            return [future.result(TIMEOUT_S) for future in self._futures]
