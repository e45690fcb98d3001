"""`tandem train-exits`: early-exit adapters for a target model, distilled on some text."""

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tandem.backends.model_trial import check_folder
from tandem.commands.options import ANY_PATH, FOLDER, json_option
from tandem.core.errors import InvalidArgument
from tandem.suite.models import choose_model

if TYPE_CHECKING:
    from tandem.backends.torch.exit_adapters import ExitsDescription

OnStep = Callable[[int, float], None]


@click.command("train-exits")
@click.option("--target", required=True, metavar="FOLDER", help="Target model; it is not changed.")
@click.option(
    "--text",
    "texts",
    multiple=True,
    type=ANY_PATH,
    metavar="FILE",
    help="Training text, similar to the expected answers; .jsonl: the field 'text'"
    " of each line. Repeatable.",
)
@click.option(
    "--out",
    type=FOLDER,
    metavar="FOLDER",
    help="Default: beside the model, where a verifier finds it (x-target: x-exits).",
)
@click.option(
    "--exits", type=int, default=4, help="Number of exits, evenly spread over the layers."
)
@click.option(
    "--layers",
    metavar="NUMBERS",
    help='Layers to place exits after, for example "1,3", counted from 0; instead of --exits.',
)
@click.option("--rank", type=int, default=64, help="Width of an adapter.")
@click.option("--steps", type=int, default=1000, help="Training steps.")
@click.option("--minutes", type=float, help="How long to train, in the place of --steps.")
@click.option(
    "--sampled",
    type=int,
    default=0,
    help="Tokens of the vocabulary that a step compares: those that are likely, and a random choice"
    " of others. Where the vocabulary is large, a few thousand take much less computing."
    " Default: all.",
)
@click.option("--rows", type=int, default=4, help="Texts per step.")
@click.option("--length", type=int, default=256, help="Tokens per text.")
@click.option("--positions", type=int, default=256, help="Token positions trained per step.")
@click.option("--learning-rate", type=float, default=2e-3)
@click.option(
    "--seed",
    type=int,
    default=0,
    help="Seed of the training. The same seed gives the same adapters.",
)
@click.option("--threads", type=int, default=1, help="CPU threads.")
@click.option("--device", default="cpu", help="cpu, cuda or cuda:N.")
@click.option(
    "--calibrate",
    is_flag=True,
    help="Do not train: measure the exits in --out on a text that they did not learn from, and"
    " write their temperatures.",
)
@json_option("Print only one JSON object at the end.")
def train_exits(**options: Any) -> None:
    """Train early exits for a target model, so that a verifier can send early verdicts. Each exit
    learns to predict after some layers the model's final distribution; the model itself does not
    change. After an interruption the same command resumes."""
    training_options = _checked(options)
    source = Path(choose_model(options["target"]).source)
    check_folder(source)
    texts = [text for path in options["texts"] for text in read_texts(path)]
    if not texts:
        raise InvalidArgument("text", "is needed: a file of training text")
    from lab.training.exit_training import (
        ExitTraining,
        calibrate_exits,
        encode_texts,
        train_exits,
    )
    from tandem.backends.torch.exit_adapters import place_beside
    from tandem.backends.torch.loading import use_threads

    use_threads(options["threads"])
    out = options["out"] or place_beside(source)
    started_s = time.perf_counter()
    training, token_ids = ExitTraining(**training_options), encode_texts(source, texts)
    if options["calibrate"]:
        measured = calibrate_exits(source, token_ids, out, training, options["device"])
        _show(measured, out, time.perf_counter() - started_s, options)
        return
    steps = None if options["minutes"] else options["steps"]
    with _progress(steps, shown=not options["as_json"]) as on_step:
        trained = train_exits(source, token_ids, out, training, options["device"], on_step)
    _show(trained, out, time.perf_counter() - started_s, options)


def read_texts(path: Path) -> list[str]:
    """Read the texts of a file. Raises InvalidArgument naming --text."""
    try:
        content = path.read_text("utf-8")
        if path.suffix != ".jsonl":
            return [content]
        return [json.loads(line)["text"] for line in content.splitlines() if line.strip()]
    except OSError as error:
        raise InvalidArgument("text", f"{path} cannot be read: {error.strerror}") from error
    except (KeyError, TypeError, ValueError) as error:
        why = f"{path} is not UTF-8 text, or not JSON lines with a field 'text'"
        raise InvalidArgument("text", why) from error


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of ExitTraining that flags set. Raises InvalidArgument naming the flag."""
    numbers = ("exits", "rank", "steps", "rows", "length", "positions")
    for name in (*numbers, "threads"):
        if options[name] < 1:
            raise InvalidArgument(name, f"must be at least 1, is {options[name]}")
    for name in ("learning_rate", "minutes"):
        if (value := options[name]) is not None and not 0 < value < math.inf:
            raise InvalidArgument(name, f"must be above 0, is {value}")
    if options["sampled"] < 0:
        raise InvalidArgument("sampled", f"must be at least 0, is {options['sampled']}")
    layers: tuple[int, ...] = ()
    if options["layers"] is not None:
        try:
            layers = tuple(int(layer) for layer in options["layers"].split(","))
        except ValueError:
            raise InvalidArgument("layers", f"{options['layers']!r} is not like 1,3") from None
    chosen = {name: options[name] for name in (*numbers, "learning_rate", "seed", "sampled")}
    return chosen | {"layers": layers, "minutes": options["minutes"] or 0.0}


@contextmanager
def _progress(steps: int | None, shown: bool) -> Iterator[OnStep]:
    """Show a bar on standard error while the context is open. `steps`: how many there will be, if
    known."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    counts = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    columns = ("training exits", *counts, "{task.fields[loss]}")
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as bar:
        task = bar.add_task("", total=steps, loss="")

        def on_step(step: int, loss: float) -> None:
            said = "" if math.isnan(loss) else f"loss {loss:.3f} nats"
            bar.update(task, completed=step, loss=said)

        yield on_step


def _show(trained: "ExitsDescription", out: Path, took_s: float, options: dict[str, Any]) -> None:
    if options["as_json"]:
        summary = {
            "out": str(out),
            "layers": trained.layers,
            "agreement": trained.agreement,
            "temperatures": trained.temperatures,
            "calibration_errors": trained.calibration_errors,
            "duration_s": took_s,
        }
        click.echo(json.dumps(summary))
        return
    for index, layer in enumerate(trained.layers):
        before, after = trained.calibration_errors[index]
        click.echo(
            f"exit after layer {layer}: the model's likeliest token in"
            f" {trained.agreement[index]:.1%}; temperature {trained.temperatures[index]:.2f},"
            f" calibration error {before:.3f} before it and {after:.3f} with it"
        )
    click.echo(f"{out}: written in {took_s:.0f} s")
