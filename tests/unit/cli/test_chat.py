"""`tandem chat`: turns from a pipe and from a terminal, Ctrl-C, what it refuses."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tandem.cli import main
from tandem.commands.chat_client import ChatClient, base_url
from tandem.commands.conversation import Conversation
from tandem.core.errors import InvalidArgument, TandemError
from tandem.suite.background import BackgroundSuite
from tandem.suite.models import ModelPair
from tests.unit.cli.screen import obey_terminal
from tests.unit.cli.scripted_pair import scripted_pair

TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    return scripted_pair()


@pytest.fixture(scope="module")
def url(pair: ModelPair) -> Iterator[str]:
    with BackgroundSuite(pair) as suite:
        yield suite.url


def chat(turns: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["chat", *arguments], input=turns, prog_name="tandem")


def answers(turns: str, *arguments: str) -> list[dict[str, Any]]:
    ended = chat(turns, "--json", "--max-tokens", "8", *arguments)
    assert (ended.exit_code, ended.stderr) == (0, "")
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_each_line_is_a_turn_of_one_conversation(url: str) -> None:
    first, second = answers(
        "hello\n\nagain\n", "--endpoint", url, "--system", "brief", "--seed", "3"
    )
    assert first["tokens"] == second["tokens"] == 8
    assert first["prompt_tokens"] == len("briefhello")
    assert second["prompt_tokens"] == len("briefhello" + first["text"] + "again")
    assert (first["seed"], first["preset"], first["finish_reason"]) == (3, "auto", "length")


def test_without_an_endpoint_it_answers_by_itself(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = scripted_pair()
    monkeypatch.setattr("tandem.commands.chat.load_pair", lambda draft, target: pair)
    arguments = ("--seed", "3", "--preset", "dssd", "--temperature", "0.5")
    (own,) = answers("hello\n", *arguments)
    (running,) = answers("hello\n", *arguments, "--endpoint", url)
    assert own["text"] == running["text"]
    assert (pair.draft.sessions_open, pair.target.sessions_open) == (0, 0)


def test_a_pipe_gets_text_and_nothing_else(url: str) -> None:
    ended = chat("hello\n", "--endpoint", url, "--max-tokens", "4", "--seed", "1")
    assert ended.stderr == ""
    assert ended.stdout.count("<") == 4
    assert ended.stdout.endswith(">\n")


def wait_until_freed(pair: ModelPair) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while pair.draft.sessions_open or pair.target.sessions_open:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_an_answer_that_is_left_is_cancelled(url: str, pair: ModelPair) -> None:
    with ChatClient(url, None, TIMEOUT_S) as client:
        answer = client.answer(
            [{"role": "user", "content": "hello"}], model=client.model(), max_tokens=400
        )
        next(answer)
        answer.close()
        wait_until_freed(pair)


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        path = os.pathsep.join(map(os.path.abspath, os.environ.get("PYTHONPATH", "").split(":")))
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "PYTHONPATH": path}
        self._folder = tempfile.TemporaryDirectory()
        self.folder = Path(self._folder.name)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tandem.cli", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            cwd=self.folder,
            start_new_session=True,
            preexec_fn=obey_terminal,
        )
        os.close(slave)
        self.seen = self._unread = ""

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait_for(self, words: str) -> None:
        """Until `words` come after all that was waited for before."""
        while words not in self._unread:
            ready, _, _ = select.select([self._master], [], [], TIMEOUT_S)
            assert ready, f"no {words!r} in {self._unread!r}"
            self._unread += os.read(self._master, 4096).decode(errors="replace")
        before, _, self._unread = self._unread.partition(words)
        self.seen += before + words

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)
        self._folder.cleanup()


def test_on_a_terminal_answers_have_a_status_line_and_ctrl_d_leaves(
    url: str, pair: ModelPair
) -> None:
    rounds = ("--preset", "coupled", "--max-tokens", "6", "--seed", "1")
    terminal = Terminal("chat", "--endpoint", url, *rounds)
    try:
        terminal.wait_for("> ")
        terminal.type("hello\n")
        terminal.wait_for(" drafted on the device")
        terminal.wait_for("cut off at 6 tokens")
        terminal.wait_for("> ")
        terminal.type("/new\n")
        terminal.wait_for("> ")
        terminal.type("\x04")
        assert terminal.process.wait(TIMEOUT_S) == 0
    finally:
        terminal.close()
    assert "tokens/s" in terminal.seen  # the live status line
    assert "\x1b[32m<" in terminal.seen  # accepted drafts in their colour
    assert "accepted draft\x1b[0m " in terminal.seen


def test_ctrl_c_in_an_answer_ends_only_that(url: str, pair: ModelPair) -> None:
    terminal = Terminal("chat", "--endpoint", url, "--max-tokens", "480", "--preset", "ar")
    try:
        terminal.wait_for("> ")
        terminal.type("hello\n")
        terminal.wait_for("<")
        terminal.type("\x03")
        terminal.wait_for("(stopped)")
        terminal.wait_for("> ")
        wait_until_freed(pair)
        terminal.type("\x04")
        assert terminal.process.wait(TIMEOUT_S) == 0
    finally:
        terminal.close()


def test_one_address_serves_the_commands_of_both_ports(url: str, pair: ModelPair) -> None:
    for endpoint in (url, url.removeprefix("http://")):
        ended = CliRunner().invoke(
            main, ["generate", "--raw", "hello", "--max-tokens", "8", "--endpoint", endpoint]
        )
        assert (ended.exit_code, len(ended.stdout) > 1) == (0, True), ended.stderr
        checked = CliRunner().invoke(main, ["doctor", "--json", "--endpoint", endpoint])
        checks = {check["name"]: check for check in json.loads(checked.stdout)["checks"]}
        assert checks["endpoint"]["ok"]


def test_nothing_leaves_the_machine_without_tls_unasked() -> None:
    with pytest.raises(InvalidArgument, match="--insecure"):
        base_url("http://10.0.0.1:8000", insecure=False)
    assert base_url("10.0.0.1:8000", insecure=True) == "http://10.0.0.1:8000"


def test_refusals_are_one_line_that_says_what_to_do(url: str, tmp_path: Path) -> None:
    for arguments, code, words in (
        (("--endpoint", "http://127.0.0.1:1"), 1, "is an aggregator serving HTTP there?"),
        (("--endpoint", "ftp://x"), 2, "--endpoint"),
        (("--preset", "fastest"), 2, "--preset"),
        (("--rag",), 2, "--rag"),
        (("--rag", "--preset", "dssd", "--endpoint", url), 1, "uses no documents"),
        (("--endpoint", url, "--preset", "fastest"), 1, "fastest"),
        (("--endpoint", url, "--max-tokens", "0"), 1, "max_tokens"),
        (("--endpoint", url, "--timeout", "0"), 2, "--timeout"),
        (("--endpoint", url, "--call-key-file", str(tmp_path / "none")), 2, "--call-key-file"),
    ):
        ended = chat("hello\n", *arguments)
        assert ended.exit_code == code, arguments
        assert words in ended.stderr
        assert ended.stderr.count("\n") == 1


@contextmanager
def endpoint_that_says(content: str, status: int = 200) -> Iterator[str]:
    """A server that gives this answer to everything."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # http.server's name
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content.encode())

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("content", ["[" * 100_000, "", "null", '{"data": []}'])
def test_an_endpoint_that_answers_something_else_is_named(content: str) -> None:
    for said in (content, f"data: {content}\n\n"):
        with endpoint_that_says(said) as url, ChatClient(url, None, TIMEOUT_S) as client:
            with pytest.raises(TandemError, match=f"{url} does not speak OpenAI's API"):
                client.card()
            with pytest.raises(TandemError, match=url):
                list(client.answer([{"role": "user", "content": "hello"}]))


def test_an_error_page_of_another_server_is_not_shown() -> None:
    with endpoint_that_says("<!DOCTYPE HTML><html><title>Not here</title></html>", 404) as url:
        ended = chat("hello\n", "--endpoint", url)
    assert ended.exit_code == 1
    assert ended.stderr == f"error: {url}: 404: Not Found; is an aggregator serving HTTP there?\n"


def test_a_turn_that_failed_is_not_part_of_the_conversation(url: str) -> None:
    with ChatClient(url, None, TIMEOUT_S) as client:
        talk = Conversation(client, client.card(), {"max_tokens": 4, "seed": 1}, system=None)
        with pytest.raises(TandemError, match="context"):
            list(talk.say("x" * 600))
        (*_, reply) = talk.say("hello")
    assert reply.tandem["prompt_tokens"] == len("hello")
