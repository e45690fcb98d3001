"""`tandem memory`: what drafters of this machine remember of texts."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from tandem.commands.options import json_option
from tandem.core.errors import TandemError
from tandem.runtime.memory_files import clear as clear_folder
from tandem.runtime.memory_files import default_memory_folder, figures_of, files_in

_FOLDER = click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of remembered texts. Default: the one of this user, which 'tandem up', 'generate'"
    " and 'chat' use.",
)


@click.group()
def memory() -> None:
    """Show or delete what is remembered of prompts and answers.

    A drafter remembers the texts of its tenants on its own machine, to draft from them when an
    answer repeats one. --no-memory of 'tandem up', 'generate' and 'chat' turns that off.
    """


@memory.command()
@_FOLDER
@json_option("Print one JSON object for each tenant and vocabulary.")
def show(folder: Path | None, as_json: bool) -> None:
    """Show how much is remembered: no texts, as these are token ids of a model."""
    folder = folder or default_memory_folder()
    files = files_in(folder)
    if not files and not as_json:
        click.echo(f"nothing is remembered in {folder}")
        return
    for path in files:
        figures = figures_of(path)
        if as_json:
            click.echo(json.dumps(_object(path, figures.texts, figures.tokens, figures.size_bytes)))
            continue
        written = datetime.fromtimestamp(figures.written_s).astimezone().strftime("%Y-%m-%d %H:%M")
        size = f"{figures.size_bytes / 1e6:.2f} MB"
        texts = f"{figures.tokens:,} tokens of {figures.texts:,} texts"
        click.echo(f"{path.stem}  {texts}, {size}, last written {written}")


def _object(path: Path, texts: int, tokens: int, size_bytes: int) -> dict[str, Any]:
    return {"file": str(path), "texts": texts, "tokens": tokens, "size_bytes": size_bytes}


@memory.command()
@_FOLDER
@json_option("Print one JSON object with the number of deleted files.")
def clear(folder: Path | None, as_json: bool) -> None:
    """Delete all that is remembered. Running drafters forget it with their next request."""
    folder = folder or default_memory_folder()
    try:
        count = clear_folder(folder)
    except OSError as error:
        raise TandemError(f"{folder}: cannot be deleted: {error.strerror}") from error
    if as_json:
        click.echo(json.dumps({"folder": str(folder), "deleted": count}))
    else:
        click.echo(f"deleted {count} file{'' if count == 1 else 's'} in {folder}")
