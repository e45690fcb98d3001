"""The `bench` command group: runs an experiment, prints its tables, draws its plots, writes JSON.

To add an experiment, change two files:

1. `lab/bench/<group>/<name>.py`, new: `run(report, models)` measures, and adds rows (`make_row`),
   tables and goals to the report. `draw(report, folder)`, if it is there, writes plots.
2. `lab/bench/main.py`, this file: one entry in `EXPERIMENTS`.

The groups: `speculation` (draft and target model), `wire` (bytes of the messages), `two_sided`
(DRAGON), `documents` (the index), `faults` (what holds while things break); `papers` puts them
together into one report; `harness` has what they share. A test of the new module's own
arithmetic belongs to `tests/lab/bench`. Default inputs are files of this repository.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from lab.bench.harness.plots import require_matplotlib
from lab.bench.harness.report import Report
from lab.bench.harness.suite import Models
from lab.bench.harness.texts import PEPS
from lab.bench.speculation.learning_streams import STREAMS
from lab.machine import OthersMeter, this_machine
from tandem.commands.help_groups import GroupedCommand, OptionGroup, SectionedGroup
from tandem.core.errors import TandemError

Option = Callable[[Any], Any]

_FOLDER = click.Path(file_okay=False, path_type=Path)
_FILE = click.Path(dir_okay=False, path_type=Path)
_STANDARD_OUTPUT = Path("-")
_REAL = click.option("--real", is_flag=True, help="Also run a part of the grid as real processes.")
_MINUTES = click.option(
    "--minutes",
    default=30.0,
    show_default=True,
    type=click.FloatRange(min=1),
    help="Duration of the run.",
)
_AT_MOST = click.option(
    "--minutes", type=click.FloatRange(min=0), help="Start no further case after this many minutes."
)
_PROCESSES = click.option(
    "--processes",
    default=1,
    show_default=True,
    type=click.IntRange(1, 64),
    help="Cases to run at a time.",
)
_REAL_CELLS = click.option(
    "--real",
    is_flag=True,
    help="Only this: real models as processes, by link, length of answers and other load.",
)
_PACED_CELLS = click.option(
    "--paced",
    is_flag=True,
    help="Only this: 12 cells as processes with scripted models, ar and auto in turn.",
)
_ROUNDS = click.option(
    "--rounds",
    type=click.IntRange(1),
    help="With --real or --paced: rounds of each cell. Default: 5, or with --quick fewer.",
)
_PROMPT_ROUNDS = click.option(
    "--rounds",
    type=click.IntRange(1),
    help="Answers to each prompt. Default: 3, or 1 with --quick.",
)
_TURNS = click.option(
    "--turns",
    type=click.IntRange(1, 6),
    help="Prompts that every configuration answers. Default: 6, or 1 with --quick.",
)
_RTT_MS = click.option(
    "--rtt-ms",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0, 10_000),
    help="Round trip of an emulated link between edge and cloud.",
)
_MBPS = click.option(
    "--mbps", type=click.FloatRange(0.001), help="Bandwidth of that link in each direction."
)
_DTYPE_DRAFT = click.option(
    "--dtype-draft",
    type=click.Choice(["float32", "bfloat16", "int8", "int4"]),
    help="Data type of the draft model. Default: float32.",
)
_ONLY_CELLS = click.option(
    "--only",
    multiple=True,
    metavar="CELL",
    help="Only this cell, for example '*, acceptance 0.9, 4 sessions', or with --real"
    " smollm2:40ms:48:t0:quiet; * matches anything; repeatable.",
)
_KEPT_ROWS = click.option(
    "--kept",
    type=_FILE,
    help="Save each finished case in this file. A later run of the same commit continues there.",
)
_PEPS = click.option(
    "--peps",
    type=_FILE,
    default=PEPS,
    help="JSON lines with id, title and text of PEPs, optionally compressed (.gz).",
)

_CELLS = click.option(
    "--cells", type=click.IntRange(0), help="Number of cells, chosen by the seed. 0: all."
)
_FIRST_CELLS = click.option(
    "--cells",
    default=0,
    type=click.IntRange(0),
    help="Number of cells. The first ones soon combine all pairs of values of different axes."
    " 0: all.",
)
_LATER = click.option(
    "--later",
    is_flag=True,
    help="Measure the second session of each edge, which knows what the first one measured.",
)
_SESSIONS = click.option(
    "--sessions",
    multiple=True,
    type=click.Choice(["1", "4", "16", "64"]),
    help="Only cells with this many sessions; repeatable.",
)
_AGAINST_CLOUD = click.option(
    "--against-cloud",
    is_flag=True,
    help="Compare only with what the cloud does without an edge (ar, cloud-draft): the whole grid"
    " then takes a quarter of the time.",
)
_KEPT_RUNS = click.option(
    "--kept",
    type=_FILE,
    help="Save simulations in this file and reuse those in it, for one version of the program.",
)
_PART = click.option(
    "--part", multiple=True, help="Only this part: documents, keys-and-values, link, or a service."
)
_REPORT = click.option("--folder", type=_FOLDER, help="Output folder. Default: report.")
_ONLY = click.option(
    "--only", multiple=True, help="Only this table, by its key; * matches anything; repeatable."
)
_SITE = click.option(
    "--report",
    "site",
    type=_FOLDER,
    help="Write pages of the documentation into this folder instead, and keep the rows there, of"
    " earlier commits too.",
)
_TABLES_PART = click.option(
    "--part",
    type=click.Choice(["computed", "measured"]),
    help="Only tables that are the same on any machine, or only those that need a quiet one.",
)
_TASKS = click.option(
    "--tasks",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with texts of tasks: HumanEval.jsonl.gz, gsm8k-test.jsonl, wikitext2-valid.txt,"
    " mt-bench.jsonl, alpaca_data.json, spec-bench.jsonl; those that are there.",
)
_EDGE_ALONE = click.option(
    "--edge-alone", is_flag=True, help="The cloud makes no drafts of its own, in either way."
)
_QUESTIONS = click.option(
    "--tasks",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with gsm8k-test.jsonl or gsm8k-train.jsonl, and HumanEval.jsonl.gz; those that"
    " are there. Default: held-out texts of this repository.",
)
_QUESTION_COUNT = click.option(
    "--questions",
    "count",
    type=click.IntRange(1),
    help="Questions to learn from. Default: 400, or 24 with --quick.",
)
_OFFLINE = click.option(
    "--offline",
    is_flag=True,
    help="Without services: the target answers all questions first; acceptance is computed.",
)
_ANSWERS = click.option(
    "--answers",
    type=_FOLDER,
    help="With --offline: keep the target's answers in this folder, and use those in it.",
)
_IDLE_S = click.option(
    "--idle-s",
    type=click.FloatRange(min=0),
    help="Time to learn after each question. Default: 30, or 6 with --quick.",
)
_LOGPROBS = click.option(
    "--logprobs",
    default=8,
    show_default=True,
    type=click.IntRange(0, 20),
    help="Likeliest tokens that the target tells with each token, to learn from them.",
)
_STREAM = click.option(
    "--stream",
    type=click.Choice(STREAMS),
    help="Questions to learn from: of GSM8K, or for SQL about tables. Default: gsm8k.",
)
_PRICES = click.option(
    "--prices",
    nargs=4,
    type=click.FloatRange(min=0),
    help="Dollars per million tokens: draft input, draft output, target input, target output.",
)
_FRESH = click.option(
    "--fresh", is_flag=True, help="Compute everything again, also what an earlier run has saved."
)
_CROWD = click.option(
    "--part",
    multiple=True,
    help="Only this part: single-key, crowding, grammars, choices, logprobs, images, contexts,"
    " embeddings, windows, documents, tokenising, turns or letters.",
)
_PRESETS = click.option(
    "--preset",
    multiple=True,
    help="Only this preset and ar, and no ablations; repeatable. Default: all.",
)
_PAGE = click.option(
    "--page",
    type=_FILE,
    help="Write the map into this page of the documentation, and its picture and rows into the"
    " folder pictures beside it.",
)
_SIMULATE = click.option(
    "--simulate",
    is_flag=True,
    help="By the state machines of the services instead of cost models; takes an hour.",
)
_DRAFT_MS = click.option(
    "--draft-ms",
    default=24.0,
    show_default=True,
    type=click.FloatRange(min=0.001),
    help="Declared time of a draft step at the edge.",
)
_CLOUD_DRAFT_MS = click.option(
    "--cloud-draft-ms",
    type=click.FloatRange(min=0),
    help="Declared time of a draft step in the cloud. Default: a fifth of --draft-ms.",
)
_VERIFY_MS = click.option(
    "--verify-ms",
    default=72.0,
    show_default=True,
    type=click.FloatRange(min=0.001),
    help="Declared time of a pass of the target over one token.",
)
_VERIFY_FURTHER_MS = click.option(
    "--verify-further-ms",
    default=0.5,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Declared time of each further token of a pass, of any session.",
)
_TPOT_MS = click.option(
    "--tpot-ms",
    default=100.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="Largest TPOT of 95 % of the answers. The default, 10 tokens a second, is more than people"
    " read.",
)
_REAL_POINTS = click.option(
    "--real",
    is_flag=True,
    help="Only this: two points as processes with the demo pair, paced by declared times.",
)
_AGAINST = click.option(
    "--against",
    metavar="COMMIT",
    help="Compare with this commit of the repository, by its own bench: both take turns.",
)
_LOGS = click.option("--logs", type=_FOLDER, help="Keep the services' logs in this folder.")

_GGUF = click.option("--gguf", type=_FILE, help="A GGUF file of the target, for llama.cpp.")
_GGUF_DRAFT = click.option(
    "--gguf-draft", type=_FILE, help="The draft model as GGUF. Default: made from --draft, Q8_0."
)
_GGUF_TARGET = click.option(
    "--gguf-target", type=_FILE, help="The target model as GGUF. Default: made from --target, Q8_0."
)
_DEVICE = click.option(
    "--device", help="Where PyTorch computes: cpu, cuda or cuda:N. Default: cpu."
)
_URL = click.option("--url", help="Address of the vLLM or SGLang server that has the target.")
_VLLM = click.option(
    "--vllm",
    type=_FILE,
    help="Python interpreter that has vLLM. Default: that of .venv-vllm, if it exists.",
)


@dataclass(frozen=True, slots=True)
class Experiment:
    """An entry of the table. `options` are further flags, which `run` takes as keywords; `exact`
    where a missed goal is an error, whatever the machine."""

    module: str
    help: str
    options: tuple[Option, ...] = ()
    exact: bool = False


EXPERIMENTS: dict[str, Experiment] = {
    "overhead": Experiment(
        "lab.bench.speculation.overhead",
        "Draft step, round overhead, and efficiency on a paced pair behind an emulated link.",
    ),
    "hf": Experiment(
        "lab.bench.speculation.hugging_face",
        "Tokens per second against Hugging Face assisted generation with the same pair.",
    ),
    "peers": Experiment(
        "lab.bench.speculation.peers",
        "Tokens per second against Hugging Face, llama.cpp's server and, where installed, vLLM.",
        (_GGUF_DRAFT, _GGUF_TARGET, _VLLM, _DEVICE, _DTYPE_DRAFT, _TURNS),
    ),
    "target-server": Experiment(
        "lab.bench.speculation.target_server",
        "auto relative to the plain stream of an unmodified server that computes the target.",
        (_URL,),
    ),
    "steps": Experiment(
        "lab.bench.speculation.device_steps",
        "Time of a pass of each model on a device, by tokens and dtype.",
        (_DEVICE,),
    ),
    "prompts": Experiment(
        "lab.bench.speculation.prompt_set",
        "auto relative to the large model alone and to a cloud that drafts, over a named set of"
        " prompts: mean and spread.",
        (_PROMPT_ROUNDS, _RTT_MS, _MBPS, _DEVICE, _DTYPE_DRAFT),
    ),
    "memory": Experiment(
        "lab.bench.speculation.remembered_texts",
        "Tokens per second with what the drafter remembers, and without: code edits, chats,"
        " answers from documents.",
        (_TASKS, _EDGE_ALONE),
    ),
    "prediction": Experiment(
        "lab.bench.speculation.predicted_outputs",
        "Predicted outputs on 50 changes of source code, against the draft model alone.",
    ),
    "bytes": Experiment(
        "lab.bench.wire.wire_bytes",
        "Serialized bytes of a round per preset, vocabulary 151,936, synthetic distributions.",
    ),
    "learning": Experiment(
        "lab.bench.speculation.learning",
        "Acceptance of a draft that learns while it is used, against one that does not.",
        (_QUESTIONS, _STREAM, _QUESTION_COUNT, _OFFLINE, _ANSWERS, _IDLE_S, _LOGPROBS),
    ),
    "auto": Experiment(
        "lab.bench.speculation.auto",
        "Preset auto against the large model alone and every fixed preset, over load and changes.",
        (
            *(_KEPT_ROWS, _AT_MOST, _PROCESSES, _FIRST_CELLS, _LATER, _SESSIONS),
            _AGAINST_CLOUD,
            *(_REAL_CELLS, _PACED_CELLS, _ROUNDS, _ONLY_CELLS),
        ),
    ),
    "cost-model": Experiment(
        "lab.bench.speculation.cost_model",
        "Tokens per second predicted by the cost model, relative to the state machines, by cell.",
        (_CELLS, _KEPT_RUNS),
    ),
    "batching": Experiment(
        "lab.bench.speculation.batching",
        "Eight concurrent sessions on one verifier against one session.",
    ),
    "quantised": Experiment(
        "lab.bench.speculation.quantised_weights",
        "Decoding step and cross-entropy of the target in float32, bfloat16, int8, int4, GGUF.",
        (_GGUF,),
    ),
    "prefix": Experiment(
        "lab.bench.speculation.kept_prefixes",
        "Time to the first token of a chat's second turn, with and without the prefix cache.",
    ),
    "structured": Experiment(
        "lab.bench.speculation.structured",
        "Answers that follow 200 JSON schemas: validity, equality with the target's, speed; masks.",
    ),
    "demo-pair": Experiment(
        "lab.bench.speculation.demo_pair",
        "Cross-entropy and acceptance of a pair on held-out text.",
    ),
    "bias": Experiment(
        "lab.bench.speculation.top_k_bias",
        "Distance of the output of lossy presets from the target's distribution, by K.",
    ),
    "exits": Experiment(
        "lab.bench.speculation.exits",
        "Early exits: their cost to the verifier, miss rates by number and queue order.",
    ),
    "loop": Experiment(
        "lab.bench.speculation.loop",
        "Processor time of the two machines of a session per committed token, without models.",
        (_AGAINST,),
    ),
    "methods": Experiment(
        "lab.bench.speculation.methods",
        "Every preset over hardware and links in virtual time; --real adds processes.",
        (_REAL, _PRESETS),
    ),
    "when-it-pays": Experiment(
        "lab.bench.speculation.when_it_pays",
        "Where drafting at the edge is faster than a cloud that drafts for itself: a map over round"
        " trip, sessions and acceptance.",
        (
            *(_PAGE, _SIMULATE, _KEPT_ROWS),
            *(_DRAFT_MS, _CLOUD_DRAFT_MS, _VERIFY_MS, _VERIFY_FURTHER_MS),
        ),
    ),
    "retriever": Experiment(
        "lab.bench.documents.retriever",
        "Search quality and speed on PEPs, ingestion, killed writers.",
        (_PEPS,),
    ),
    "dragon-latency": Experiment(
        "lab.bench.two_sided.dragon_latency",
        "Seconds per token of two-sided answers over added latency (DRAGON Figure 6).",
        (_PEPS, _REAL),
    ),
    "dragon-heads": Experiment(
        "lab.bench.two_sided.draft_heads",
        "Bytes, acceptance, time and bias of what a draft brings of its distribution, by entries.",
        (_PEPS,),
    ),
    "dragon-mixture": Experiment(
        "lab.bench.two_sided.mixture_fit",
        "Chi-squared test of answers over HTTP against the mixture of both sides' distributions.",
        exact=True,
    ),
    "leakage": Experiment(
        "lab.bench.two_sided.leakage",
        "How much of private notes can be reconstructed from what answers from two sides send.",
    ),
    "dragon-ttft": Experiment(
        "lab.bench.two_sided.dragon_ttft",
        "Time to the first token of two-sided answers (DRAGON Figure 7).",
        (_PEPS, _REAL),
    ),
    "dragon-quality": Experiment(
        "lab.bench.two_sided.dragon_quality",
        "Perplexity of held-out text with documents on two sides (DRAGON Figure 5).",
        (_PEPS,),
    ),
    "faults": Experiment(
        "lab.bench.faults.faults",
        "What clients see while services are killed, the link is dead and disks fail.",
        (_PART, _LOGS),
        exact=True,
    ),
    "overload": Experiment(
        "lab.bench.faults.overload",
        "Time to the first token of nine well-behaved tenants beside one that takes all it can.",
        (_CROWD,),
        exact=True,
    ),
    "capacity": Experiment(
        "lab.bench.faults.capacity",
        "How many sessions one verifier holds, if nobody drafts, the cloud, the edges, or both.",
        (_TPOT_MS, _REAL_POINTS),
    ),
    "soak": Experiment(
        "lab.bench.faults.soak",
        "Mixed traffic with faults: memory, descriptors and threads of no service may grow.",
        (_MINUTES,),
        exact=True,
    ),
    "papers": Experiment(
        "lab.bench.papers.paper_report",
        "Every table and figure of the five papers, ours beside theirs, as a page.",
        (_REPORT, _SITE, _ONLY, _TABLES_PART, _FRESH, _TASKS, _PRICES),
    ),
    "scheduler": Experiment(
        "lab.bench.two_sided.scheduler",
        "Where to aggregate: by ΔZ, or always at one side (DRAGON Figures 8 and 9).",
        (_PEPS,),
    ),
}


_TITLES = {
    "speculation": "Draft and target model",
    "wire": "Messages",
    "two_sided": "Answers from documents",
    "documents": "The index of documents",
    "faults": "Faults and load",
    "papers": "The papers",
}
"""By the groups of experiments, which are the folders of their modules."""


def _sections() -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {title: [] for title in _TITLES.values()}
    for name, experiment in EXPERIMENTS.items():
        sections[_TITLES[experiment.module.split(".")[2]]].append(name)
    return sections


@click.group(cls=SectionedGroup, sections=_sections())
def bench() -> None:
    """Measure the suite. Times are valid only on an otherwise idle machine."""


_OPTIONS: tuple[Option, ...] = (
    click.option("--out", type=_FOLDER, help="Draw the plots into this folder."),
    click.option(
        "--json",
        "json_file",
        type=_FILE,
        is_flag=False,
        flag_value="-",
        help="Write rows and goals to this file; without a name, to standard output only.",
    ),
    click.option("--seed", default=1, show_default=True, type=click.IntRange(0, 2**63)),
    click.option(
        "--quick", is_flag=True, help="A smaller run of the same kind, which takes minutes."
    ),
    click.option("--check", is_flag=True, help="Exit with status 1 if a goal is missed."),
    click.option("--draft", default=Models().draft, help="Draft model: folder or name."),
    click.option("--target", default=Models().target, help="Target model: folder or name."),
)


_COMMON = (
    OptionGroup(
        "Every experiment",
        ("draft", "target", "seed", "quick", "check", "out", "json_file", "help"),
    ),
)


def _add_command(name: str, experiment: Experiment) -> None:
    def command(
        out: Path | None,
        json_file: Path | None,
        seed: int,
        quick: bool,
        check: bool,
        draft: str,
        target: str,
        **options: Any,
    ) -> None:
        try:
            if out is not None:
                require_matplotlib()
            report = _run(name, Models(draft, target), seed, quick, out, options)
            if json_file is not None and json_file != _STANDARD_OUTPUT:
                report.write_json(json_file)
        except (TandemError, OSError) as error:
            raise click.ClickException(str(error)) from None
        click.echo(report.json() if json_file == _STANDARD_OUTPUT else report.text())
        if not report.met and (check or experiment.exact):
            raise click.exceptions.Exit(1)

    wrapped: Any = command
    for option in reversed((*_OPTIONS, *experiment.options)):
        wrapped = option(wrapped)
    describe = bench.command(
        name, cls=GroupedCommand, groups=_COMMON, others="This experiment", help=experiment.help
    )
    describe(wrapped)


def _run(
    name: str, models: Models, seed: int, quick: bool, out: Path | None, options: dict[str, Any]
) -> Report:
    module = import_module(EXPERIMENTS[name].module)  # only now: some load torch
    report = Report(name, seed, quick, this_machine(), _command())
    if report.machine.busy:
        click.echo(report.machine.line().splitlines()[-1], err=True)
    others = OthersMeter()
    module.run(report, models, **options)
    report.others_busy = others.share()
    if out is not None and hasattr(module, "draw"):
        module.draw(report, out)
    return report


def _command() -> str:
    """Return what was typed, without the folder of the program."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


for _name, _experiment in EXPERIMENTS.items():
    _add_command(_name, _experiment)

if __name__ == "__main__":
    bench()
