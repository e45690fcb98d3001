"""`tandem models`: the models of this machine that `--draft` and `--target` can name."""

import json
from pathlib import Path

import click

from tandem.commands.options import FOLDER, json_option
from tandem.core.errors import TandemError
from tandem.suite.local_models import LocalModel, local_models, models_in
from tandem.suite.models import choose_target


@click.command()
@click.argument("folder", required=False, type=FOLDER)
@json_option("Print one JSON object for each model.")
def models(folder: Path | None, as_json: bool) -> None:
    """List the models on this machine: in `models/`, in Hugging Face's cache, and in the stores of
    Ollama and LM Studio, or those in FOLDER. They are used where they lie: --draft NAME,
    --target NAME. The last line names the one that answers where none is named."""
    listed = local_models() if folder is None else models_in(folder)
    if as_json:
        for model in listed:
            click.echo(json.dumps(_figures(model)))
        return
    if not listed:
        stores = "models/, Hugging Face's cache, or the stores of Ollama and LM Studio"
        click.echo(f"No models in {folder or stores}.")
    width = max((len(model.name) for model in listed), default=0)
    for model in listed:
        gigabytes = model.size_bytes / 1e9
        size = f"{gigabytes:.1f} GB" if gigabytes >= 1 else f"{1e3 * gigabytes:.0f} MB"
        kind = f"{model.kind}{f', {model.family}' if model.family else ''}"
        click.echo(f"{model.name:{width}}  {size:>9}  {kind:24}  {model.place}")

    if folder is None:
        click.echo(f"\n{_default_words()}" if listed else _default_words())


def _default_words() -> str:
    try:
        target = choose_target(None)
    except TandemError as error:
        return str(error)
    return target.note or f"model: {target.source}"


def _figures(model: LocalModel) -> dict[str, object]:
    return {
        "name": model.name,
        "source": str(model.source),
        "place": model.place,
        "kind": model.kind,
        "family": model.family,
        "size_bytes": model.size_bytes,
    }
