"""`bench hf`: tokens per second over loopback gRPC against Hugging Face assisted generation.

The same pair, precision, prompts, number of tokens and temperature. Ours runs as edge and cloud
processes with one core each; the peer is one process with both cores, given one torch thread and
two. Both sides try several draft lengths, and each side's best counts. Configurations take turns,
so that load from elsewhere meets all alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from lab.bench.harness.peer_process import PeerProcess, running_worker
from lab.bench.harness.plots import bars
from lab.bench.harness.report import Goal, Report, Row, counted, make_row
from lab.bench.harness.suite import Models, Suite, running_suite
from lab.bench.harness.texts import prompts
from lab.bench.harness.workload import answers_row, one_after_another, requests
from lab.machine import pin
from tandem.core.probs import SamplingParams
from tandem.generation.client import Generated
from tandem.net.process import run_loop

SPEED_LIMIT = 1.3
PRESETS = ("coupled", "dssd", "dsd")
DRAFT_LENGTHS = (3, 4, 6, 8, 12)
POLICIES: tuple[int | str, ...] = ("default", *DRAFT_LENGTHS)
THREADS = (1, 2)
PROMPTS_A_TURN = 2

COLUMNS = (
    "method",
    "draft_length",
    "threads",
    "temperature",
    "tokens_per_s",
    "tpot_s",
    "ttft_s",
    "acceptance_rate",
    "target_passes_per_token",
    "tokens",
)


class Configuration(Protocol):
    """One configuration of either side, with its sums over all turns."""

    def take_turn(self, texts: Sequence[str], max_tokens: int, seed: int) -> None:
        """Answer these prompts."""

    def row(self) -> Row:
        """Return the figures of all turns so far."""


def run(report: Report, models: Models) -> None:
    """Fill the report for temperature 1 and 0, with one goal each."""
    turns, max_tokens = (1, 64) if report.quick else (8, 128)
    with ExitStack() as stack:
        suite = stack.enter_context(running_suite(models))
        peers = {n: stack.enter_context(running_peer(models, n)) for n in THREADS}
        for temperature in (1.0, 0.0):
            configurations = _configurations(suite, peers, temperature, report.quick)
            _warm(configurations, report.seed)
            _take_turns(configurations, turns, max_tokens, report.seed)
            _add(report, [configuration.row() for configuration in configurations], temperature)
    report.notes.append(
        "hf-assisted is transformers' generate(assistant_model=…) with both cores; "
        "'default' is its own draft policy (20 tokens, stopped by a confidence threshold). "
        "Ours is edge and cloud over loopback gRPC, one core each. Best against best counts."
    )


def _configurations(
    suite: Suite, peers: dict[int, PeerProcess], temperature: float, quick: bool
) -> list[Configuration]:
    lengths = DRAFT_LENGTHS[1::2] if quick else DRAFT_LENGTHS
    policies = ("default", *lengths) if quick else POLICIES
    ours: list[Configuration] = [
        TandemConfiguration(suite, preset, length, temperature)
        for preset in PRESETS
        for length in lengths
    ]
    ours.append(TandemConfiguration(suite, "ar", None, temperature))
    theirs: list[Configuration] = [
        PeerConfiguration(peer, threads, policy, temperature)
        for threads, peer in peers.items()
        for policy in (None, *policies)
    ]
    return ours + theirs


def _warm(configurations: Sequence[Configuration], seed: int) -> None:
    for configuration in configurations:
        configuration.take_turn(prompts(1), 8, seed)
        configuration.answers.clear()  # type: ignore[attr-defined]


def _take_turns(
    configurations: Sequence[Configuration], turns: int, max_tokens: int, seed: int
) -> None:
    texts = prompts(turns * PROMPTS_A_TURN)
    for turn in counted(range(turns), lambda turn: "both take a turn"):
        some = texts[turn * PROMPTS_A_TURN : (turn + 1) * PROMPTS_A_TURN]
        for configuration in configurations:
            configuration.take_turn(some, max_tokens, seed + turn * PROMPTS_A_TURN)


def _add(report: Report, rows: list[Row], temperature: float) -> None:
    for row in rows:
        row |= {"temperature": temperature, "seed": report.seed}
    report.add(f"Unpaced, float32, temperature {temperature:g}", COLUMNS, rows)
    ours = _best(rows, lambda row: row["preset"] in PRESETS)
    theirs = _best(rows, lambda row: row["method"] == "hf-assisted")
    report.goals.append(
        Goal(
            f"temperature {temperature:g}: {ours['method']} n={ours['draft_length']} ÷ "
            f"hf-assisted n={theirs['draft_length']} on {theirs['threads']} thread(s), tokens/s",
            ours["tokens_per_s"] / theirs["tokens_per_s"],
            SPEED_LIMIT,
            "at least",
        )
    )


def _best(rows: Sequence[Row], chosen: Any) -> Row:
    return max((row for row in rows if chosen(row)), key=lambda row: row["tokens_per_s"])


@dataclass(slots=True)
class TandemConfiguration:
    """A preset of the running suite, with further choices of it; `threads` names the cores that
    the two sides have."""

    suite: Suite
    preset: str
    draft_length: int | None
    temperature: float
    overrides: tuple[str, ...] = ()
    threads: str = "1 + 1"
    answers: list[Generated] = field(default_factory=list)

    def take_turn(self, texts: Sequence[str], max_tokens: int, seed: int) -> None:
        sampling = SamplingParams(temperature=self.temperature)
        options = (self.preset, self.draft_length, max_tokens, seed, sampling, self.overrides)
        pin(0, self.suite.edge_cores)
        self.answers += run_loop(one_after_another(self.suite, requests(texts, *options)))

    def row(self) -> Row:
        row = answers_row(self.preset, self.draft_length, self.answers)
        return row | {"method": self.preset, "threads": self.threads}


@dataclass(slots=True)
class PeerConfiguration:
    """A policy of a peer; None is the target alone. `methods` names what it does alone, with a
    draft model, and by looking drafts up."""

    peer: PeerProcess
    threads: int
    policy: int | str | dict[str, int] | None
    temperature: float
    methods: tuple[str, str, str] = ("hf-plain", "hf-assisted", "hf-lookup")
    answers: list[dict[str, Any]] = field(default_factory=list)

    def take_turn(self, texts: Sequence[str], max_tokens: int, seed: int) -> None:
        self.answers.append(
            self.peer.answer(
                {
                    "prompts": list(texts),
                    "max_tokens": max_tokens,
                    "temperature": self.temperature,
                    "seed": seed,
                    "assistant": self.policy,
                }
            )
        )

    def row(self) -> Row:
        sums = {name: sum(answer[name] for answer in self.answers) for name in _SUMMED}
        first_s = [moment for answer in self.answers for moment in answer["first_s"]]
        tokens = sums["tokens"]
        drafted = sums["drafted"]
        alone, assisted, looking_up = self.methods
        # A pass yields its accepted drafts and one token more.
        accepted = tokens - sums["target_passes"]
        return make_row(
            preset=None,
            method=alone
            if self.policy is None
            else looking_up
            if isinstance(self.policy, dict)
            else assisted,
            draft_length=self.policy["lookup"] if isinstance(self.policy, dict) else self.policy,
            threads=self.threads,
            tokens_per_s=tokens / sums["duration_s"],
            tpot_s=sums["decoding_s"] / (tokens - len(first_s)),
            ttft_s=median(first_s),
            acceptance_rate=accepted / drafted if drafted else None,
            target_passes_per_token=sums["target_passes"] / tokens,
            prompts=len(first_s),
            tokens=tokens,
        )


_SUMMED = ("tokens", "duration_s", "decoding_s", "target_passes", "drafted")


@contextmanager
def running_peer(models: Models, threads: int) -> Iterator[PeerProcess]:
    """Run a worker with both cores and `threads` torch threads while the context is open."""
    module = "lab.bench.speculation.hugging_face_worker"
    pair = (models.draft, models.target, "cpu")
    with running_worker(module, pair, threads) as peer:
        yield peer


def draw(report: Report, folder: Path) -> None:
    for temperature in (1.0, 0.0):
        rows = [row for row in report.rows if row["temperature"] == temperature]
        best: dict[str, float] = {}
        for row in rows:
            name = row["method"]
            best[name] = max(best.get(name, 0.0), row["tokens_per_s"])
        bars(
            folder / f"hf-temperature-{temperature:g}.png",
            best,
            ylabel="tokens/s, best configuration",
            title=f"Same pair, two cores, temperature {temperature:g}",
        )
