"""`tandem pull`: a model of the Hugging Face hub onto this machine."""

import json
import sys

import click

from tandem.commands.options import json_option
from tandem.suite.hub_models import Hub, ModelName, chosen_files, shown_size


@click.command()
@click.argument("name")
@json_option("Print one JSON object: name, commit, folder or file, and size.")
def pull(name: str, as_json: bool) -> None:
    """Download a model of the Hugging Face hub into its cache, for --draft NAME and --target NAME.

    NAME may have a revision (NAME@v1.0): a branch, a tag or a commit. The commit is printed and
    recorded: the model is used at that commit afterwards, without the hub. Of a repository of GGUF
    files NAME:Q4_K_M means one file; without it they are listed.

    Only weights in safetensors or GGUF, tokenizers and configurations are taken, and every file's
    hash is checked. Files that are complete are not downloaded again. HF_TOKEN gives access to
    gated and private models; HF_ENDPOINT names another hub.
    """
    wanted = ModelName.parse(name)
    hub = Hub()
    model = hub.find(wanted.name, wanted.revision)
    files = chosen_files(model, wanted.gguf)
    size = sum(file.size for file in files)
    if not as_json:
        count = f"{len(files)} file{'s' if len(files) > 1 else ''}"
        click.echo(f"{model.name} at commit {model.commit}: {count}, {shown_size(size)}")
    folder = hub.download(model, files, silent=as_json or not sys.stderr.isatty())
    source = folder / files[0].name if files[0].name.lower().endswith(".gguf") else folder
    usable = f"{model.name}:{wanted.gguf}" if wanted.gguf else model.name
    if as_json:
        figures = {"name": usable, "commit": model.commit, "source": str(source)}
        click.echo(json.dumps({**figures, "size_bytes": size}))
        return
    click.echo(f"{source}\n\ntandem pair {usable}\ntandem up --target {usable}")
