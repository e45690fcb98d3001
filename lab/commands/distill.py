"""`tandem distill`: a draft model for a target, made from the target's own answers."""

import json
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tandem.backends.model_trial import check_folder
from tandem.commands.options import FILE, FOLDER, json_option
from tandem.core.errors import InvalidArgument
from tandem.suite.models import choose_model

if TYPE_CHECKING:
    from lab.training.distilling.making import DraftMaker, Estimate, Settings

LAYERS = "layers"
ASKED_QUESTIONS = 2000
_ROWS = {"cpu": 48, "cuda": 512}
_BATCH_TOKENS = {"cpu": 1024, "cuda": 16_384}
_CHECKPOINT_S = {"cpu": 240.0, "cuda": 60.0}
_MEASURING_S = {"cpu": 60.0, "cuda": 20.0}
_MOST_MEASURING = 0.1
"""Of the time."""


@click.command("distill")
@click.option(
    "--target",
    required=True,
    metavar="FOLDER",
    help="Target model, of the Llama, Mistral, Qwen2 or Qwen3 family; it is not changed.",
)
@click.option(
    "--draft-from",
    default=LAYERS,
    metavar="SOURCE",
    help="What the draft begins as: 'layers' of the target, or the folder of a small model"
    " with the same tokenizer.",
)
@click.option(
    "--layers",
    metavar="NUMBERS",
    help='Which layers of the target, for example "0,1,2,29". Default: an eighth of them,'
    " the first ones and the last.",
)
@click.option(
    "--prompts",
    type=FILE,
    metavar="FILE",
    help="What your users ask: a text with a prompt per line, or JSON lines with the field"
    " 'prompt', 'question', 'text' or 'messages'. Default: requests about everyday things.",
)
@click.option(
    "--ask",
    "asked",
    type=int,
    metavar="N",
    help="Questions that the target makes up and answers too."
    f" Default: {ASKED_QUESTIONS:,} without --prompts, else none.",
)
@click.option("--minutes", type=float, default=60.0, help="Time for everything, over all runs.")
@click.option("--tokens", type=int, default=144, help="Tokens of an answer, at most.")
@click.option("--length", type=int, default=352, help="Tokens of a prompt and its answer, at most.")
@click.option(
    "--head-tokens",
    type=int,
    default=0,
    metavar="N",
    help="How many tokens the draft can propose. 0: as many as pay by the cost model.",
)
@click.option("--held-out", type=int, default=16, help="Prompts to measure with, of each kind.")
@click.option("--rows", type=int, metavar="N", help="Answers sampled at once.")
@click.option("--batch-tokens", type=int, metavar="N", help="Tokens of a training step.")
@click.option("--learning-rate", type=float, default=2e-3)
@click.option("--seed", type=int, default=0, help="Seed of sampling and training.")
@click.option("--threads", type=int, default=1, help="CPU threads.")
@click.option("--device", default="cpu", help="cpu or cuda.")
@click.option(
    "--out",
    type=FOLDER,
    metavar="FOLDER",
    help="Default: beside the target, where a pair is looked for (x: x-draft).",
)
@click.option(
    "--work",
    type=FOLDER,
    metavar="FOLDER",
    help="Answers and checkpoints, from which the same command goes on. Default: OUT.work.",
)
@click.option(
    "--gguf",
    metavar="KIND",
    help="Also write the draft as a GGUF file, for example as Q8_0.",
)
@click.option(
    "--price-per-hour", type=float, default=0.0, help="Of the machine, to estimate the cost."
)
@click.option("--estimate", is_flag=True, help="Only say what it takes; make nothing.")
@json_option("Print only one JSON object at the end.")
def distill(**options: Any) -> None:
    """Make a draft for a target. The target answers prompts; a few of its layers, or a small model,
    learn to say what it would say. The folder that is written has a card with the share of
    proposals that the target accepts after prompts which were held out. After an interruption the
    same command goes on; with more --minutes a finished one is trained further."""
    started_s = time.monotonic()
    _check(options)
    target = Path(choose_model(options["target"]).source)
    if not (target / "config.json").is_file():
        why = f"{target} is no model folder with safetensors; a draft is made from such a one"
        raise InvalidArgument("target", why)
    from lab.training.distilling.making import DraftMaker
    from tandem.backends.torch.loading import use_threads

    use_threads(options["threads"])
    settings = _settings(target, options)
    try:
        for folder in filter(None, (settings.target, settings.draft_from)):
            check_folder(folder)
        maker = DraftMaker(settings, started_s)
        if options["estimate"] or not options["as_json"]:
            _show_estimate(maker.estimate(), options)
        if not options["estimate"]:
            _make(maker, settings, options, started_s)
    except InvalidArgument:
        raise
    except (FileNotFoundError, ValueError) as error:
        raise InvalidArgument("target", str(error)) from error


