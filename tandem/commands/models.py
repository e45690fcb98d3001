"""`tandem models`: the models of this machine that `--draft` and `--target` can name."""

import json

import click

from tandem.commands.options import json_option
from tandem.suite.local_models import LocalModel, local_models


@click.command()
@json_option("Print one JSON object for each model.")
def models(as_json: bool) -> None:
    """List the models on this machine: in `models/`, in Hugging Face's cache, and in the stores of
    Ollama and LM Studio. They are used where they lie: --draft NAME, --target NAME."""
    listed = local_models()
    if as_json:
        for model in listed:
            click.echo(json.dumps(_figures(model)))
        return
    if not listed:
        click.echo(
            "No models in models/, Hugging Face's cache, or the stores of Ollama and LM Studio. The"
            " demo pair is always there."
        )
        return
    width = max(len(model.name) for model in listed)
    for model in listed:
        gigabytes = model.size_bytes / 1e9
        size = f"{gigabytes:.1f} GB" if gigabytes >= 1 else f"{1e3 * gigabytes:.0f} MB"
        kind = f"{model.kind}{f', {model.family}' if model.family else ''}"
        click.echo(f"{model.name:{width}}  {size:>9}  {kind:24}  {model.place}")


def _figures(model: LocalModel) -> dict[str, object]:
    return {
        "name": model.name,
        "source": str(model.source),
        "place": model.place,
        "kind": model.kind,
        "family": model.family,
        "size_bytes": model.size_bytes,
    }
