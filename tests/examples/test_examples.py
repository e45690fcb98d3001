"""Every example runs as it is, and prints what it promises."""

from __future__ import annotations

import asyncio
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import pytest

import tandem
from tandem.suite.embedded import EmbeddedSuite
from tandem.suite.models import choose_model, demo_source, load_pair
from tests.process.running_suite import TANDEM, TIMEOUT_S
from tests.process.service_process import free_port
from tests.programs import REPOSITORY
from tests.unit.backends.tiny_folders import write_model, write_tokenizer

pytestmark = pytest.mark.timeout(TIMEOUT_S)

EXAMPLES = REPOSITORY / "examples"
TWO_MACHINES = EXAMPLES / "two_machines"
ENV = os.environ | {"OMP_NUM_THREADS": "1"}


def output(example: str, *arguments: str | Path) -> str:
    ended = subprocess.run(
        [sys.executable, EXAMPLES / example, *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=ENV,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def test_all_are_listed_and_tested() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    own = Path(__file__).read_text()
    for path in EXAMPLES.iterdir():
        if path.name not in ("README.md", "__pycache__"):
            assert f"]({path.name}" in listed
            assert path.stem in own


def output_here(
    example: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *arguments: str | Path,
) -> str:
    """As `output`, in this process, which has loaded torch already; the first example shows that
    such a program is a process too."""
    monkeypatch.setattr(sys, "argv", [str(EXAMPLES / example), *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / example), run_name="__main__")
    told = capsys.readouterr()
    assert told.err == ""
    return told.out


def test_minimal_edge_cloud() -> None:
    """The preset decides how many passes the text takes, not which text it is."""
    text, figures = output("minimal_edge_cloud.py", "the edge ").splitlines()
    alone, figures_alone = output(
        "minimal_edge_cloud.py", "the edge ", "--preset", "ar"
    ).splitlines()
    assert text == alone
    assert text.startswith("the edge ")
    tokens, passes = (int(number) for number in re.findall(r"(\d+) tokens in (\d+)", figures)[0])
    assert passes < tokens == len(text) - len("the edge ") + 1, "its end is a token"
    assert figures_alone.startswith(f"{tokens} tokens in {tokens} passes")


def test_minimal_edge_cloud_in_two_processes() -> None:
    place = ("--cloud", f"127.0.0.1:{(port := free_port())}")
    with subprocess.Popen(
        [sys.executable, EXAMPLES / "minimal_edge_cloud.py", "--serve", str(port)],
        stderr=subprocess.PIPE,
        text=True,
        env=ENV,
    ) as cloud:
        try:
            assert cloud.stderr is not None
            assert cloud.stderr.readline() == f"serving at 127.0.0.1:{port}\n"
            for preset in ("coupled", "dsd", "dssd"):
                assert "drafts accepted" in output(
                    "minimal_edge_cloud.py", *place, "--preset", preset
                )
        finally:
            cloud.kill()


async def test_python_client() -> None:
    pair = load_pair(
        choose_model(demo_source("demo-draft")), choose_model(demo_source("demo-target"))
    )
    async with EmbeddedSuite(pair, http=True) as suite:
        places = ("--endpoint", suite.target, "--http", suite.http_url)
        shown = await asyncio.to_thread(output, "python_client.py", *places)
    assert "at once: 64 tokens" in shown
    for words in ("whole: ", "made by: ", "over HTTP: "):
        assert words in shown


def test_own_pair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [
        write_tokenizer(write_model(tmp_path / name, "llama", size=290, seed=seed))
        for name, seed in (("draft", 1), ("target", 2))
    ]
    shown = output_here("own_pair.py", capsys, monkeypatch, *folders, "The quick fox")
    assert "ar: " in shown
    assert "target passes for " in shown


def test_new_preset(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    plain, pipelined = output_here("new_preset.py", capsys, monkeypatch).splitlines()
    assert plain.startswith("coupled: ")
    assert pipelined.startswith("pipelined: ")


def test_private_notes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "note.md").write_text("We promised the heron release in May.")
    asked = ("--private", tmp_path, "When is the heron release?")
    shown = output_here("private_notes.py", capsys, monkeypatch, *asked)
    assert "from 1 private and 2 public documents" in shown


@contextmanager
def machine(script: str, *flags: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """One machine's processes, in a session of their own; ended as by Ctrl-C."""
    path = f"{Path(TANDEM).parent}{os.pathsep}{os.environ['PATH']}"
    with subprocess.Popen(
        [TWO_MACHINES / script, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=ENV | variables | {"PATH": path},
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(TIMEOUT_S)


def wait_for(process: subprocess.Popen[str], *begin: str) -> dict[str, str]:
    """Until lines that begin so were printed; their second words."""
    assert process.stdout is not None
    found: dict[str, str] = {}
    while len(found) < len(begin):
        line = process.stdout.readline()
        assert line, f"it ended; seen: {found}"
        words = line.split()
        found |= {word: words[1] for word in begin if words[0] == word}
    return found


def test_two_machines(tmp_path: Path) -> None:
    """Certificates, both machines, and a link of 40 ms in between."""
    certs = str(tmp_path / "certs")
    http_key = f"{certs}/http-key"
    for command in (
        ("certs", "--out", certs),
        ("keys", "http", "--file", f"{certs}/http-keys", "--out", http_key),
    ):
        subprocess.run([TANDEM, *command], check=True, stdout=subprocess.DEVNULL)
    with ExitStack() as stack:
        cloud = stack.enter_context(machine("cloud.sh", CERTS=certs, PORT="0"))
        verifier = wait_for(cloud, "listening")["listening"]
        between = ("--listen", "127.0.0.1:0", "--target", verifier, "--rtt-ms", "40")
        link = stack.enter_context(
            subprocess.Popen([TANDEM, "link", *between], stdout=subprocess.PIPE, text=True)
        )
        stack.callback(link.terminate)
        ports = {name: str(free_port()) for name in ("PORT", "DRAFTER_PORT", "HTTP_PORT")}
        way = wait_for(link, "listening")["listening"]
        edge = stack.enter_context(machine("edge.sh", CERTS=certs, CLOUD=way, **ports))
        wait_for(edge, "listening")
        wait_for(edge, "listening")
        with tandem.connect(
            f"127.0.0.1:{ports['PORT']}",
            tls_ca=f"{certs}/ca.crt",
            tls_certificate=f"{certs}/edge.crt",
            tls_key=f"{certs}/edge.key",
            call_key_file=f"{certs}/edge.call-key",
        ) as suite:
            answer = suite.generate("A list is", max_tokens=16, seed=3)
        assert answer.figures.tokens == 16
        assert answer.figures.ttft_s is not None
        assert answer.figures.ttft_s >= 0.04
        bearer = {"Authorization": f"Bearer {Path(http_key).read_text().strip()}"}
        models = f"http://127.0.0.1:{ports['HTTP_PORT']}/v1/models"
        assert httpx2.get(models, headers=bearer, timeout=30).status_code == 200
        assert httpx2.get(models, timeout=30).status_code == 401
        with (
            pytest.raises(tandem.Unavailable),
            tandem.connect(f"127.0.0.1:{ports['PORT']}") as plain,
        ):
            plain.generate("A list is")
    assert (cloud.returncode, edge.returncode) == (0, 0)


def test_the_readme_of_two_machines_names_what_is_there() -> None:
    words = (TWO_MACHINES / "README.md").read_text()
    for path in TWO_MACHINES.iterdir():
        assert path.name == "README.md" or f"./{path.name}" in words
