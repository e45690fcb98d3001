"""The in-situ round overhead: what a round takes beside the two models, unpaced, over loopback.

Drafter and verifier are processes on different cores; the figure is the median over rounds of round
time minus model time on both sides, as the drafter reports it with each answer.
"""

from __future__ import annotations

from statistics import median

from lab.bench.harness.report import Row, progress
from lab.bench.harness.suite import Models, running_suite
from lab.bench.harness.texts import prompts
from lab.bench.harness.workload import (
    add_speedups,
    answers_row,
    one_after_another,
    requests,
    summary_of,
    total,
)
from lab.bench.speculation.bare_round_trip import measure_bare_round_trip, weight_bytes
from lab.bench.speculation.bare_tcp import measure_bare_tcp
from tandem.net.process import run_loop

PRESETS = ("ar", "dsd", "dssd", "coupled")
DRAFT_LENGTH = 4


def measure_round_overhead(models: Models, answers: int, max_tokens: int, seed: int) -> list[Row]:
    """Return one row per preset; `round_overhead_median_s` is None for `ar`, which has no
    rounds."""
    texts = prompts(answers)
    bare_s, tcp_s = _floors_s(models, 40 * answers)
    rows = []
    with running_suite(models) as suite:
        run_loop(one_after_another(suite, requests(texts[:1], "coupled", None, 16, seed)))  # warm
        for preset in PRESETS:
            progress(f"round overhead, {preset}")
            before = suite.cpu_s()
            wanted = requests(texts, preset, DRAFT_LENGTH, max_tokens, seed)
            done = run_loop(one_after_another(suite, wanted))
            edge_s, cloud_s = (now - then for now, then in zip(suite.cpu_s(), before, strict=True))
            tokens, rounds = total(done, "tokens"), total(done, "rounds")
            overheads = [summary_of(answer).round_overhead_median_s for answer in done]
            row = answers_row(preset, DRAFT_LENGTH if rounds else None, done)
            rows.append(
                row
                | {
                    "part": "round_overhead",
                    "seed": seed,
                    "round_overhead_median_s": median(overheads) if rounds else None,
                    "bare_round_trip_s": bare_s if rounds else None,
                    "bare_tcp_s": tcp_s if rounds else None,
                    "draft_step_s": total(done, "draft_s") / max(1, total(done, "drafted")),
                    "verify_step_s": total(done, "verify_s") / max(1, rounds or tokens),
                    "edge_cpu_s_per_token": edge_s / tokens,
                    "cloud_cpu_s_per_token": cloud_s / tokens,
                }
            )
    add_speedups(rows)
    return rows


def _floors_s(models: Models, rounds: int) -> tuple[float, float] | tuple[None, None]:
    """Return the floors of a round overhead between two processes that read through these models'
    weights: over a gRPC stream, and over a socket. Both are None where a model has no files of
    weights."""
    sizes = weight_bytes(models.draft), weight_bytes(models.target)
    if sizes[0] is None or sizes[1] is None:
        return None, None
    progress("round overhead of a bare stream")
    through = (sizes[0], sizes[1], DRAFT_LENGTH, rounds)
    return measure_bare_round_trip(*through), measure_bare_tcp(*through)
