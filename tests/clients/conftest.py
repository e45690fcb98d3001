"""A suite as real processes, and programs that were written for other servers, asking it.

Clients live in environments of their own, which `make test-clients` makes: they go together neither
with what Tandem pins nor all with each other. A program under `programs/` asks by one client,
checks what it is answered, and prints what it heard as JSON."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.process.running_suite import running_up
from tests.programs import REPOSITORY

PROGRAMS = Path(__file__).parent / "programs"
NODE_PACKAGES = Path(__file__).parent / "node_modules"
REAL_PAIR = REPOSITORY / "models" / "real"
TIMEOUT_S = 100.0
OFFLINE = {
    **{"HF_HUB_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    **{"DO_NOT_TRACK": "1", "LITELLM_MODE": "PRODUCTION"},
}
"""Clients that look for something on the internet first would wait for it in vain."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--clients", default=REPOSITORY / ".venv-clients", type=Path, help="their environment"
    )
    parser.addoption("--load-generators", type=Path, help="the environment of these large clients")
    parser.addoption(
        "--clients-required", action="store_true", help="a client that is missing is a failure"
    )


@dataclass(frozen=True, slots=True)
class Server:
    """Where the suite is, and what it serves. `asked` keeps what it said."""

    url: str
    model: str
    embedding: str = ""
    _said: dict[str, Any] = field(default_factory=dict)

    def post(self, path: str, **body: Any) -> Any:
        """Return what plain HTTP is answered; a question is asked once."""
        key = json.dumps([path, body], sort_keys=True)
        if key not in self._said:
            answer = httpx2.post(f"{self.url}{path}", json=body, timeout=TIMEOUT_S)
            assert answer.status_code == 200, answer.text
            self._said[key] = answer.json()
        return self._said[key]

    def chat(self, question: str, system: str = "", max_tokens: int = 24) -> str:
        """Return the likeliest answer."""
        messages = [{"role": "system", "content": system}] if system else []
        answer = self.post(
            "/v1/chat/completions",
            model=self.model,
            messages=[*messages, {"role": "user", "content": question}],
            max_tokens=max_tokens,
            temperature=0,
        )
        text: str = answer["choices"][0]["message"]["content"]
        return text

    def vectors(self, *texts: str) -> list[list[float]]:
        answer = self.post("/v1/embeddings", model=self.embedding, input=[*texts])
        return [each["embedding"] for each in answer["data"]]


@dataclass(frozen=True, slots=True)
class Clients:
    """Runs programs that ask `server`."""

    server: Server
    environment: Path
    required: bool
    folder: Path
    timeout_s: float = TIMEOUT_S

    def python(self, program: str, *packages: str) -> dict[str, Any]:
        """Return what `programs/PROGRAM.py` printed; it needs these distributions."""
        found = {
            each.metadata["Name"].lower().replace("_", "-"): each.version
            for each in distributions(path=list(map(str, self._site_packages())))
        }
        self._need(packages, found)
        return self._told([self.environment / "bin" / "python", PROGRAMS / f"{program}.py"])

    def node(self, program: str, *packages: str) -> dict[str, Any]:
        """Return what `programs/PROGRAM.mjs` printed; it needs these packages."""
        found = {each: "" for each in packages if (NODE_PACKAGES / each / "package.json").exists()}
        if (node := shutil.which("node")) is None:
            self._need(["node"], {})
        self._need(packages, found)
        return self._told([node or "node", PROGRAMS / f"{program}.mjs"])

    def _site_packages(self) -> Sequence[Path]:
        return list(self.environment.glob("lib/python3*/site-packages"))

    def _need(self, packages: Sequence[str], found: dict[str, str]) -> None:
        if missing := [name for name in packages if name not in found]:
            why = f"{', '.join(missing)}: not installed; 'make test-clients' does that"
            if self.required:
                pytest.fail(why)
            pytest.skip(why)

    def _told(self, command: Sequence[str | Path]) -> dict[str, Any]:
        server = self.server
        # No key, address or proxy is taken from the caller's environment.
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        ended = subprocess.run(
            [*map(str, command), server.url, server.model, server.embedding],
            capture_output=True,
            text=True,
            timeout=self.timeout_s,
            cwd=self.folder,
            env=kept | OFFLINE | openai_vocabulary(self.environment) | {"HOME": str(self.folder)},
        )
        assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
        told: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
        return told


def openai_vocabulary(environment: Path) -> dict[str, str]:
    """Where tiktoken finds OpenAI's vocabulary without the internet: LiteLLM comes with it."""
    pattern = "lib/python3*/site-packages/litellm/litellm_core_utils/tokenizers"
    folder = next(environment.glob(pattern), None)
    return {} if folder is None else {"TIKTOKEN_CACHE_DIR": str(folder)}


@pytest.fixture(scope="session")
def server(pytestconfig: pytest.Config) -> Iterator[Server]:
    """The demo pair with the demo documents and an embedding model; started once."""
    vocabulary = openai_vocabulary(pytestconfig.getoption("--clients").absolute())
    with running_up("--rag", environment=vocabulary) as up:
        url = up.places["http"]
        cards = httpx2.get(f"{url}/v1/models", timeout=TIMEOUT_S).json()["data"]
        (embedding,) = [card["id"] for card in cards if "dimension" in card["tandem"]]
        (model,) = [card["id"] for card in cards if "presets" in card["tandem"]]
        yield Server(url, model, embedding)


@pytest.fixture(scope="session")
def server_that_talks(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """The SmolLM2 pair, for clients that want answers to end by themselves and tools to be called
    by their names; started once. Whoever names no temperature gets the likeliest answer, which is
    the same each time."""
    if not (REAL_PAIR / "smollm2").exists():
        why = "models/real: not there; 'make real-pair' makes it"
        if pytestconfig.getoption("--clients-required"):
            pytest.fail(why)
        pytest.skip(why)
    target = tmp_path_factory.mktemp("greedy") / "smollm2"
    target.mkdir()
    for file in (REAL_PAIR / "smollm2").iterdir():
        (target / file.name).symlink_to(file.resolve())
    settings = target / "generation_config.json"
    likeliest = {**json.loads(settings.read_text()), "temperature": 0.0}
    settings.unlink()
    settings.write_text(json.dumps(likeliest))
    with running_up("--draft", str(REAL_PAIR / "smollm2-draft"), "--target", str(target)) as up:
        yield Server(up.places["http"], target.name)


@pytest.fixture
def clients(server: Server, pytestconfig: pytest.Config, tmp_path: Path) -> Clients:
    return Clients(
        server=server,
        environment=pytestconfig.getoption("--clients").absolute(),
        required=pytestconfig.getoption("--clients-required"),
        folder=tmp_path,
    )
