"""No process of ours takes a module from the folder in which it, or its parent, was started."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import packages_distributions
from itertools import pairwise
from pathlib import Path

import pytest

from tests.process.running_suite import TANDEM, TIMEOUT_S, running_up, tandem
from tests.programs import REPOSITORY, tracked_files

pytestmark = pytest.mark.timeout(TIMEOUT_S)

OURS = ("tandem", "tandem_api", "lab", "tools", "sitecustomize", "usercustomize")
PAGE = "<p>A heron stands in the reeds.</p>"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Holds a module by every name that a process may import; at the end none was run."""
    strange, ran = tmp_path / "strange", tmp_path / "ran"
    strange.mkdir()
    for name in {*sys.stdlib_module_names, *packages_distributions(), *OURS}:
        program = (
            f"open({str(ran)!r}, 'a').write('{name} ')\nraise SystemExit('{name} of a folder')"
        )
        if name.isidentifier():
            (strange / f"{name}.py").write_text(program)
    yield strange
    assert not ran.exists(), f"run: {ran.read_text()}"


@pytest.fixture
def run(folder: Path) -> Run:
    """Run a command there to its end; it must succeed."""

    def run_there(
        command: Sequence[str | Path], **variables: str
    ) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **variables}
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        assert done.returncode == 0, done.stderr
        return done

    return run_there


def test_documents_are_read_by_a_process_of_ours(run: Run, folder: Path, tmp_path: Path) -> None:
    """A page of HTML is read by a process of its own."""
    (folder / "page.html").write_text(PAGE)
    run([TANDEM, "ingest", "page.html", "--folder", tmp_path / "index"])
    found = run([TANDEM, "search", "heron", "--folder", tmp_path / "index", "--json"])
    assert "heron stands" in found.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate", "--demo", "--raw", "--max-tokens", "2", "A list"),
        ("doctor", "--json"),
        ("models", "--json"),
        ("presets",),
        ("keys", "alice", "--file", "keys"),
        ("certs", "--out", "certs"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_command_does_its_work(run: Run, arguments: tuple[str, ...]) -> None:
    run([TANDEM, *arguments])


def test_a_whole_suite_is_started(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with running_up("--demo", "--rag") as up:
        assert up.generate("--raw", "--prompt", "A list", "--max-tokens", "2")["tokens"] == 2
        (folder / "page.html").write_text(PAGE)
        retriever = ("--endpoint", up.places["device-retriever"], "--insecure")
        assert tandem("ingest", *retriever, "page.html").returncode == 0


@pytest.mark.parametrize("service", ["aggregator", "drafter", "retriever", "verifier"])
def test_a_unit_of_systemd(run: Run, service: str) -> None:
    unit = (REPOSITORY / "deploy" / "systemd" / "tandem@.service").read_text()
    (line,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    run([sys.executable, *shlex.split(line.replace("%i", service))[1:], "--help"])


@pytest.mark.parametrize("file", tracked_files("*Dockerfile"), ids=lambda file: file.parent.name)
def test_a_program_of_an_image(run: Run, file: Path) -> None:
    """Also what compose and the chart run in it: they keep the image's variables."""
    text = file.read_text().replace("\\\n", "")
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)
    (line,) = re.findall(r"^ENV (.*)$", text, re.MULTILINE)
    variables = dict(word.split("=", 1) for word in line.split())
    safe = {name: value for name, value in variables.items() if name == "PYTHONSAFEPATH"}
    python, *arguments = json.loads(entry)
    assert python == "python"
    run([sys.executable, *arguments, "--help"], **safe)


def test_what_a_library_starts_for_a_command(run: Run, tmp_path: Path) -> None:
    """Python's own pool starts `python -c`; the program lies, as `tandem` does, elsewhere."""
    program = tmp_path / "elsewhere" / "program.py"
    program.parent.mkdir()
    program.write_text(
        "import multiprocessing, sys\n"
        "import tandem.__main__, tandem.suite.process_end\n"
        "if __name__ == '__main__':\n"
        "    sys.argv = ['tandem', 'presets']\n"
        "    tandem.suite.process_end.leave = print  # the process goes on as during a command\n"
        "    tandem.__main__.main()\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(abs, [-7]))\n"
    )
    assert "[7]" in run([sys.executable, program]).stdout


BENCHES = {
    "pinned": "from lab.bench.harness.suite import PinnedProcess\n"
    "with PinnedProcess('lab.bench.harness.link_process', ('127.0.0.1:9',), 0): pass",
    "busy": "from lab.bench.harness.busy_loop import busy_loops\nwith busy_loops(1): pass",
}


@pytest.mark.parametrize("bench", BENCHES)
def test_a_process_of_a_bench(run: Run, bench: str) -> None:
    run([sys.executable, "-P", "-c", BENCHES[bench]])


def test_no_program_starts_python_otherwise() -> None:
    """Wherever `sys.executable` is followed by a flag, the first is -P."""
    rooms = ("tandem", "lab", "deploy", "tools", "examples", "models")
    unsafe = []
    for file in tracked_files(*(f"{room}/**.py" for room in rooms)):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Tuple | ast.List):
                continue
            words = [ast.unparse(element) for element in node.elts]
            unsafe += [
                f"{file.relative_to(REPOSITORY)}:{node.lineno}: {after}"
                for word, after in pairwise(words)
                if word in ("sys.executable", "python") and after in ("'-m'", "'-c'")
            ]
    assert unsafe == []
