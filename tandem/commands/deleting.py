"""`tandem ingest --delete`: documents out of a retriever, or out of a folder of this machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tandem.commands.asking import explain
from tandem.commands.calling import access_to
from tandem.commands.options import address_text
from tandem.core.errors import InvalidArgument, TandemError
from tandem.index.document_index import open_index
from tandem.rpc.process import run_loop
from tandem.rpc.retriever_client import RetrieverClient
from tandem.rpc.status import Rejected


def delete(names: Sequence[str], folder: Path, options: dict[str, Any]) -> None:
    """Delete the documents of these names, and say of how many there was one. Raises TandemError
    naming the first that was not there; the others are deleted then."""
    if options["endpoint"] is None:
        there = _from_folder(names, folder, options)
    else:
        there = run_loop(_from_retriever(names, options))
    unknown = [name for name, found in zip(names, there, strict=True) if not found]
    if options["as_json"]:
        click.echo(json.dumps({"deleted": sum(there), "unknown": unknown}))
    else:
        click.echo(f"{sum(there)} deleted")
    if unknown:
        raise TandemError(f"{len(unknown)} of {len(names)} were not there, first {unknown[0]}")


def _from_folder(names: Sequence[str], folder: Path, options: dict[str, Any]) -> list[bool]:
    if not folder.is_dir():
        raise InvalidArgument("folder", f"{folder} does not exist")
    index = open_index(folder, options["embedding"] or "auto", None)
    try:
        return index.remove(names)
    finally:
        index.close()


async def _from_retriever(names: Sequence[str], options: dict[str, Any]) -> list[bool]:
    endpoint = address_text(options["endpoint"])
    access = access_to(options["endpoint"], options)
    try:
        async with RetrieverClient(endpoint, access) as client:
            return await client.delete(names, options["timeout"])
    except Rejected as error:
        raise explain(error, endpoint, options["timeout"]) from error
