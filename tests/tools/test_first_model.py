"""What `make run` offers a machine without a chat model: once, with its size, or not at all."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.backends.llamacpp import library
from tandem.demo import demo_folder
from tandem.suite import chat_models, local_models
from tests.unit.suite.hub_server import FakeHub, Repository, serving
from tools import first_model
from tools.write_gguf import write_gguf


class Terminal:
    """Standard input and output of a person who answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: bool) -> None:
        self.asked: list[str] = []
        for stream in (sys.stdin, sys.stdout):
            monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)

        def confirm(question: str, default: bool) -> bool:
            self.asked.append(question)
            return answer

        monkeypatch.setattr("click.confirm", confirm)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with both models, each the demo's draft as a GGUF file."""
    file = write_gguf(demo_folder("demo-draft"), tmp_path / "made.gguf", kind="Q8_0").read_bytes()
    repositories = {}
    for name in first_model.MODELS:
        repository, _, commit = name.partition("@")
        repository = repository.partition(":")[0]
        files = {"m-q4_k_m.gguf": file, "m-q8_0.gguf": file}
        repositories[repository] = Repository(files, commit=commit)
    home = tmp_path / "home"
    home.mkdir()
    for name in ("HF_TOKEN", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(local_models, "checkout", lambda: None)
    monkeypatch.setattr(library, "is_installed", lambda: True)
    monkeypatch.chdir(home)
    with serving(FakeHub(repositories)) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        yield served


@pytest.mark.parametrize(("memory", "size"), [(2**40, "1.5B"), (0, "0.5B")])
def test_the_best_that_fits_is_offered_with_its_size_and_is_the_default_then(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, memory: int, size: str
) -> None:
    terminal = Terminal(monkeypatch, answer=True)
    monkeypatch.setattr(first_model, "memory_bytes", lambda: memory)
    assert first_model.main() == 0
    (question,) = terminal.asked
    assert question.endswith(f" Download Qwen/Qwen2.5-{size}-Instruct-GGUF:Q4_K_M (1 MB)?")
    (model,) = chat_models.chat_models(local_models.local_models())
    assert model.model.name == f"Qwen/Qwen2.5-{size}-Instruct-GGUF/m-q4_k_m"
    assert first_model.main() == 0
    assert len(terminal.asked) == 1, "nobody is asked again"


def test_without_a_wish_nothing_is_downloaded(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal(monkeypatch, answer=False)
    assert first_model.main() == 1
    assert len(terminal.asked) == 1
    assert local_models.local_models() == []


def test_a_pipe_is_not_asked_nor_is_the_hub(hub: FakeHub) -> None:
    assert first_model.main() == 1
    assert hub.asked == []


def test_without_a_hub_or_llama_cpp_there_is_no_question(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal(monkeypatch, answer=True)
    monkeypatch.setattr(library, "is_installed", lambda: False)
    assert first_model.main() == 1
    monkeypatch.setattr(library, "is_installed", lambda: True)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert first_model.main() == 1
    assert terminal.asked == []
