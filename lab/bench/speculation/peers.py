"""`bench peers`: tokens per second of one pair on two cores, ours beside what else people run.

Hugging Face's `generate` (the target alone, assisted, prompt lookup), llama.cpp's own server (alone
and with its speculative decoding) and vLLM, where that is installed; ours with PyTorch, with
llama.cpp on both sides, and with llama.cpp at the edge alone. The same prompts and number of
tokens. A peer is one process with both cores; ours are edge and cloud with one core each, and with
both cores for whoever computes, over loopback gRPC and over an emulated link. Ours without an edge
are there too: the target alone, and a cloud that drafts for itself. Of a pair that is GGUF files,
llama.cpp alone computes everything, with both cores: more copies have no room.
Configurations take turns, so that load from elsewhere meets all alike, and each method's best
counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from lab.bench.harness.baselines import ALONE, BASELINES, CLOUD_DRAFT
from lab.bench.harness.models import ROOT, Models
from lab.bench.harness.peer_process import running_worker
from lab.bench.harness.report import Goal, Report, Row, counted, progress
from lab.bench.harness.suite import running_suite
from lab.bench.harness.texts import prompts
from lab.bench.harness.workload import total
from lab.bench.speculation.peer_configurations import (
    THREADS,
    PeerConfiguration,
    TandemConfiguration,
)
from tandem.backends.model_source import is_gguf
from tandem.generation.client import Generated
from tools.write_gguf import write_gguf

RTTS_S = (0.0, 0.03)
TEMPERATURES = (0.0, 1.0)
DRAFT_LENGTHS = (2, 4, 8)
DRAFT_LENGTHS_QUICKLY = (2, 4)
SURE = ("confidence_threshold=0.5",)
"""A draft ends with the first token that its model is not sure of."""
KV_TYPE = "float16"
"""Of keys and values of a GGUF model, as llama.cpp's server has them."""
GGUF_KIND = "Q8_0"
VLLM_PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
TORCH = "torch"
GGUF_PAIR = "llamacpp"
GGUF_DRAFT = "llamacpp+torch"
"""The back ends of ours: of both models, or of draft and target."""
HUGGING_FACE = ("hf-plain", "hf-assisted", "hf-lookup")
LLAMACPP = ("llamacpp-plain", "llamacpp-speculative", "")
VLLM = ("vllm-plain", "vllm-speculative", "")
GOALS = {HUGGING_FACE: (TORCH, 1.3), LLAMACPP: (GGUF_PAIR, 1.0)}
"""Of ours with these back ends, relative to the best of those methods; of llama.cpp's server, with
its speculative decoding alone."""
OF_BARE = 0.95
"""Of our target alone, relative to llama.cpp's with the same threads."""
COLUMNS = (
    *("method", "engine", "draft_length", "threads", "temperature", "rtt_s", "tokens_per_s"),
    *("ratio_to_hf", "ratio_to_cloud", "tpot_s", "ttft_s", "acceptance_rate", "tokens"),
    *("draft_step_s", "verify_pass_s", "model_share"),
)


@dataclass(frozen=True, slots=True)
class Contender:
    """A configuration with the back end that computes it. `far` where its caller is at the other
    end of the link: an answer then takes a round trip more."""

    configuration: TandemConfiguration | PeerConfiguration
    engine: str
    far: bool

    def row(self, rtt_s: float, seed: int) -> Row:
        configuration = self.configuration
        row = configuration.row() | {
            "engine": self.engine,
            "temperature": configuration.temperature,
            "seed": seed,
        }
        row["rtt_s"] = rtt_s
        if isinstance(configuration, TandemConfiguration):
            row |= _model_times(configuration.answers)
        if self.far:
            duration_s = row["tokens"] / row["tokens_per_s"] + row["prompts"] * rtt_s
            row["tokens_per_s"] = row["tokens"] / duration_s
            row["ttft_s"] += rtt_s
        return row


def _model_times(answers: Sequence[Generated]) -> Row:
    """Return the seconds of a draft step and of a pass of the target, and what share of the
    answers' time both models take, prompt included. The share is more than 1 where they compute at
    once; what is missing to 1 is round overhead."""
    drafting_s, verifying_s = total(answers, "draft_s"), total(answers, "verify_s")
    return {
        "draft_step_s": drafting_s / max(1.0, total(answers, "drafted")),
        "verify_pass_s": verifying_s / max(1.0, total(answers, "target_passes")),
        "model_share": (drafting_s + verifying_s) / sum(answer.duration_s for answer in answers),
    }


