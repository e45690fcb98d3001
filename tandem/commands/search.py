"""`tandem search`: the best chunks for a query, from a retriever or a folder of this machine."""

import json
from contextlib import closing
from dataclasses import asdict
from typing import Any

import click
from google.protobuf.json_format import MessageToDict

from tandem.commands.calling import access_options, retriever_at
from tandem.commands.ingest import DEFAULT_FOLDER, refuse_flags
from tandem.commands.options import ENDPOINT, FOLDER, json_option, owner_option
from tandem.core.errors import InvalidArgument
from tandem.core.foreign_words import cleaned
from tandem.index.document_index import MAX_HITS, open_index, stored_manifest
from tandem.index.names import shown
from tandem.index.reranking import load_reranker
from tandem.index.searcher import SearchMode
from tandem.net.process import run_loop
from tandem.telemetry.logging import configure_logging

_SHOWN_LETTERS = 300


@click.command()
@click.argument("query", nargs=-1, required=True)
@click.option(
    "--endpoint",
    type=ENDPOINT,
    help="gRPC port of a running retriever: HOST:PORT. Default: use a local folder.",
)
@access_options
@owner_option("Search as this tenant (the holder of an HTTP key). Default: the operator.")
@click.option(
    "--folder", type=FOLDER, help=f"Index folder of this machine. Default: {DEFAULT_FOLDER}."
)
@click.option(
    "--embedding",
    help="Embedding model of the folder, if it is not the packaged MiniLM or lexical.",
)
@click.option(
    "--count", type=click.IntRange(1, MAX_HITS), default=5, help="Maximum number of hits."
)
@click.option(
    "--mode",
    type=click.Choice([str(mode) for mode in SearchMode]),
    default=str(SearchMode.HYBRID),
    help="Rank by both, by vectors only, or by words only.",
)
@click.option(
    "--reranker", help="Local folder only. Folder of a cross-encoder that re-ranks the best hits."
)
@click.option(
    "--rerank", is_flag=True, help="Re-rank the best hits with the retriever's cross-encoder."
)
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=30.0)
@json_option("Print only one JSON object with the hits.")
def search(**options: Any) -> None:
    """Find the chunks of ingested documents that answer QUERY best; exit code 0 even if none do."""
    query = " ".join(options["query"])
    configure_logging("critical")
    if options["endpoint"] is None:
        hits = _in_folder(query, options)
    else:
        refuse_flags(options, "folder", "embedding", "reranker")
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
    if stored_manifest(folder) is None:
        raise InvalidArgument(
            "folder", f"{folder} is not an index; create one with 'tandem ingest PATH'"
        )
    reranker = load_reranker(options["reranker"]) if options["reranker"] else None
    if options["rerank"] and reranker is None:
        raise InvalidArgument("rerank", "a local folder needs --reranker FOLDER")
    mode = SearchMode(options["mode"])
    rerank = reranker is not None
    embedding = options["embedding"] or "auto"
    with closing(open_index(folder, embedding, reranker=reranker)) as index:
        hits = index.search(query, options["count"], mode, rerank=rerank, tenant=options["owner"])
        return [asdict(hit) for hit in hits]


async def _at_retriever(query: str, options: dict[str, Any]) -> list[dict[str, Any]]:
    async with retriever_at(options) as client:
        response = await client.search(
            query,
            options["count"],
            options["mode"],
            rerank=options["rerank"],
            timeout_s=options["timeout"],
            tenant=options["owner"],
        )
    return [_hit_object(hit) for hit in response.hits]


def _hit_object(hit: Any) -> dict[str, Any]:
    """Return a hit like that of a local folder: every name, None for unknown values."""
    names = [field.name for field in hit.DESCRIPTOR.fields]
    given = MessageToDict(
        hit, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return {name: given.get(name) for name in names}


def _show(rank: int, hit: dict[str, Any]) -> None:
    """Print a hit. Its name, title and text are made safe for a terminal: whoever wrote the
    document chose them."""
    title = f"  {shown(hit['title'])}" if hit["title"] else ""
    owner = f"  ({hit['owner']})" if hit["owner"] else ""
    click.secho(f"{rank}. {shown(hit['document_id'])} [{hit['chunk']}]{title}{owner}", bold=True)
    click.echo(f"   {cleaned(shown(hit['text']), _SHOWN_LETTERS + 1)}")
