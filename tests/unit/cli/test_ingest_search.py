"""`tandem ingest` and `tandem search`, on a local folder and at a retriever."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tandem.cli import main
from tandem.core.errors import InvalidArgument
from tandem.index.document_index import open_index
from tandem.index.extraction import MAX_DOCUMENT_BYTES, Refusal
from tandem.index.records import Document
from tandem.suite.source_files import Source, files_below, read_sources
from tests.process.service_process import ServiceProcess


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, arguments)
    return result.exit_code, result.stdout, result.stderr


def answer(*arguments: str) -> Any:
    code, out, err = run(*arguments, "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of notes in the working folder."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "notes"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.md").write_text("# Fox\n\nThe quick brown fox.")
    (folder / "deep" / "b.html").write_text("<title>Dog</title><p>The lazy dog.")
    (folder / "lines.jsonl").write_text('{"id": "z", "text": "zebra crossing"}\n')
    (folder / ".hidden.txt").write_text("secret")
    (folder / "program.bin").write_bytes(bytes(10))
    return folder


def test_the_first_ingest_says_where_texts_are_kept(notes: Path) -> None:
    said = "keeps the texts of the documents, and their index, in here\n"
    flags = ("ingest", "notes", "--embedding", "lexical", "--folder", "here")
    assert said in run(*flags)[2]
    assert said not in run(*flags)[2]


def test_a_folder_is_ingested_searched_and_costs_nothing_again(notes: Path) -> None:
    counts = answer("ingest", "notes", "--embedding", "lexical")
    assert (counts["added"], counts["unchanged"], counts["refused"]) == (3, 0, [])
    assert answer("ingest", "notes")["unchanged"] == 3
    (notes / "a.md").write_text("# Fox\n\nThe slow red fox.")
    assert answer("ingest", "notes")["updated"] == 1
    (hit,) = answer("search", "lazy", "dog")["hits"]
    assert (hit["document_id"], hit["title"]) == ("notes/deep/b.html", "Dog")
    assert answer("search", "zebra")["hits"][0]["document_id"] == "notes/lines.jsonl#z"
    assert answer("search", "secret")["hits"] == []
    code, out, _ = run("search", "slow fox")
    assert (code, out.splitlines()[0]) == (0, "1. notes/a.md [0]  Fox")


def test_a_terminal_shows_only_what_is_printable_of_a_document(notes: Path) -> None:
    """The direction of writing, say, would make an id read as another one."""
    line = {"id": "z\u202e", "title": "\u202etitle\n2.", "text": "zebra \u2066crossing"}
    (notes / "lines.jsonl").write_text(json.dumps(line))
    answer("ingest", "notes", "--embedding", "lexical")
    code, out, _ = run("search", "zebra")
    assert code == 0
    assert all(each.isprintable() for each in out.splitlines())
    assert out.startswith("1. notes/lines.jsonl#z")
    assert len(out.splitlines()) == 2


def test_documents_are_deleted_by_the_names_that_searches_give(notes: Path) -> None:
    code, _, err = run("ingest", "--delete", "notes/a.md")
    assert (code, "tandem-index does not exist" in err) == (2, True)
    answer("ingest", "notes", "--embedding", "lexical")
    (notes / "a.md").unlink()
    code, out, err = run("ingest", "--delete", "notes/a.md", "notes/lines.jsonl#z", "none")
    assert (code, out) == (1, "2 deleted\n")
    assert "1 of 3 were not found, first none" in err
    assert answer("search", "zebra fox")["hits"] == []
    assert len(answer("search", "dog")["hits"]) == 1


def test_what_cannot_be_read_is_named_and_the_rest_is_stored(notes: Path) -> None:
    with (notes / "lines.jsonl").open("ab") as file:
        file.write(b'{"text": "' + b"x" * (20 * 2**20) + b'"}\n{"id": "last", "text": "end"}\n')
    code, out, err = run("ingest", "notes", "notes/program.bin", "--embedding", "lexical", "--json")
    counts = json.loads(out)
    assert (code, counts["added"]) == (1, 4)
    assert {refused["id"]: refused["reason"] for refused in counts["refused"]} == {
        "notes/lines.jsonl#2": f"content: more than {MAX_DOCUMENT_BYTES} bytes",
        "notes/program.bin": "content: is not text: a zero byte at 0",
    }
    assert answer("search", "end")["hits"][0]["document_id"] == "notes/lines.jsonl#last"
    assert "2 of 6 refused" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ingest", "nowhere"], "nowhere does not exist"),
        (["ingest", "notes", "--folder", "notes"], "is not empty"),
        (["ingest", "notes", "--embedding", "nothing"], "is not a folder"),
        (["ingest", "notes", "--chunk-tokens", "3", "--embedding", "lexical"], "chunk-tokens"),
        (["ingest", "notes", "--endpoint", "127.0.0.1:1", "--folder", "x"], "leave out one"),
        (["ingest", "notes", "--endpoint", "127.0.0.1:1"], "127.0.0.1:1"),
        (["search", "x"], "create one with 'tandem ingest PATH'"),
        (["search", "x", "--endpoint", "127.0.0.1:1"], "127.0.0.1:1"),
        (["search", "x", "--count", "0"], "--count"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(notes: Path, arguments: list[str], words: str) -> None:
    code, out, err = run(*arguments)
    assert code in (1, 2)
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


def test_a_full_disk_is_said_plainly_with_what_is_stored(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"number {n} " * 200}) for n in range(300)]
    (tmp_path / "many.jsonl").write_text("\n".join(lines))
    arguments = [str(tmp_path / "many.jsonl"), "--folder", str(tmp_path / "index")]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, hard))
    try:
        failed = CliRunner().invoke(main, ["ingest", *arguments, "--embedding", "lexical"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert failed.exit_code == 1
    assert "no room" in failed.output
    with closing(open_index(tmp_path / "index")) as index:
        stored = index.stats().documents
    assert 0 < stored < 300
    assert failed.output.rstrip().endswith(f"; {stored} documents are stored")


def test_a_missing_path_is_refused_before_anything_is_made(notes: Path) -> None:
    with pytest.raises(InvalidArgument):
        files_below([notes, notes / "none"])
    run("ingest", "notes", "none", "--embedding", "lexical")
    assert not (notes.parent / "tandem-index").exists()


def test_a_running_retriever_is_filled_and_asked(notes: Path) -> None:
    flags = ("--port", "0", "--folder", str(notes.parent / "index"), "--embedding", "lexical")
    with ServiceProcess("tandem.services.retriever", *flags) as process:
        endpoint = process.address()
        assert answer("ingest", "notes", "--endpoint", endpoint)["added"] == 3
        listed = answer("ingest", "--list", "--endpoint", endpoint)["documents"]
        assert listed == ["notes/a.md", "notes/deep/b.html", "notes/lines.jsonl#z"]
        assert answer("ingest", "--list", "--owner", "ann", "--endpoint", endpoint) == {
            "documents": []
        }
        assert answer("ingest", "notes", "--endpoint", endpoint)["unchanged"] == 3
        (hit,) = answer("search", "brown", "--endpoint", endpoint)["hits"]
        assert (hit["document_id"], hit["chunk"], hit["similarity"]) == ("notes/a.md", 0, None)
        told = answer("ingest", "--delete", "notes/a.md", "--endpoint", endpoint)
        assert told == {"deleted": 1, "unknown": []}
        assert answer("search", "brown", "--endpoint", endpoint)["hits"] == []
        code, _, err = run("ingest", "notes", "--folder", "index", "--embedding", "lexical")
        assert code == 1
        assert "is open in process" in err


def test_ingesting_nothing_is_bad_usage() -> None:
    code, _, err = run("ingest")
    assert code == 2
    assert "set either PATHS or --list" in err


def test_indexes_are_checked(notes: Path, tmp_path: Path) -> None:
    whole, strange = tmp_path / "whole", tmp_path / "strange"
    answer("ingest", "notes", "--folder", str(whole), "--embedding", "lexical")
    strange.mkdir()
    (strange / "manifest.json").write_text("{}")
    code, out, _ = run("doctor", "--index", str(whole), "--index", str(strange))
    assert code == 1
    assert f"ok   index {whole}: 3 documents, 3 texts, " in out
    assert f"bad  index {strange}: {strange}: is not empty (manifest.json)" in out
    code, out, _ = run("doctor", "--index", "nowhere")
    assert code == 1
    assert "name a folder that `tandem ingest` or a retriever has filled" in out


def test_a_tenant_s_documents_are_searched_and_deleted_by_the_operator(notes: Path) -> None:
    answer("ingest", "notes", "--embedding", "lexical")
    with closing(open_index(Path("tandem-index"), "lexical")) as index:
        index.add([Document("a.md", "a fox of ann's", owner="ann")])
    assert {hit["owner"] for hit in answer("search", "fox")["hits"]} == {""}
    found = answer("search", "fox", "--owner", "ann")["hits"]
    assert {(hit["owner"], hit["document_id"]) for hit in found} == {
        ("", "notes/a.md"),
        ("ann", "a.md"),
    }
    assert "(ann)" in run("search", "fox", "--owner", "ann")[1]
    assert answer("ingest", "--list", "--owner", "ann") == {"documents": ["a.md"]}
    assert run("ingest", "--list")[1].split("\n") == [
        *("notes/a.md", "notes/deep/b.html", "notes/lines.jsonl#z", "")
    ]
    assert run("ingest", "--list", "notes")[0] == run("ingest")[0] == 2
    assert run("ingest", "--delete", "a.md")[0] == 1
    assert answer("ingest", "--delete", "a.md", "--owner", "ann")["deleted"] == 1
    assert run("ingest", "notes", "--owner", "ann")[0] == 2
    assert "owner" in run("search", "fox", "--owner", "a b")[2]


def test_what_a_document_says_does_nothing_to_the_terminal(notes: Path) -> None:
    """Names and texts come from files of strangers."""
    (notes / "evil.jsonl").write_text(
        json.dumps({"id": "x\x1b]0;root\x07", "title": "t\u202e", "text": "quokka \x1b[2J\x9b1m"})
    )
    answer("ingest", "notes", "--embedding", "lexical")
    code, out, _ = run("search", "quokka")
    assert code == 0
    assert "quokka" in out
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & {*out}
    (notes / "bad\x1b[2J.md").write_bytes(b"\0")
    code, out, err = run("ingest", "notes")
    assert code == 1
    assert "\x1b" not in out + err


def reasons(passed: list[dict[str, str]]) -> dict[str, str]:
    return {one["name"]: one["reason"] for one in passed}


def test_what_a_folder_holds_besides_is_listed_with_the_reason(notes: Path) -> None:
    (notes / "deep" / "README").write_text("no ending")
    (notes / "__init__.py").touch()
    os.mkfifo(notes / "pipe.txt")
    counts = answer("ingest", "notes", "--embedding", "lexical")
    assert counts["added"] == 3
    assert reasons(counts["passed"]) == {
        "notes/.hidden.txt": "is hidden",
        "notes/__init__.py": "is empty",
        "notes/deep/README": "files without an ending are not read from folders; name it to have"
        " it read as text",
        "notes/pipe.txt": "is no regular file",
        "notes/program.bin": "files ending in .bin are not read from folders; name it to have it"
        " read as text",
    }
    code, out, err = run("ingest", "notes")
    assert (code, out.split(" (")[0]) == (0, "3 unchanged, 5 passed over")
    assert "passed over notes/pipe.txt: is no regular file" in err.splitlines()


def test_a_file_whose_name_is_no_text_is_refused_by_its_name(notes: Path) -> None:
    Path(os.fsdecode(b"notes/caf\xe9.txt")).write_text("latte")
    code, out, _ = run("ingest", "notes", "--embedding", "lexical", "--json")
    counts = json.loads(out)
    assert (code, counts["added"]) == (1, 3)
    (refused,) = counts["refused"]
    assert refused["reason"] == "has a name that is not UTF-8; rename it"


def test_links_lead_out_of_a_folder_only_when_that_is_asked_for(
    notes: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text("secret quokka")
    (notes / "way").symlink_to(tmp_path / "outside")
    (tmp_path / "other.txt").write_text("another quokka")
    (notes / "file.txt").symlink_to(tmp_path / "other.txt")
    (notes / "circle").symlink_to(notes)
    (notes / "nowhere.txt").symlink_to(notes / "none")
    counts = answer("ingest", "notes", "--embedding", "lexical")
    assert answer("search", "quokka")["hits"] == []
    links = [name for name, why in reasons(counts["passed"]).items() if "is a link" in why]
    assert links == ["notes/circle", "notes/file.txt", "notes/nowhere.txt", "notes/way"]
    code, out, _ = run("ingest", "notes", "--follow-links", "--json")
    counts = json.loads(out)
    assert reasons(counts["passed"])["notes/circle"] == "leads to a folder that it is in"
    assert (code, counts["refused"]) == (
        1,
        [{"id": "notes/nowhere.txt", "reason": "is a link that leads nowhere"}],
    )
    assert counts["added"] == 2
    found = {hit["document_id"] for hit in answer("search", "quokka")["hits"]}
    assert found == {"notes/file.txt", "notes/way/secret.txt"}


@pytest.mark.parametrize("replaced", ["deep", "deep/b.html"])
def test_a_link_put_there_after_the_listing_is_not_followed(
    notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: str
) -> None:
    """Whoever may write to the folder may put one there at any moment."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "b.html").write_text("secret quokka")
    selection = files_below([Path("notes")])
    (notes / replaced).rename(tmp_path / "moved")
    (notes / replaced).symlink_to(tmp_path / "outside" / Path(replaced).relative_to("deep"))
    assert b"secret" in (notes / "deep" / "b.html").read_bytes()
    read = {one.id: one.why for one in read_sources(selection.files) if isinstance(one, Refusal)}
    assert read == {"notes/deep/b.html": "a link was put on the way to it, and is not followed"}
    # A link may be a part of what is named itself.
    (notes.parent / "way").symlink_to(notes)
    below = read_sources(files_below([Path("way")]).files)
    assert {one.upload.id for one in below if isinstance(one, Source)} == {
        "way/a.md",
        "way/lines.jsonl#z",
    }


