"""The command line as a person or a script meets it: real processes, signals, the demo pair."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from click.testing import CliRunner

from tandem.cli import main
from tandem.demo import demo_folder
from tests.process.running_suite import (
    TANDEM,
    TESTING,
    TIMEOUT_S,
    Up,
    consecutive_free_ports,
    first_character,
    gauge,
    running_up,
    started,
    tandem,
    wait_for_end,
)
from tests.unit.cli.screen import obey_terminal

pytestmark = pytest.mark.timeout(TIMEOUT_S)

PROMPT = ("--raw", "--prompt", "Question: Tom has 5 apples and buys 3. How many has he?\nAnswer:")
GREEDY = (*PROMPT, "--max-tokens", "48", "--temperature", "0")
LONG = (*PROMPT, "--max-tokens", "900", "--ignore-eos", "--draft-length", "1")
"""Over the suite's link this takes many seconds."""
SCRIPTED = (
    *("--draft", "1", "--engine-draft", "scripted"),
    *("--target", "1", "--engine-target", "scripted"),
)
"""Models that load at once, for `TESTING`."""


@pytest.fixture(scope="module", autouse=True)
def folder_for_logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where suites that fail leave their logs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("logs")))
        yield


@pytest.fixture(scope="module")
def metrics_port() -> int:
    return consecutive_free_ports(3)


@pytest.fixture(scope="module")
def suite(metrics_port: int) -> Iterator[Up]:
    """All services, with 20 ms between the two sides."""
    cloud_draft = ("--cloud-draft", str(demo_folder("demo-draft")))
    with running_up("--rtt-ms", "20", "--metrics-port", str(metrics_port), *cloud_draft) as up:
        yield up


@pytest.fixture(scope="module")
def greedy_text(suite: Up) -> str:
    """The target's own: every preset's, in a terminal or not."""
    text: str = suite.generate("--preset", "ar", *GREEDY)["text"]
    return text


def asking(up: Up, *arguments: str) -> tuple[str, ...]:
    return ("generate", "--endpoint", up.endpoint, *arguments)


def one_line(words: str) -> str:
    assert len(words.splitlines()) == 1, words
    assert "Traceback" not in words
    return words


