"""`tandem search`: the best chunks for a query, from a retriever or a folder of this machine.

Must not import grpc or torch.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from google.protobuf.json_format import MessageToDict

from tandem.commands.asking import explain
from tandem.commands.calling import access_options, access_to
from tandem.commands.ingest import DEFAULT_FOLDER
from tandem.commands.options import ADDRESS, address_text, json_option
from tandem.core.errors import InvalidArgument
from tandem.index.document_index import MAX_HITS, open_index
from tandem.index.manifest import read_manifest
from tandem.index.reranking import load_reranker
from tandem.index.searcher import SearchMode
from tandem.rpc.process import run_loop
from tandem.rpc.retriever_client import RetrieverClient
from tandem.rpc.status import Rejected
from tandem.telemetry.logging import configure_logging

_SHOWN_LETTERS = 300


@click.command()
@click.argument("query", nargs=-1, required=True)
@click.option("--endpoint", type=ADDRESS, help="A running retriever. Default: a local folder.")
@access_options
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"Index folder of this machine. Default: {DEFAULT_FOLDER}.",
)
@click.option(
    "--embedding", help="The folder's model, where it is not the packaged MiniLM or lexical."
)
@click.option(
    "--count", type=click.IntRange(1, MAX_HITS), default=5, show_default=True, help="Hits at most."
)
@click.option(
    "--mode",
    type=click.Choice([str(mode) for mode in SearchMode]),
    default=str(SearchMode.HYBRID),
    show_default=True,
    help="Rank by both, by vectors alone, or by words alone.",
)
@click.option(
    "--reranker", help="Local folder only: a cross-encoder's folder, to judge the best again."
)
@click.option("--rerank", is_flag=True, help="Let the retriever's cross-encoder judge the best.")
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), default=30.0, show_default=True
)
@json_option("Print one JSON object with the hits, and nothing else.")
def search(**options: Any) -> None:
    """Find the chunks of ingested documents that answer QUERY best.

    Finding nothing is no failure.
    """
    query = " ".join(options["query"])
    configure_logging("critical")
    if options["endpoint"] is None:
        hits = _in_folder(query, options)
    else:
        for name in ("folder", "embedding", "reranker"):
            if options[name] is not None:
                why = "the retriever at --endpoint has its own; leave one out"
                raise InvalidArgument(name, why)
        hits = run_loop(_at_retriever(query, options))
    if options["as_json"]:
        click.echo(json.dumps({"query": query, "hits": hits}))
        return
    for rank, hit in enumerate(hits, 1):
        _show(rank, hit)
    if not hits:
        click.echo("nothing found", err=True)


def _in_folder(query: str, options: dict[str, Any]) -> list[dict[str, Any]]:
    folder = options["folder"] or DEFAULT_FOLDER
    if read_manifest(folder) is None:
        raise InvalidArgument("folder", f"{folder} is no index; 'tandem ingest PATH' makes one")
    reranker = load_reranker(options["reranker"]) if options["reranker"] else None
    if options["rerank"] and reranker is None:
        raise InvalidArgument("rerank", "a local folder needs --reranker FOLDER")
    index = open_index(folder, options["embedding"] or "auto", reranker=reranker)
    try:
        found = index.search(
            query, options["count"], SearchMode(options["mode"]), rerank=reranker is not None
        )
    finally:
        index.close()
    return [asdict(hit) for hit in found]


async def _at_retriever(query: str, options: dict[str, Any]) -> list[dict[str, Any]]:
    endpoint = address_text(options["endpoint"])
    access = access_to(options["endpoint"], options)
    try:
        async with RetrieverClient(endpoint, access) as client:
            found = await client.search(
                query,
                options["count"],
                options["mode"],
                rerank=options["rerank"],
                timeout_s=options["timeout"],
            )
    except Rejected as error:
        raise explain(error, endpoint, options["timeout"]) from error
    return [_hit_object(hit) for hit in found.hits]


def _hit_object(hit: Any) -> dict[str, Any]:
    """As of a local folder: every name, None where there is nothing to say."""
    names = [field.name for field in hit.DESCRIPTOR.fields]
    given = MessageToDict(
        hit, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return {name: given.get(name) for name in names}


def _show(rank: int, hit: dict[str, Any]) -> None:
    title = f"  {hit['title']}" if hit["title"] else ""
    click.secho(f"{rank}. {hit['document_id']} [{hit['chunk']}]{title}", bold=True)
    text = " ".join(hit["text"].split())
    click.echo(f"   {text[:_SHOWN_LETTERS]}{'…' if len(text) > _SHOWN_LETTERS else ''}")
