"""`tandem learning`: what the draft model has learned from its target's answers on this device."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click

from tandem.core.errors import InvalidArgument, TandemError
from tandem.learning.store import (
    TEXTS,
    AdapterStore,
    LearningState,
    default_folder,
    read_state,
    tenant_folders,
)

Command = TypeVar("Command", bound=Callable[..., Any])
_FOLDER = click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="TANDEM_LEARN_FOLDER",
    help="Folder of the drafter (--learn-folder). Default: tandem/learning in $XDG_STATE_HOME or"
    " ~/.local/state.",
)
_TENANT = click.option(
    "--tenant", metavar="NAME", help="Only this tenant, by the name that 'show' prints."
)


def _json(words: str) -> Callable[[Command], Command]:
    return click.option("--json", "as_json", is_flag=True, help=words)


@click.group(short_help="Show, roll back or reset what the draft model has learned.")
def learning() -> None:
    """Show, roll back or reset what the draft model has learned.

    A drafter with --learn adapts its draft model to what the target answers. Each new adapter that
    is used is a version. Changes made here take effect with the next answer; the drafter need not
    be restarted."""


@learning.command()
@_FOLDER
@_TENANT
@_json("Print one JSON object: the folder and its tenants.")
def show(folder: Path | None, tenant: str | None, as_json: bool) -> None:
    """Show each tenant's versions and their acceptance on held-back texts."""
    root = folder or default_folder()
    tenants = [_described(each) for each in _chosen(root, tenant)]
    if as_json:
        click.echo(json.dumps({"folder": str(root), "tenants": tenants}))
        return
    if not tenants:
        click.echo(f"{root}: nothing has been learned")
    for each in tenants:
        click.echo(f"{each['tenant']}: {each['text_bytes']:,} bytes of texts")
        for version in each["versions"]:
            click.echo(f"  {_line(version, used=version['number'] == each['used'])}")


@learning.command()
@_FOLDER
@_TENANT
@_json("Print one JSON object: the tenant, and the version in use now (0: none).")
def rollback(folder: Path | None, tenant: str | None, as_json: bool) -> None:
    """Go back to the version before the one in use, or to the draft model as it was installed."""
    chosen = _chosen(folder or default_folder(), tenant)
    if len(chosen) > 1:
        raise InvalidArgument("tenant", f"is needed: there are {len(chosen)} tenants")
    state = _store(chosen[0]).roll_back() if chosen else None
    if state is None:
        raise TandemError("no adapter is in use")
    if as_json:
        click.echo(json.dumps({"tenant": chosen[0].name, "used": state.used}))
    else:
        said = f"version {state.used}" if state.used else "the draft model without an adapter"
        click.echo(f"{chosen[0].name}: {said} is used from the next answer on")


@learning.command()
@_FOLDER
@_TENANT
@_json("Print one JSON object: the tenants whose learning was deleted.")
def reset(folder: Path | None, tenant: str | None, as_json: bool) -> None:
    """Delete everything that was learned: texts, adapters and training."""
    chosen = _chosen(folder or default_folder(), tenant)
    for each in chosen:
        _store(each).reset()
    if as_json:
        click.echo(json.dumps({"reset": [each.name for each in chosen]}))
    else:
        click.echo(f"deleted what was learned for {len(chosen)} tenants")


def _chosen(root: Path, tenant: str | None) -> Sequence[Path]:
    folders = tenant_folders(root)
    if tenant is None:
        return folders
    chosen = [each for each in folders if each.name == tenant]
    if not chosen:
        raise InvalidArgument("tenant", f"{tenant!r} is not in {root}")
    return chosen


def _store(folder: Path) -> AdapterStore:
    state = read_state(folder)
    return AdapterStore(folder, "" if state is None else state.model)


def _described(folder: Path) -> dict[str, Any]:
    state = read_state(folder) or LearningState(model="", generation="")
    texts = folder / TEXTS
    return {
        "tenant": folder.name,
        "used": state.used,
        "text_bytes": texts.stat().st_size if texts.exists() else 0,
        "versions": [asdict(each) for each in state.versions],
    }


def _line(version: dict[str, Any], used: bool) -> str:
    in_use = " (in use)" if used else ""
    return (
        "version {number}{in_use}: acceptance {acceptance_without:.3f} without,"
        " {acceptance_before:.3f} before, {acceptance_after:.3f} after; {seconds:.0f} s of"
        " training, {cpu_seconds:.0f} s of processor time; {made_at}"
    ).format(in_use=in_use, **version)
