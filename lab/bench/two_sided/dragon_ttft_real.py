"""Time to the first token of two-sided answers by real processes, paced like the declared hardware.

The demo's documents and questions, of some twenty tokens. The documents' keys and values are in
memory, but for those of what `drcg-text` and `drcg-kv` fetch. Keys and values are of use to the
model that made them only, so `drcg-kv` runs with the device's model at both sides, paced like the
others; its link has a bandwidth, since it sends megabytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from lab.bench.harness.report import Goal, Row, make_row, progress
from lab.bench.harness.suite import Models
from lab.bench.harness.workload import ANSWER_TIMEOUT_S
from lab.bench.two_sided.dragon_real import QUESTIONS, Pass, running_sides
from tandem.generation.client import AggregatorClient
from tandem.generation.request import GenerationRequest
from tandem.net.process import run_loop
from tandem.specdec.messages import GenerationParams

DEVICE_ONLY = "crcg-device, separate"
"""The device alone with one sequence a document, whose keys and values are all at hand."""
ONCE = "drcg-text"
"""Asked once, at the longest link, before its documents are known at the device."""
PRESETS = (DEVICE_ONLY, "crcg-device", "dragon", "dragon-coupled")
ONE_MODEL = "drcg-kv"
"""Asked once too, of a suite whose two sides have the device's model."""
COLUMNS = ("preset", "rtt_s", "mbps", "ttft_s", "over_device_only", "fetched_bytes")
LIMIT = 1.10


def measure_real(
    models: Models,
    device_pass: Pass,
    cloud_pass: Pass,
    added: Sequence[float],
    base_rtt_s: float,
    mbps: float,
    seed: int,
) -> list[Row]:
    """Return one row per added latency and preset; `mbps` is the bandwidth that keys and values
    travel at."""
    rows: list[Row] = []
    with running_sides(models, device_pass, cloud_pass) as sides:
        run_loop(_first_tokens(sides.aggregator, "dragon", seed))  # brings keys into memory
        for added_s in added:
            rtt_s = base_rtt_s + added_s
            sides.link.set(rtt_s, None)
            names = (*PRESETS, ONCE) if added_s == max(added) else PRESETS
            measured = {}
            for name in names:
                progress(f"real processes, {added_s * 1e3:g} ms added, {name}")
                measured[name] = run_loop(_first_tokens(sides.aggregator, name, seed))
            rows += _rows(measured, rtt_s, added_s, None, seed)
    added_s = max(added)
    rtt_s = base_rtt_s + added_s
    one_model = replace(models, target=models.draft)
    with running_sides(one_model, device_pass, cloud_pass) as sides:
        for name in ("crcg-cloud", DEVICE_ONLY):  # the keys of each side's own documents
            run_loop(_first_tokens(sides.aggregator, name, seed))
        # No document has this word, so nothing travels; but both decoders then know the hash of
        # their weights.
        run_loop(_first_tokens(sides.aggregator, ONE_MODEL, seed, query="qqqq"))
        sides.link.set(rtt_s, mbps)
        measured = {}
        for name in (DEVICE_ONLY, ONE_MODEL):
            progress(f"real processes, one model, {added_s * 1e3:g} ms added, {name}")
            measured[name] = run_loop(_first_tokens(sides.aggregator, name, seed))
        return [*rows, *_rows(measured, rtt_s, added_s, mbps, seed)[1:]]


@dataclass(frozen=True, slots=True)
class _FirstToken:
    """When it came, and what had come to the device over the link by the answer's end."""

    ttft_s: float
    downlink_bytes: int


def _rows(
    measured: Mapping[str, Sequence[_FirstToken]],
    rtt_s: float,
    added_s: float,
    mbps: float | None,
    seed: int,
) -> list[Row]:
    """Return a row for each preset, in relation to the device alone."""
    means = {
        name: fmean(one.ttft_s for one in first_tokens) for name, first_tokens in measured.items()
    }
    return [
        make_row(
            preset=name,
            rtt_s=rtt_s,
            mbps=mbps,
            seed=seed,
            ttft_s=means[name],
            part="real",
            added_s=added_s,
            over_device_only=means[name] / means[DEVICE_ONLY],
            fetched_bytes=fmean(one.downlink_bytes for one in first_tokens),
        )
        for name, first_tokens in measured.items()
    ]


async def _first_tokens(
    aggregator: str, preset: str, seed: int, query: str = ""
) -> list[_FirstToken]:
    """Ask each question once, and return when its first token came.

    Args:
        aggregator: where to ask.
        preset: its name, and after a comma the context if that is another than the preset's.
        seed: of the first question; each further one has the next.
        query: what documents are searched for; empty: the question."""
    first_tokens = []
    async with AggregatorClient(aggregator) as client:
        for number, question in enumerate(QUESTIONS):
            name, _, context = preset.partition(", ")
            request = GenerationRequest(
                question,
                name,
                GenerationParams(max_tokens=2, seed=seed + number, ignore_eos=True),
                query=query,
                overrides=(f"context={context}",) if context else (),
            )
            answer = await client.generate(request, ANSWER_TIMEOUT_S)
            assert answer.ttft_s is not None, "two tokens came"
            assert answer.summary is not None, "the answer is complete"
            first_tokens.append(_FirstToken(answer.ttft_s, answer.summary.downlink_bytes))
    return first_tokens


def real_goals(rows: Sequence[Row]) -> list[Goal]:
    return [
        Goal(
            f"TTFT of {name} ÷ device only, real processes",
            max(row["over_device_only"] for row in rows if row["preset"] == name),
            LIMIT,
            "at most",
        )
        for name in ("dragon", "dragon-coupled")
    ]