def _make(
    maker: "DraftMaker", settings: "Settings", options: dict[str, Any], started_s: float
) -> None:
    from lab.training.distilling.draft_card import CardWords, write_draft_card
    from lab.training.distilling.making import STAGES, overall, read_figures

    for stage in STAGES:
        maker.run(stage)
    out, name = settings.out, settings.target.resolve().name
    storage = "This folder holds the whole draft, with embedding and head, for any program."
    prompts = (
        f"Prompts come from {options['prompts'].name}."
        if options["prompts"]
        else "Prompts are about everyday things, and questions that the target made up."
    )
    licence = "A derivation of the target's weights, whose licence holds for it too."
    words = CardWords(name, storage, prompts, licence)
    write_draft_card(settings.stored, settings.target, out, words, out)
    written = [out]
    if options["gguf"]:
        written.append(_write_gguf(out, options["gguf"]))
    sampled, greedy = overall(read_figures(settings.stored))
    if options["as_json"]:
        summary = {
            "out": str(out),
            "files": [str(path) for path in written],
            "acceptance": sampled,
            "agreement": greedy,
            "duration_s": time.monotonic() - started_s,
        }
        click.echo(json.dumps(summary))
        return
    click.echo(f"held out: {sampled:.1%} accepted at temperature 1, {greedy:.1%} at 0")
    click.echo(f"{out}: written, with a card in README.md")
    for path in written[1:]:
        click.echo(f"{path}: written")
    click.echo(f"tandem chat --target {settings.target} --draft {out} --dtype-draft int8")


def _write_gguf(folder: Path, kind: str) -> Path:
    """Write the draft as GGUF. Raises InvalidArgument naming --gguf where the format has no place
    for it."""
    from tools.write_gguf import why_not, write_gguf

    path = folder / f"{folder.name}-{kind}.gguf"
    if (why := why_not(folder, kind)) is not None:
        raise InvalidArgument("gguf", why)
    partial = path.with_suffix(".partial")
    write_gguf(folder, partial, kind=kind)
    os.replace(partial, path)
    return path


def _show_estimate(estimate: "Estimate", options: dict[str, Any]) -> None:
    hours = estimate.wall_s / 3600
    if options["as_json"]:
        summary = {
            "duration_s": estimate.wall_s,
            "answers": estimate.answers,
            "trained_tokens": estimate.trained_tokens,
            "cost": estimate.cost(options["price_per_hour"]),
        }
        click.echo(json.dumps(summary))
        return
    click.echo(
        f"about {estimate.wall_s / 60:.0f} minutes: {estimate.answers:,} answers, then a training"
        f" over {estimate.trained_tokens:,} tokens"
    )
    if options["price_per_hour"]:
        click.echo(f"cost: about {estimate.cost(options['price_per_hour']):.2f}")
    elif estimate.device == "cpu":
        click.echo(f"cost: about {hours * estimate.cores:.1f} core hours")
    else:
        click.echo(f"cost: about {hours:.1f} hours of {estimate.device}")


