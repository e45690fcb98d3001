"""What a worker of another program tells of a set of prompts. Imports nothing but the standard
library: workers run in environments of their own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class GenerationSums:
    """Sums over the prompts of one request; `first_s` are times to the first token, `texts` the
    answers' token ids, where the program tells them."""

    tokens: int = 0
    duration_s: float = 0.0
    decoding_s: float = 0.0
    first_s: list[float] = field(default_factory=list)
    target_passes: int = 0
    drafted: int = 0
    texts: list[list[int]] = field(default_factory=list)


def add_timings(sums: GenerationSums, answer: dict[str, Any], duration_s: float) -> None:
    """Add an answer of llama.cpp's server, which reports its times and how many drafts it kept.
    Raises SystemExit for an answer without times."""
    if "timings" not in answer:
        raise SystemExit(f"llama.cpp's server: {answer}")
    timings = answer["timings"]
    tokens = timings["predicted_n"]
    sums.tokens += tokens
    sums.duration_s += duration_s
    sums.first_s.append(timings["prompt_ms"] / 1000)
    sums.decoding_s += timings["predicted_ms"] / 1000
    sums.drafted += timings.get("draft_n", 0)
    sums.target_passes += tokens - timings.get("draft_n_accepted", 0)


def serve(load: Callable[[], Callable[[dict[str, Any]], GenerationSums]]) -> None:
    """Call `load` for the function that answers requests and print `ready`; then answer each line
    of standard input, a request in JSON, with a line of sums. What a library itself writes to
    standard output is dropped."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    answer = load()
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(asdict(answer(json.loads(line)))), file=answers, flush=True)