def run(
    report: Report,
    models: Models,
    gguf_draft: Path | None,
    gguf_target: Path | None,
    vllm: Path | None,
    device: str | None = None,
    dtype_draft: str | None = None,
    turns: int | None = None,
) -> None:
    """Fill the report with a table for each temperature and round trip, and with goals over
    loopback. `device` computes what PyTorch computes; vLLM and llama.cpp use what they were built
    for. `dtype_draft`: of our draft model in PyTorch. `turns`: prompts that all answer, up to 6."""
    models = replace(
        models,
        device=device or models.device,
        draft_dtype=dtype_draft or models.draft_dtype,
    )
    max_tokens = 48 if report.quick else 128
    turns = turns or (1 if report.quick else 6)
    with ExitStack() as stack:
        gguf = stack.enter_context(_gguf_pair(models, gguf_draft, gguf_target))
        peers = list(_peers(stack, models, gguf, vllm, report))
        for rtt_s in RTTS_S:
            with ExitStack() as suites:
                ours = list(_ours(suites, models, gguf, rtt_s, report.quick))
                for temperature in TEMPERATURES:
                    contenders = [
                        *(
                            contender
                            for contender in ours
                            if contender.configuration.temperature == temperature
                        ),
                        *(
                            contender
                            for contender in peers
                            if contender.configuration.temperature == temperature
                        ),
                    ]
                    _measure(contenders, turns, max_tokens, report.seed)
                    rows = [contender.row(rtt_s, report.seed) for contender in contenders]
                    add_table(report, rows, temperature, rtt_s)
    report.notes.append(
        "ratio_to_hf: over the fastest of Hugging Face's rows of the table. ratio_to_cloud: over"
        f" the fastest of our rows without an edge ({', '.join(BASELINES)}) with the same engine. A"
        " peer answers where the target is: a caller behind the link waits a round trip more for an"
        " answer, which is added. llama.cpp's server is of the library that ours loads."
    )


@contextmanager
def _gguf_pair(models: Models, draft: Path | None, target: Path | None) -> Iterator[Models]:
    """Yield the same pair as GGUF files, made of the folders where none are given."""
    with TemporaryDirectory() as folder:
        made = {}
        for side, given in (("draft", draft), ("target", target)):
            source = Path(getattr(models, side))
            if is_gguf(str(source)):
                made[side] = source
                continue
            progress("writing GGUF files")
            made[side] = given or write_gguf(source, Path(folder, f"{side}.gguf"), kind=GGUF_KIND)
        yield Models(str(made["draft"]), str(made["target"]))


def _ours(
    stack: ExitStack, models: Models, gguf: Models, rtt_s: float, quick: bool
) -> Iterator[Contender]:
    pairs = {
        TORCH: models,
        GGUF_PAIR: replace(gguf, draft_dtype=KV_TYPE, target_dtype=KV_TYPE),
        GGUF_DRAFT: replace(models, draft=gguf.draft, draft_dtype=KV_TYPE),
    }
    if is_gguf(models.target):
        pairs = {GGUF_PAIR: pairs[GGUF_PAIR]}
    lengths = DRAFT_LENGTHS_QUICKLY if quick else DRAFT_LENGTHS
    for (engine, pair), shares in product(pairs.items(), (False, True)):
        if is_gguf(models.target) and not shares:
            continue
        suite = stack.enter_context(
            running_suite(pair, with_link=rtt_s > 0, shares_cores=shares, cloud_draft=True)
        )
        if suite.link is not None:
            suite.link.set(rtt_s, None)
        threads = "2 shared" if shares else "1 + 1"
        for temperature, (preset, length, sure) in product(TEMPERATURES, schedules(lengths)):
            configuration = TandemConfiguration(suite, preset, length, temperature, sure, threads)
            yield Contender(configuration, engine, far=False)


def schedules(lengths: Sequence[int]) -> Iterator[tuple[str, int | None, tuple[str, ...]]]:
    """Yield preset, draft length and further choices of each configuration of ours."""
    for length in lengths:
        yield "coupled", length, ()
    yield "coupled", lengths[-1], SURE
    for length in lengths:
        yield CLOUD_DRAFT, length, ()
    for preset in ("stream", "auto", ALONE):
        yield preset, None, ()


