"""The `bench` command group: runs an experiment, prints its tables, draws its plots, writes JSON.

Every experiment module offers `run(report, models)`, which fills the report and takes the flags of
its own beside, and `draw(report, folder)`; it is imported only when it is asked for.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from bench.machine import OthersMeter, this_machine
from bench.plots import require_matplotlib
from bench.report import Report
from bench.suite import Models
from tandem.core.errors import TandemError

EXPERIMENTS = {
    "overhead": "Draft step, gRPC hop, and efficiency on a paced pair behind an emulated link.",
    "hf": "Tokens per second against Hugging Face assisted generation with the same pair.",
    "bytes": "Serialized bytes of a round per preset, vocabulary 151,936, synthetic laws.",
    "batching": "Eight concurrent sessions on one verifier against one session.",
    "demo-pair": "Cross-entropy and acceptance of a pair on held-out text.",
    "bias": "How far PicoSpec's lossy top-K answer takes the output law from the target's, by K.",
    "truncation": "Acceptance and retained mass of truncated draft laws, against TSLT's bound.",
    "trees": "Acceptance of several candidates per position, and the cost of judging a tree.",
    "exits": "Early exits: their cost to the verifier, miss rates by number and queue order.",
    "methods": "Every preset over hardware and links in virtual time; --real adds processes.",
    "retriever": "What titles of PEPs find, search over many vectors, ingest, killed writers.",
    "dragon-latency": "Seconds a token of two-sided answers over added latency (DRAGON Figure 6).",
    "dragon-ttft": "Time to the first token of two-sided answers (DRAGON Figure 7).",
    "dragon-quality": "Perplexity of held-out text with documents on two sides (DRAGON Figure 5).",
    "document-kv": "Time to the first draft after documents, computed, from memory and from disk.",
    "scheduler": "Where to aggregate: by ΔZ, or always at one side (DRAGON Figures 8 and 9).",
    "cuts": "Text of answers whose link is cut in the middle, against uncut runs.",
}
_MODULES = {
    "overhead": "bench.overhead",
    "hf": "bench.hugging_face",
    "bytes": "bench.wire_bytes",
    "batching": "bench.batching",
    "demo-pair": "bench.demo_pair",
    "bias": "bench.top_k_bias",
    "truncation": "bench.truncation",
    "trees": "bench.trees",
    "exits": "bench.exits",
    "methods": "bench.methods",
    "retriever": "bench.retriever",
    "dragon-latency": "bench.dragon_latency",
    "dragon-ttft": "bench.dragon_ttft",
    "dragon-quality": "bench.dragon_quality",
    "document-kv": "bench.document_kv",
    "scheduler": "bench.scheduler",
    "cuts": "bench.cuts",
}

_EXACT = frozenset({"cuts"})
"""Where a missed goal is a fault, whatever the machine."""


@click.group()
def bench() -> None:
    """Measure the suite. Figures of time count only on a quiet machine."""


def _run(
    name: str, models: Models, seed: int, quick: bool, out: Path | None, own: dict[str, Any]
) -> Report:
    experiment = import_module(_MODULES[name])
    report = Report(name, seed, quick, this_machine(), _command())
    if report.machine.busy:
        click.echo(report.machine.line().splitlines()[-1], err=True)
    others = OthersMeter()
    experiment.run(report, models, **own)
    report.others_busy = others.share()
    if out is not None:
        experiment.draw(report, out)
    return report


def _experiment(name: str, words: str) -> Callable[..., None]:
    def command(
        out: Path | None,
        json_file: Path | None,
        seed: int,
        quick: bool,
        check: bool,
        draft: str,
        target: str,
        **own: Any,
    ) -> None:
        try:
            if out is not None:
                require_matplotlib()
            report = _run(name, Models(draft, target), seed, quick, out, own)
            if json_file is not None:
                report.write_json(json_file)
        except (TandemError, OSError) as error:
            raise click.ClickException(str(error)) from None
        click.echo(report.text())
        if not report.met and (check or name in _EXACT):
            raise click.exceptions.Exit(1)

    command.__doc__ = words
    wrapped: Any = command
    for option in reversed((*_OPTIONS, *_OWN_OPTIONS.get(name, ()))):
        wrapped = option(wrapped)
    return bench.command(name)(wrapped)


_FOLDER = click.Path(file_okay=False, path_type=Path)
_FILE = click.Path(dir_okay=False, path_type=Path)
_OPTIONS = (
    click.option("--out", type=_FOLDER, help="Draw the plots into this folder."),
    click.option("--json", "json_file", type=_FILE, help="Write rows and goals to this file."),
    click.option("--seed", default=1, show_default=True, type=click.IntRange(0, 2**63)),
    click.option("--quick", is_flag=True, help="A smaller run of the same shape, under 3 minutes."),
    click.option("--check", is_flag=True, help="Exit with 1 when a goal is missed."),
    click.option("--draft", default=Models().draft, help="Draft model: folder or name."),
    click.option("--target", default=Models().target, help="Target model: folder or name."),
)

_REAL = click.option("--real", is_flag=True, help="Run a part of the grid as real processes too.")
_PEPS = click.option(
    "--peps",
    type=_FILE,
    default=Path(__file__).resolve().parents[2] / "shared" / "data" / "peps.jsonl",
    help="JSON lines with id, title and text of PEPs.",
)

_OWN_OPTIONS = {
    "methods": (_REAL,),
    "retriever": (_PEPS,),
    "dragon-latency": (_PEPS, _REAL),
    "dragon-ttft": (_PEPS, _REAL),
    "dragon-quality": (_PEPS,),
    "scheduler": (_PEPS,),
}

for _name, _words in EXPERIMENTS.items():
    _experiment(_name, _words)


def _command() -> str:
    """What was typed, without the folder of the program."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


if __name__ == "__main__":
    bench()
