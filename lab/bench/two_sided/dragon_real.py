"""Two-sided answers by real processes: paced engines, retrievers, both aggregators, a link between.
The demo's documents and questions."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.bench.harness.models import Models
from lab.bench.harness.report import progress
from lab.bench.harness.suite import COMMON, LinkController, PinnedProcess
from lab.bench.harness.workload import ANSWER_TIMEOUT_S
from lab.machine import pinned, usable_cores
from tandem.generation.client import AggregatorClient, Generated
from tandem.generation.request import GenerationRequest
from tandem.net.process import run_loop
from tandem.specdec.messages import GenerationParams
from tandem.suite.suite_documents import demo_documents, fill
from tandem.two_sided.protocol.mixture import Side
from tandem_api.common.v1.generation_pb2 import SideSummary

PRESETS = ("drdg-tw", "crcg-device", "dragon-coupled", "dragon")
WARM_UP_TOKENS = 2
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


@contextmanager
def running_sides(models: Models, step_s: float) -> Iterator[TwoSidedProcesses]:
    """Run all services on free ports while the context is open, each side on another core, filled
    with the demo's documents; a pass takes `step_s`. Raises SuiteFailed when one does not start."""
    pace = (*COMMON, "--pace-first-s", str(step_s))
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
        verifier = start("tandem.testing.verifier", cloud_core, *pace, "--model", models.target)
        cloud = start(
            *("tandem.services.aggregator", cloud_core, *COMMON, "--side", "cloud"),
            *("--decoder", verifier.address, "--retriever", pages.address),
        )
        emulator = start("lab.bench.harness.link_process", cloud_core, cloud.address)
        drafter_flags = (*pace, "--model", models.draft, "--verifier", verifier.address)
        drafter = start("tandem.testing.drafter", device_core, *drafter_flags)
        device = start(
            *("tandem.services.aggregator", device_core, *COMMON, "--http", "false"),
            *("--drafter", drafter.address, "--retriever", notes.address),
            *("--cloud", emulator.address),
        )
        stack.enter_context(pinned(device_core))
        yield TwoSidedProcesses(device.address, LinkController(emulator.words[2]))


def answers_of_sides(
    models: Models, rtt_s: float, tokens: int, seed: int, step_s: float
) -> dict[str, list[Generated]]:
    """Return every preset's answers to QUESTIONS, without jitter: question by question each preset
    in turn, so that what changes on the machine falls on all."""
    found: dict[str, list[Generated]] = {name: [] for name in PRESETS}
    with running_sides(models, step_s) as sides:
        sides.link.set(rtt_s, None)
        for number, name in [
            (number, name) for number in range(len(QUESTIONS)) for name in PRESETS
        ]:
            progress(f"real processes, {name}, question {number + 1} of {len(QUESTIONS)}")
            if not number:
                run_loop(_answer(sides.aggregator, name, number, WARM_UP_TOKENS, seed))
            found[name].append(run_loop(_answer(sides.aggregator, name, number, tokens, seed)))
    return found


async def _answer(aggregator: str, preset: str, number: int, tokens: int, seed: int) -> Generated:
    params = GenerationParams(max_tokens=tokens, seed=seed + number, ignore_eos=True)
    async with AggregatorClient(aggregator) as client:
        request = GenerationRequest(QUESTIONS[number], preset, params)
        return await client.generate(request, ANSWER_TIMEOUT_S)


def acceptance_of(done: Sequence[Generated], side: Side) -> float | None:
    """Return the share of a side's drafts that became tokens of the answers; None where it made
    none."""
    figures = [_of_side(one, side) for one in done]
    drafted = sum(figure.drafted for figure in figures)
    return sum(figure.accepted for figure in figures) / drafted if drafted else None


def _of_side(one: Generated, side: Side) -> SideSummary:
    assert one.summary is not None, "the answer is complete"
    return one.summary.device if side is Side.DEVICE else one.summary.cloud