def _peers(
    stack: ExitStack, models: Models, gguf: Models, vllm: Path | None, report: Report
) -> Iterator[Contender]:
    lengths = DRAFT_LENGTHS_QUICKLY if report.quick else DRAFT_LENGTHS
    group = "lab.bench.speculation"
    for threads in THREADS:
        if is_gguf(models.target) and threads < max(THREADS):
            continue
        if not is_gguf(models.target):
            placed = models.draft, models.target, models.device
            worker = f"{group}.hugging_face_worker"
            peer = stack.enter_context(running_worker(worker, placed, threads))
            lookups = [{"lookup": length} for length in lengths]
            for policy, temperature in product((None, "default", *lengths, *lookups), TEMPERATURES):
                configuration = PeerConfiguration(peer, threads, policy, temperature, HUGGING_FACE)
                yield Contender(configuration, "torch", far=True)
        pair = gguf.target, gguf.draft
        peer = stack.enter_context(running_worker(f"{group}.llamacpp_worker", pair, threads))
        for length in (None, *lengths):
            for temperature in TEMPERATURES:
                configuration = PeerConfiguration(peer, threads, length, temperature, LLAMACPP)
                yield Contender(configuration, "llamacpp", far=True)
    if is_gguf(models.target):
        return
    python = vllm or VLLM_PYTHON
    if not python.exists():
        report.notes.append(
            "Without vLLM: 'make vllm-env', or --vllm names another Python with it."
        )
        return
    for length in (None, lengths[-1]):
        arguments = models.target, models.draft, str(length or 0)
        peer = stack.enter_context(
            running_worker(f"{group}.vllm_worker", arguments, 2, python=str(python))
        )
        for temperature in TEMPERATURES:
            configuration = PeerConfiguration(peer, 2, length, temperature, VLLM)
            yield Contender(configuration, "vllm", far=True)


def _measure(contenders: Sequence[Contender], turns: int, max_tokens: int, seed: int) -> None:
    """Let all contenders answer the prompts in turn. Answers over an earlier link are dropped
    first, so that they do not count."""
    for contender in contenders:
        contender.configuration.answers.clear()
        contender.configuration.take_turn(prompts(1), 8, seed)
        contender.configuration.answers.clear()
    for turn, text in enumerate(counted(prompts(turns), lambda text: "all take a turn")):
        for contender in contenders:
            contender.configuration.take_turn([text], max_tokens, seed + turn)


def add_table(report: Report, rows: list[Row], temperature: float, rtt_s: float) -> None:
    """Add the rows of one temperature and round trip, and over loopback goals for ours with an
    edge."""
    theirs = max((_speed(row) for row in rows if row["method"] in HUGGING_FACE), default=None)
    for row in rows:
        row["ratio_to_hf"] = None if theirs is None else row["tokens_per_s"] / theirs
        row["ratio_to_cloud"] = _ratio_to_cloud(row, rows)
    where = f"round trip {rtt_s * 1000:.0f} ms" if rtt_s else "loopback"
    report.add(f"Temperature {temperature:g}, {where}", COLUMNS, rows)
    for methods, (engine, limit) in GOALS.items() if not rtt_s else ():
        of_preset = [
            row
            for row in rows
            if row["engine"] == engine and row["preset"] is not None and not _is_baseline(row)
        ]
        compared = methods[1:] if methods == LLAMACPP else methods
        if not of_preset or not any(row["method"] in compared for row in rows):
            continue
        ours, best = max(of_preset, key=_speed), _best(rows, compared)
        name = f"temperature {temperature:g}: {ours['method']} ({engine}) ÷ {best['method']}"
        ratio = ours["tokens_per_s"] / best["tokens_per_s"]
        report.goals.append(Goal(f"{name}, tokens/s", ratio, limit, "at least"))
    if not rtt_s:
        report.goals += _goal_of_bare(rows, temperature)


def _goal_of_bare(rows: Sequence[Row], temperature: float) -> Iterator[Goal]:
    """Yield the goal of the target alone: both have two threads, and no draft."""
    ours, bare = (
        [_speed(row) for row in rows if (row["method"], row["engine"], row.get("threads")) == key]
        for key in ((ALONE, GGUF_PAIR, "2 shared"), (LLAMACPP[0], GGUF_PAIR, 2))
    )
    if ours and bare:
        name = f"temperature {temperature:g}: {ALONE} ({GGUF_PAIR}) ÷ {LLAMACPP[0]}, tokens/s"
        yield Goal(name, ours[0] / bare[0], OF_BARE, "at least")


def _best(rows: Sequence[Row], methods: Sequence[str]) -> Row:
    return max((row for row in rows if row["method"] in methods), key=_speed)


def _ratio_to_cloud(row: Row, rows: Sequence[Row]) -> float | None:
    """Return the speed of one of our rows over the fastest of those without an edge that have the
    same engine; None for a peer, and where there is none."""
    cloud = [_speed(one) for one in rows if _is_baseline(one) and one["engine"] == row["engine"]]
    return _speed(row) / max(cloud) if cloud and row["preset"] is not None else None


def _is_baseline(row: Row) -> bool:
    """Return whether a row is ours without an edge."""
    return row["preset"] in BASELINES


def _speed(row: Row) -> float:
    return float(row["tokens_per_s"])
