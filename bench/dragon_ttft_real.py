"""Time to the first token of two-sided answers by real processes, paced like the declared hardware.

The demo's documents and questions, of some twenty tokens. The documents' keys and values are in
memory, but for those of what `drcg-text` fetches. Must not import torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from bench.dragon_real import QUESTIONS, Pass, running_sides
from bench.report import Goal, Row, make_row, progress
from bench.suite import Models
from bench.workload import ANSWER_TIMEOUT_S
from tandem.rpc.aggregator_client import AggregatorClient
from tandem.rpc.generation import GenerationRequest
from tandem.rpc.process import run_loop

ONCE = "drcg-text"
"""Asked once, at the longest link, before its documents are known at the device."""
PRESETS = ("crcg-device", "dragon", "dragon-coupled")
COLUMNS = ("preset", "rtt_s", "ttft_s", "over_device_only")
LIMIT = 1.10


def measure_real(
    models: Models,
    device_pass: Pass,
    cloud_pass: Pass,
    added: Sequence[float],
    base_rtt_s: float,
    seed: int,
) -> list[Row]:
    """One row per added latency and preset."""
    rows: list[Row] = []
    with running_sides(models, device_pass, cloud_pass) as sides:
        run_loop(_first_tokens_s(sides.aggregator, "dragon", seed))  # brings keys into memory
        for added_s in added:
            rtt_s = base_rtt_s + added_s
            sides.link.set(rtt_s, None)
            names = (*PRESETS, ONCE) if added_s == max(added) else PRESETS
            measured = {}
            for name in names:
                progress(f"real processes, {added_s * 1e3:g} ms added, {name}")
                measured[name] = fmean(run_loop(_first_tokens_s(sides.aggregator, name, seed)))
            rows += [
                make_row(
                    preset=name,
                    rtt_s=rtt_s,
                    seed=seed,
                    ttft_s=ttft_s,
                    part="real",
                    added_s=added_s,
                    over_device_only=ttft_s / measured["crcg-device"],
                )
                for name, ttft_s in measured.items()
            ]
    return rows


async def _first_tokens_s(aggregator: str, preset: str, seed: int) -> list[float]:
    found = []
    async with AggregatorClient(aggregator) as client:
        for number, question in enumerate(QUESTIONS):
            request = GenerationRequest(
                question, preset, max_tokens=2, seed=seed + number, ignore_eos=True
            )
            answer = await client.generate(request, ANSWER_TIMEOUT_S)
            assert answer.ttft_s is not None, "two tokens came"
            found.append(answer.ttft_s)
    return found


def real_goals(rows: Sequence[Row]) -> list[Goal]:
    return [
        Goal(
            f"{name}'s TTFT over device-only, real processes",
            max(row["over_device_only"] for row in rows if row["preset"] == name),
            LIMIT,
            "at most",
        )
        for name in ("dragon", "dragon-coupled")
    ]