@contextmanager
def unreadable(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[None]:
    """What a disk of the network that fails, and a lack of rights, look like."""
    fails = OSError(errno.EIO, os.strerror(errno.EIO))

    def guarded(call: Callable[..., Any]) -> Callable[..., Any]:
        def or_fails(path: Any, *more: Any, **named: Any) -> Any:
            if not isinstance(path, int) and name in os.fspath(path):
                raise fails
            return call(path, *more, **named)

        return or_fails

    with monkeypatch.context() as patched:
        for function in ("listdir", "scandir", "open"):
            patched.setattr(os, function, guarded(getattr(os, function)))
        yield


@pytest.mark.parametrize("name", ["deep", "lines.jsonl"])
def test_what_cannot_be_read_is_not_gone(
    notes: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for number in range(4):
        (notes / f"{number}.txt").write_text(f"note {number}")
    answer("ingest", "notes", "--embedding", "lexical")
    before = answer("ingest", "--list")["documents"]
    (notes / "a.md").unlink()
    with unreadable(monkeypatch, name):
        code, _, err = run("ingest", "notes", "--sync")
    assert code == 1
    assert f"refused notes/{name}: cannot be read: Input/output error" in err
    assert answer("ingest", "--list")["documents"] == [one for one in before if one != "notes/a.md"]


def test_a_line_that_cannot_be_read_may_be_that_of_any_document_of_its_file(notes: Path) -> None:
    answer("ingest", "notes", "--embedding", "lexical")
    (notes / "lines.jsonl").write_text('{"id": "z", "text": "zebra\n')
    code, _, err = run("ingest", "notes", "--sync")
    assert (code, "refused notes/lines.jsonl#1" in err) == (1, True)
    assert "notes/lines.jsonl#z" in answer("ingest", "--list")["documents"]


def test_most_documents_of_a_folder_are_deleted_only_by_force(notes: Path) -> None:
    """A disk that is not mounted is an empty folder."""
    (notes.parent / "others").mkdir()
    for number in range(9):
        (notes.parent / "others" / f"{number}.txt").write_text(f"note {number}")
    answer("ingest", "notes", "others", "--embedding", "lexical")
    before = answer("ingest", "--list")["documents"]
    notes.rename(notes.parent / "elsewhere")
    notes.mkdir()
    (notes.parent / "others" / "0.txt").unlink()
    code, out, err = run("ingest", "notes", "others", "--sync")
    assert (code, out.split(" (")[0]) == (1, "8 unchanged, 1 deleted")
    assert "3 of 3 documents of notes have no file there any more" in err
    assert "--force" in err
    assert answer("ingest", "--list")["documents"] == [b for b in before if b != "others/0.txt"]
    assert answer("ingest", "notes", "others", "--sync", "--force")["deleted"] == 3
    assert run("ingest", "notes", "--force")[0] == 2


def test_a_pipe_is_not_waited_for(notes: Path) -> None:
    os.mkfifo(notes / "pipe")
    code, out, err = run("ingest", "notes/pipe", "--embedding", "lexical")
    assert (code, out.split(" (")[0]) == (1, "1 refused")
    assert "refused notes/pipe: is no regular file" in err


@pytest.mark.parametrize("running", [False, True])
def test_what_is_gone_from_a_folder_goes_from_the_index(notes: Path, running: bool) -> None:
    (notes.parent / "others").mkdir()
    (notes.parent / "others" / "c.md").write_text("another folder")
    with ExitStack() as stack:
        place: tuple[str, ...] = ("--embedding", "lexical")
        if running:
            folder = str(notes.parent / "index")
            flags = ("--port", "0", "--folder", folder, "--embedding", "lexical")
            service = stack.enter_context(ServiceProcess("tandem.services.retriever", *flags))
            place = ("--endpoint", service.address())
        for name in ("notes", "others"):
            answer("ingest", name, *place)
        (notes / "a.md").unlink()
        (notes / "lines.jsonl").write_text('{"id": "y", "text": "a yak"}\n')
        (notes / "deep" / "b.html").write_bytes(b"zero \0 byte")
        listed = place if running else ()
        before = answer("ingest", "--list", *listed)["documents"]
        assert before == ["notes/a.md", "notes/deep/b.html", "notes/lines.jsonl#z", "others/c.md"]
        code, out, _ = run("ingest", "notes", "--sync", *place)
        assert (code, out.split(" (")[0]) == (1, "1 added, 1 refused, 2 deleted, 2 passed over")
        kept = answer("ingest", "--list", *listed)["documents"]
        # What cannot be read now is not gone.
        assert kept == ["notes/deep/b.html", "notes/lines.jsonl#y", "others/c.md"]


def test_only_a_folder_with_a_name_is_synced(notes: Path) -> None:
    code, _, err = run("ingest", ".", "--sync", "--embedding", "lexical")
    assert (code, "name the folder instead of '.'" in err) == (2, True)
    assert not (notes.parent / "tandem-index").exists()


def test_a_watched_folder_is_brought_in_as_it_changes(notes: Path) -> None:
    """Until Ctrl-C, which is no failure."""
    command = [sys.executable, "-m", "tandem", "ingest", "notes", "--watch", "--json"]
    with subprocess.Popen(
        [*command, "--embedding", "lexical"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=notes.parent,
        # Also where these tests run in the background of a shell, which ignores the signal.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as watching:
        assert watching.stdout is not None
        try:
            assert json.loads(watching.stdout.readline())["added"] == 3
            (notes / "a.md").unlink()
            (notes / "new.txt").write_text("a newt")
            counts = json.loads(watching.stdout.readline())
            while counts["deleted"] + counts["added"] < 2:  # it may have looked in between
                more = json.loads(watching.stdout.readline())
                counts = {name: counts[name] + more[name] for name in ("added", "deleted")}
            assert (counts["added"], counts["deleted"]) == (1, 1)
        finally:
            watching.send_signal(signal.SIGINT)
        assert watching.wait(timeout=60) in (0, 1, 130)
    names = answer("ingest", "--list")["documents"]
    assert names == ["notes/deep/b.html", "notes/lines.jsonl#z", "notes/new.txt"]
