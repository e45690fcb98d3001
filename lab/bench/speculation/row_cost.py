"""What it takes to get a token, or a distribution, out of a row of logits in this machine's memory.

Rows of a large vocabulary, shaped like a language model's, on one core; last comes the rule as it
is written: softmax, then noise for every token.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np

from lab.bench.harness.report import Row, make_row
from lab.bench.harness.zipf_distributions import ZipfDistributions
from lab.machine import pinned, usable_cores
from tandem.core.distribution import LogitsDistribution
from tandem.core.gumbel import gumbel
from tandem.core.probs import Array, SamplingParams, probs_from_logits

VOCABULARY = 151_936
EXPONENT = 1.2
NOISE = 0.5
DIFFERENT_ROWS = 8

Taking = Callable[[Array, int], object]


def measure_row_cost(seed: int, repeats: int) -> list[Row]:
    """Return a row for each kind; `row_median_s` is of `repeats` rows of logits."""
    synthetic = ZipfDistributions(VOCABULARY, EXPONENT, NOISE, seed)
    logits = [np.log(synthetic.draft((number,))) for number in range(DIFFERENT_ROWS)]
    with pinned(usable_cores()[0]):
        return [_row(kind, _durations(take, logits, repeats), seed) for kind, take in KINDS.items()]


def _durations(take: Taking, logits: list[Array], repeats: int) -> list[float]:
    durations = []
    for repeat in range(DIFFERENT_ROWS + repeats):
        started_s = time.perf_counter()
        take(logits[repeat % DIFFERENT_ROWS], repeat)
        durations.append(time.perf_counter() - started_s)
    return durations[DIFFERENT_ROWS:]


def _row(kind: str, durations: list[float], seed: int) -> Row:
    return make_row(
        part="row",
        kind=kind,
        seed=seed,
        vocabulary=VOCABULARY,
        row_median_s=median(durations),
        row_fastest_s=min(durations),
        rows=len(durations),
    )


def _coupled(sampling: SamplingParams, logits: Array, position: int) -> int:
    return LogitsDistribution(logits, sampling).coupled_token(1, position)


def _as_written(logits: Array, position: int) -> int:
    log_probs = np.log(probs_from_logits(logits, SamplingParams()), dtype=np.float64)
    return int((log_probs + gumbel(1, position, np.arange(len(logits)))).argmax())


COUPLED = "coupled"
KINDS: dict[str, Taking] = {
    COUPLED: partial(_coupled, SamplingParams()),
    "coupled, top-k 50": partial(_coupled, SamplingParams(top_k=50)),
    "coupled, top-p 0.9": partial(_coupled, SamplingParams(top_p=0.9)),
    "greedy": partial(_coupled, SamplingParams(temperature=0)),
    "whole distribution": lambda logits, _: LogitsDistribution(logits, SamplingParams()).probs,
    "coupled, as written": _as_written,
}