def _settings(target: Path, options: dict[str, Any]) -> "Settings":
    import torch

    from lab.training.distilling.making import Settings
    from lab.training.distilling.prompts import Prompt, everyday_prompts, own_prompts

    device = torch.device(options["device"])
    out = options["out"] or target.with_name(f"{target.name}-draft")
    work = options["work"] or out.with_name(f"{out.name}.work")
    seed = options["seed"]
    path = options["prompts"]
    asked = options["asked"]

    def prompts() -> list[Prompt]:
        return everyday_prompts(seed) if path is None else own_prompts(path, seed)

    return Settings(
        target=target,
        cache=work,
        stored=work / "stored",
        out=out,
        device=device,
        prompts=prompts,
        draft_from=None if options["draft_from"] == LAYERS else Path(options["draft_from"]),
        layers=_layers(options["layers"]),
        kept=options["head_tokens"],
        seed=seed,
        asked=(ASKED_QUESTIONS if path is None else 0) if asked is None else asked,
        answer_tokens=options["tokens"],
        held_out_prompts=options["held_out"],
        held_out_tokens=options["tokens"],
        rows=options["rows"] or _ROWS[device.type],
        capacity=options["length"],
        minutes=options["minutes"],
        measuring_s=min(_MEASURING_S[device.type], _MOST_MEASURING * options["minutes"] * 60),
        checkpoint_every_s=_CHECKPOINT_S[device.type],
        states_on_disk=device.type == "cpu",
        learning_rate=options["learning_rate"],
        batch_tokens=options["batch_tokens"] or _BATCH_TOKENS[device.type],
        command=_command(options),
    )


def _check(options: dict[str, Any]) -> None:
    """Raise InvalidArgument naming the flag that makes no sense."""
    for name in ("tokens", "length", "held_out", "threads"):
        if options[name] < 1:
            raise InvalidArgument(name, f"must be at least 1, is {options[name]}")
    for name in ("rows", "batch_tokens", "asked", "head_tokens"):
        if options[name] is not None and options[name] < 0:
            raise InvalidArgument(name, f"must be at least 0, is {options[name]}")
    for name in ("minutes", "learning_rate"):
        if not 0 < options[name] < math.inf:
            raise InvalidArgument(name, f"must be above 0, is {options[name]}")
    if options["tokens"] >= options["length"]:
        raise InvalidArgument("length", f"leaves no room beside {options['tokens']} tokens")
    device = options["device"].partition(":")[0]
    if device not in _ROWS:
        raise InvalidArgument("device", f"must be cpu or cuda, is {options['device']}")
    source = options["draft_from"]
    if source != LAYERS and not (Path(source) / "config.json").is_file():
        raise InvalidArgument("draft_from", f"{source!r} is neither 'layers' nor a model folder")
    if source != LAYERS and options["layers"]:
        raise InvalidArgument("layers", "is for a draft from the target's layers")
    if options["prompts"] is not None and not options["prompts"].is_file():
        raise InvalidArgument("prompts", f"{options['prompts']} does not exist")


def _layers(given: str | None) -> tuple[int, ...]:
    if given is None:
        return ()
    try:
        return tuple(int(layer) for layer in given.split(","))
    except ValueError:
        raise InvalidArgument("layers", f"{given!r} is not like 0,1,2,29") from None


def _command(options: dict[str, Any]) -> str:
    """Return the command that makes the same draft, as a card shows it: without the places of
    folders."""
    places = ("target", "out", "work", "as_json", "estimate", "price_per_hour", "gguf", "device")
    given = {
        name: value for name, value in options.items() if name not in places and value is not None
    }
    flags = {"asked": "ask"}
    named = (
        f"--{flags.get(name, name).replace('_', '-')} "
        + (value.name if isinstance(value, Path) else str(value))
        for name, value in given.items()
    )
    return " ".join(("tandem distill --target", Path(options["target"]).name, *named))