def test_an_embedded_suite_needs_no_service_and_no_particular_folder(
    greedy_text: str, tmp_path: Path
) -> None:
    ended = tandem("generate", "--json", *GREEDY, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(ended.stdout)["text"] == greedy_text


def test_the_http_api_answers_as_the_command_line_does(suite: Up) -> None:
    """Chat in the model's own template; and a port that is told when it was chosen."""
    body = {
        "model": "demo-target",
        "messages": [{"role": "user", "content": "Tom has 3 apples."}],
        "max_tokens": 12,
        "seed": 4,
        "temperature": 0.7,  # what the command line takes for chats with a model that names none
    }
    answer = httpx2.post(f"{suite.places['http']}/v1/chat/completions", json=body, timeout=30)
    assert answer.status_code == 200
    (choice,) = answer.json()["choices"]
    flags = ("--prompt", "Tom has 3 apples.", "--max-tokens", "12", "--seed", "4")
    assert choice["message"]["content"] == suite.generate(*flags)["text"]


def test_an_interrupted_answer_frees_the_memory_on_both_sides(suite: Up, metrics_port: int) -> None:
    with started(*asking(suite, *LONG)) as process:
        assert first_character(process)
        assert suite.kv_bytes() > 0
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 130
        assert process.stderr is not None
        assert one_line(process.stderr.read().strip()) == "interrupted"
    suite.wait_until_freed()
    suite.generate(*GREEDY)  # its end writes the drafter's gauge anew
    assert gauge(metrics_port + 1, "tandem_kv_bytes") == 0
    assert gauge(metrics_port + 2, "tandem_kv_bytes") == 0


def test_an_interrupted_embedded_suite_ends_as_well() -> None:
    with started("generate", "--demo", *LONG) as process:
        assert first_character(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 130


def test_a_reader_that_leaves_cancels_the_answer(suite: Up) -> None:
    with started(*asking(suite, *LONG)) as process:
        assert first_character(process)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait(TIMEOUT_S) == 1
        assert process.stderr.read() == ""
    suite.wait_until_freed()


def read_terminal(terminal: int, until: bytes = b"") -> bytes:
    """What was written, until something comes or the other end closes."""
    shown = b""
    while not until or until not in shown:
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # how Linux says that nobody has the other end open any more
            return shown
        if not piece:
            return shown
        shown += piece
    return shown


def on_terminal(*arguments: str) -> tuple[subprocess.Popen[bytes], int]:
    """A process whose three streams are one terminal, and this end of the terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [TANDEM, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "60"},
        start_new_session=True,
        preexec_fn=obey_terminal,
    )
    os.close(theirs)
    return process, ours


def test_control_c_on_a_terminal(suite: Up) -> None:
    process, terminal = on_terminal(*asking(suite, *LONG))
    read_terminal(terminal, until=b"tokens/s")
    os.write(terminal, b"\x03")
    read_terminal(terminal)
    assert process.wait(TIMEOUT_S) == 130
    os.close(terminal)
    suite.wait_until_freed()


def test_a_link_of_ones_own(suite: Up) -> None:
    arguments = ("--listen", "127.0.0.1:0", "--target", suite.endpoint, "--rtt-ms", "100")
    with started("link", *arguments, "--control", "0", "--json") as process:
        assert process.stdout is not None
        places = json.loads(process.stdout.readline())
        through = ("generate", "--endpoint", places["listening"], "--json", *GREEDY)
        answer = json.loads(tandem(*through).stdout)
        assert answer["ttft_s"] >= 0.1
        host, port = places["control"].split(":")
        with socket.create_connection((host, int(port)), timeout=30) as control:
            control.sendall(b'{"op": "stats"}\n')
            assert json.loads(control.makefile().readline())["up_bytes"] > 0
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == 0


def test_the_link_of_a_suite_can_be_steered(suite: Up) -> None:
    host, port = suite.places["control"].split(":")
    with socket.create_connection((host, int(port)), timeout=30) as control:
        control.sendall(b'{"op": "stats"}\n')
        assert json.loads(control.makefile().readline())["up"]["delay_s"] == 0.01


def test_a_suite_that_is_killed_leaves_no_service_behind(suite: Up) -> None:
    """The last test that has the shared suite."""
    suite.process.kill()
    for pid in suite.pids.values():
        wait_for_end(pid)


@pytest.fixture(scope="module")
def pinned() -> Iterator[Up]:
    """Two verifiers, and each side on cores of its own."""
    several = ("--verifiers", "2", "--pin", "--drain-s", str(TIMEOUT_S))
    with running_up(*SCRIPTED, *several, command=TESTING) as up:
        yield up


def test_up_starts_several_verifiers_that_doctor_finds(pinned: Up) -> None:
    addresses = [pinned.places["verifier"], pinned.places["2-verifier"]]
    assert pinned.generate(*GREEDY)["text"]
    # In this process, which has what it looks for; as a process it is asked above.
    ended = CliRunner().invoke(main, ["doctor", "--endpoint", pinned.endpoint, "--json"])
    found = {check["name"]: check["ok"] for check in json.loads(ended.stdout)["checks"]}
    assert [found[address] for address in addresses] == [True, True]


def test_stopping_lets_open_requests_finish(pinned: Up) -> None:
    """The last test that has this suite."""
    with started(*asking(pinned, *LONG)) as process:
        assert first_character(process)
        pinned.process.send_signal(signal.SIGINT)
        _, figures = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, figures
        assert pinned.process.wait(TIMEOUT_S) == 0
        for pid in pinned.pids.values():
            wait_for_end(pid)
        assert not pinned.logs.exists()


def test_a_service_that_dies_stops_the_others() -> None:
    with running_up(*SCRIPTED, command=TESTING) as up:
        os.kill(up.pids["verifier"], signal.SIGKILL)
        _, words = up.process.communicate(timeout=TIMEOUT_S)
        assert up.process.returncode == 1
        assert "error: the verifier ended (killed by SIGKILL); log: " in one_line(words)
        assert str(up.logs / "verifier.log") in words
        assert (up.logs / "verifier.log").read_text()
        for pid in up.pids.values():
            wait_for_end(pid)


def test_a_second_interrupt_ends_a_suite_at_once_and_leaves_nothing() -> None:
    with running_up(*SCRIPTED, command=TESTING) as up:
        os.kill(up.pids["verifier"], signal.SIGSTOP)  # so that the first one takes its time
        up.process.send_signal(signal.SIGINT)
        wait_for_end(up.pids["aggregator"])
        assert up.process.poll() is None
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(TIMEOUT_S) == 130
        for pid in up.pids.values():
            wait_for_end(pid)
        assert not up.logs.exists()


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield str(listening.getsockname()[1])


def test_a_port_in_use(taken: str) -> None:
    for arguments in (
        ("up", *SCRIPTED, "--port", taken),
        ("link", "--listen", f"127.0.0.1:{taken}", "--target", "127.0.0.1:1"),
    ):
        ended = tandem(*arguments, command=TESTING)
        assert ended.returncode == 1, arguments
        assert f"127.0.0.1:{taken}" in one_line(ended.stderr)
        assert ended.stdout == ""


@pytest.mark.parametrize(("encoding", "written"), [("latin-1", b"?\xe9?\n"), ("ascii", b"???\n")])
def test_text_that_a_narrow_encoding_has_no_letters_for_is_written_with_marks(
    encoding: str, written: bytes
) -> None:
    command = (TANDEM, "generate", "--demo", "--prompt", "A", "--regex", "🎉é日")
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    ended = subprocess.run(command, env=environment, capture_output=True, timeout=TIMEOUT_S)
    assert (ended.returncode, ended.stdout) == (0, written), ended.stderr
