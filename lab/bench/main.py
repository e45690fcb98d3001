"""The `bench` command group: runs an experiment, prints its tables, writes JSON.

To add an experiment, change two files:

1. `lab/bench/<group>/<name>.py`, new: `run(report, models)` measures, and adds rows (`make_row`),
   tables and goals to the report.
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

from lab.bench.harness.models import Models
from lab.bench.harness.report import Report
from lab.bench.harness.texts import PEPS
from lab.machine import OthersMeter, this_machine
from tandem.commands.help_groups import GroupedCommand, OptionGroup, SectionedGroup
from tandem.core.errors import TandemError

Option = Callable[[Any], Any]

_FOLDER = click.Path(file_okay=False, path_type=Path)
_FILE = click.Path(dir_okay=False, path_type=Path)
_STANDARD_OUTPUT = Path("-")
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
_ROUNDS = click.option(
    "--rounds",
    type=click.IntRange(1),
    help="With --real: rounds of each cell. Default: 5, or with --quick fewer.",
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

_FIRST_CELLS = click.option(
    "--cells",
    default=0,
    type=click.IntRange(0),
    help="Number of cells. The first ones soon combine all pairs of values of different axes."
    " 0: all.",
)
_AGAINST_CLOUD = click.option(
    "--against-cloud",
    is_flag=True,
    help="Compare only with what the cloud does without an edge (ar, cloud-draft): the whole grid"
    " then takes a quarter of the time.",
)
_AGAINST = click.option(
    "--against",
    metavar="COMMIT",
    help="Compare with this commit of the repository, by its own bench: both take turns.",
)
_PART = click.option(
    "--part", multiple=True, help="Only this part: documents, keys-and-values, link, or a service."
)
_ONLY = click.option(
    "--only", multiple=True, help="Only this table, by its key; * matches anything; repeatable."
)
_SITE = click.option(
    "--pages",
    type=_FOLDER,
    help="Write the documentation's pages into this folder, from rows that are kept in lab/results;"
    " compute those that are missing or were made by other code.",
)
_TABLES_PART = click.option(
    "--part",
    type=click.Choice(["computed", "measured"]),
    help="Only tables that are the same on any machine, or only those that need a quiet one.",
)
_OTHER_QUESTIONS = click.option(
    "--tasks",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with HumanEval.jsonl.gz, for the questions of another kind. Default: beginnings of"
    " PEPs.",
)
_FRESH = click.option(
    "--fresh", is_flag=True, help="With --pages: compute again what was made by the same code, too."
)
_STALE = click.option(
    "--stale", is_flag=True, help="With --pages: compute nothing; tables say where they are stale."
)
_TASKS = click.option(
    "--tasks",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with wikitext2-valid.txt.",
)
_CROWD = click.option(
    "--part",
    multiple=True,
    help="Only this part: single-key, crowding, grammars, choices, logprobs, images, contexts,"
    " embeddings, windows, documents, tokenising, turns or letters.",
)
_SLOWER = click.option(
    "--slower",
    type=click.FloatRange(1, 100),
    multiple=True,
    help="Passes and pauses take this many times as long: less then depends on how fast this"
    " machine's processors are. Repeatable: all is measured with each.",
)
_PRESETS = click.option(
    "--preset",
    multiple=True,
    help="Only this preset and ar; repeatable. Default: all.",
)
_PAGE = click.option(
    "--page",
    type=_FILE,
    help="Write the map into this page of the documentation, and its rows into lab/results.",
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
    "bytes": Experiment(
        "lab.bench.wire.wire_bytes",
        "Serialized bytes of a round per preset, vocabulary 151,936, synthetic distributions.",
    ),
    "learning": Experiment(
        "lab.bench.speculation.learning",
        "Acceptance of a draft that learns while it is used, against one that does not.",
        (_OTHER_QUESTIONS,),
    ),
    "auto": Experiment(
        "lab.bench.speculation.auto",
        "Preset auto against the large model alone and every fixed preset, over load and changes.",
        (
            *(_KEPT_ROWS, _AT_MOST, _PROCESSES, _FIRST_CELLS),
            _AGAINST_CLOUD,
            *(_REAL_CELLS, _ROUNDS, _ONLY_CELLS),
        ),
    ),
    "loop": Experiment(
        "lab.bench.speculation.loop",
        "Processor time of the two machines of a session per committed token, without models.",
        (_AGAINST,),
    ),
    "batching": Experiment(
        "lab.bench.speculation.batching",
        "Eight concurrent sessions on one verifier against one session.",
    ),
    "quantised": Experiment(
        "lab.bench.speculation.quantised_weights",
        "Cross-entropy of the target in float32, bfloat16, int8, int4 and GGUF, and their overlap.",
        (_GGUF,),
    ),
    "methods": Experiment(
        "lab.bench.speculation.methods",
        "Every preset over hardware and links, in virtual time.",
        (_PRESETS,),
    ),
    "when-it-pays": Experiment(
        "lab.bench.speculation.when_it_pays",
        "Where drafting at the edge is faster than a cloud that drafts for itself: a map over round"
        " trip, sessions and acceptance.",
        (_PAGE, _DRAFT_MS, _CLOUD_DRAFT_MS, _VERIFY_MS, _VERIFY_FURTHER_MS),
    ),
    "retriever": Experiment(
        "lab.bench.documents.retriever",
        "Search quality and speed on PEPs, and ingestion.",
        (_PEPS,),
    ),
    "leakage": Experiment(
        "lab.bench.two_sided.leakage",
        "How much of private notes can be reconstructed from what answers from two sides send.",
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
        (_CROWD, _SLOWER),
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
        "Every table and figure of the five papers, ours beside theirs.",
        (_SITE, _ONLY, _TABLES_PART, _FRESH, _STALE, _TASKS),
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
        ("draft", "target", "seed", "quick", "check", "json_file", "help"),
    ),
)


def _add_command(name: str, experiment: Experiment) -> None:
    def command(
        json_file: Path | None,
        seed: int,
        quick: bool,
        check: bool,
        draft: str,
        target: str,
        **options: Any,
    ) -> None:
        try:
            report = _run(name, Models(draft, target), seed, quick, options)
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


def _run(name: str, models: Models, seed: int, quick: bool, options: dict[str, Any]) -> Report:
    module = import_module(EXPERIMENTS[name].module)  # only now: some load torch
    report = Report(name, seed, quick, this_machine(), _command())
    if report.machine.busy:
        click.echo(report.machine.line().splitlines()[-1], err=True)
    others = OthersMeter()
    module.run(report, models, **options)
    report.others_busy = others.share()
    return report


def _command() -> str:
    """Return what was typed, without the folder of the program."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


for _name, _experiment in EXPERIMENTS.items():
    _add_command(_name, _experiment)

if __name__ == "__main__":
    bench()
