"""Two-sided answers by real processes: paced engines, retrievers, both aggregators, a link between.
The demo's documents and questions."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.bench.harness.models import Models
from lab.bench.harness.report import Row, make_row, progress
from lab.bench.harness.suite import COMMON, LinkController, PinnedProcess
from lab.bench.harness.workload import ANSWER_TIMEOUT_S, measured_tpot_s
from lab.bench.two_sided.dragon_latency import Times
from lab.machine import pinned, usable_cores
from tandem.generation.client import AggregatorClient, Generated
from tandem.generation.request import GenerationRequest
from tandem.net.process import run_loop
from tandem.specdec.messages import GenerationParams
from tandem.suite.suite_documents import demo_documents, fill
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import (
    AGGREGATION_PRESETS,
    AggregationPreset,
)
from tandem_api.common.v1.generation_pb2 import Summary

PRESETS = ("crcg-device", "drdg-tw", "dragon-device", "dragon-coupled", "dragon")
QUESTIONS = (
    "How long is a Python release maintained, and which ones does Heron support?",
    "What does the linter refuse, and which exception swallowed the first error?",
    "Where does the time go when the solver waits for the interpreter lock?",
)


@dataclass(frozen=True, slots=True)
class TwoSidedProcesses:
    """The device's front, and the link to the cloud's aggregator."""

    aggregator: str
    link: LinkController


@dataclass(frozen=True, slots=True)
class Pass:
    """Declared: a forward pass for one token, what each further one of its longest sequence adds,
    and what each of its other sequences."""

    first_s: float
    further_s: float = 0.0
    batch_s: float = 0.0

    def flags(self, model: str) -> tuple[str, ...]:
        """Return the flags of a service that computes `model`."""
        paces = ("--pace-first-s", str(self.first_s), "--pace-further-s", str(self.further_s))
        return (*COMMON, "--model", model, *paces, "--pace-batch-s", str(self.batch_s))


@contextmanager
def running_sides(
    models: Models, device_pass: Pass, cloud_pass: Pass
) -> Iterator[TwoSidedProcesses]:
    """Run all services on free ports while the context is open, each side on another core, filled
    with the demo's documents. Raises SuiteFailed when one does not start."""
    device_core, cloud_core = usable_cores()[0], usable_cores()[-1]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def start(name: str, core: int, *flags: str) -> PinnedProcess:
            return stack.enter_context(PinnedProcess(name, flags, core))

        def start_retriever(side: str, core: int) -> PinnedProcess:
            options = ("--role", side, "--folder", str(folder / side), "--embedding", "lexical")
            return start("tandem.services.retriever", core, *COMMON, *options)

        notes = start_retriever("device", device_core)
        pages = start_retriever("cloud", cloud_core)
        run_loop(fill(demo_documents(), {"device": notes.address, "cloud": pages.address}))
        verifier = start("tandem.testing.verifier", cloud_core, *cloud_pass.flags(models.target))
        cloud = start(
            *("tandem.services.aggregator", cloud_core, *COMMON, "--side", "cloud"),
            *("--decoder", verifier.address, "--retriever", pages.address),
        )
        emulator = start("lab.bench.harness.link_process", cloud_core, cloud.address)
        drafter_flags = (*device_pass.flags(models.draft), "--verifier", verifier.address)
        drafter = start("tandem.testing.drafter", device_core, *drafter_flags)
        device = start(
            *("tandem.services.aggregator", device_core, *COMMON, "--http", "false"),
            *("--drafter", drafter.address, "--retriever", notes.address),
            *("--cloud", emulator.address),
        )
        stack.enter_context(pinned(device_core))
        yield TwoSidedProcesses(device.address, LinkController(emulator.words[2]))


def measure_real(
    models: Models,
    added: Sequence[float],
    base_rtt_s: float,
    tokens: int,
    seed: int,
    step_s: float,
) -> list[Row]:
    """Return one row per added latency and preset, without jitter. `step_s`: the paced decoding
    step of either side."""
    rows = []
    with running_sides(models, Pass(step_s), Pass(step_s)) as sides:
        for added_s in added:
            times = Times(step_s, step_s, base_rtt_s + added_s)
            sides.link.set(times.rtt_s, None)
            for preset in (AGGREGATION_PRESETS[name] for name in PRESETS):
                progress(f"real processes, {added_s * 1e3:g} ms added, {preset.name}")
                done = run_loop(_answers(sides.aggregator, preset, tokens, seed))
                rows.append(_row(preset, times, added_s, done, seed))
    return rows


async def _answers(
    aggregator: str, preset: AggregationPreset, tokens: int, seed: int
) -> list[Generated]:
    """Return the answers to the questions, asked one after the other, after one that brings the
    documents' keys into memory."""
    requests = [
        GenerationRequest(
            question,
            preset.name,
            GenerationParams(max_tokens=tokens, seed=seed + number, ignore_eos=True),
        )
        for number, question in enumerate(QUESTIONS)
    ]
    async with AggregatorClient(aggregator) as client:
        await client.generate(requests[0], ANSWER_TIMEOUT_S)
        return [await client.generate(request, ANSWER_TIMEOUT_S) for request in requests]


def _row(
    preset: AggregationPreset, times: Times, added_s: float, done: Sequence[Generated], seed: int
) -> Row:
    tokens = sum(len(one.token_ids) for one in done)
    tpot_s = measured_tpot_s(done)
    rates = {side: _rate(done, side) for side in Side}
    return make_row(
        preset=preset.name,
        pacing=f"both {times.device_s * 1e3:g} ms",
        rtt_s=times.rtt_s,
        seed=seed,
        tokens_per_s=1 / tpot_s,
        tpot_s=tpot_s,
        ttft_s=sum(one.ttft_s or 0.0 for one in done) / len(done),
        uplink_bytes_per_token=sum(_summary(one).uplink_bytes for one in done) / tokens,
        downlink_bytes_per_token=sum(_summary(one).downlink_bytes for one in done) / tokens,
        part="real",
        added_s=added_s,
        device_acceptance=rates[Side.DEVICE],
        cloud_acceptance=rates[Side.CLOUD],
        side_moves=sum(_summary(one).side_moves for one in done) / len(done),
    )


def _rate(done: Sequence[Generated], side: Side) -> float | None:
    figures = [_summary(one).device if side is Side.DEVICE else _summary(one).cloud for one in done]
    drafted = sum(figure.drafted for figure in figures)
    return sum(figure.accepted for figure in figures) / drafted if drafted else None


def _summary(one: Generated) -> Summary:
    assert one.summary is not None, "the answer is complete"
    return one.summary
