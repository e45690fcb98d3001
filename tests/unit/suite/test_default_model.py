"""Which model answers where nobody names one, and how that is said."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest
from click.testing import CliRunner

from tandem.backends.llamacpp import library
from tandem.backends.model_source import HEAD_TOKENS
from tandem.cli import main
from tandem.core.errors import TandemError
from tandem.demo import demo_folder
from tandem.suite import chat_models, default_model, local_models
from tandem.suite.chat_models import ChatModel
from tandem.suite.default_model import NoChatModel
from tandem.suite.local_models import LocalModel
from tandem.suite.models import CannotLoad, choose_target
from tools.write_gguf import write_gguf

GB = 10**9


def chat(name: str, billions: float, gigabytes: float) -> ChatModel:
    model = LocalModel(name, Path(name), "x", round(gigabytes * GB))
    return ChatModel(model, billions * GB, gigabytes * GB)


SMALL = chat("small", 0.135, 0.54)
GGUF = chat("gguf", 1.5, 1.1)
FLOAT = chat("float", 1.5, 6.0)
LARGE = chat("large", 30, 18)


@pytest.mark.parametrize(
    ("models", "memory_gb", "chosen", "why"),
    [
        ((SMALL,), 16, "small", "the only chat model here; small, often wrong"),
        ((SMALL, GGUF), 16, "gguf", "the largest that runs well here, of 2 chat models"),
        ((GGUF, SMALL), 2, "small", "of 2 chat models; small, often wrong"),
        ((LARGE, FLOAT, GGUF, SMALL), 64, "gguf", "of 4 chat models"),
        ((LARGE, FLOAT), 64, "float", "the smallest chat model here; it is large for this"),
        ((chat("b", 1.5, 1.1), chat("a", 1.5, 1.2)), 16, "a", "of 2 chat models"),
    ],
)
def test_the_largest_that_is_comfortable(
    models: tuple[ChatModel, ...], memory_gb: float, chosen: str, why: str
) -> None:
    for listed in (models, models[::-1]):
        default = default_model.default_model(listed, memory_gb * GB)
        assert default.model.name == chosen
        assert why in default.why


@pytest.mark.parametrize(
    ("models", "memory_gb", "why"),
    [
        ((), 16, "no chat model is on this machine: 'tandem pull "),
        ((FLOAT,), 8, "the only chat model here needs more than half of this machine's memory: "),
        ((FLOAT, LARGE), 8, "each of the 2 chat models here needs more than half"),
    ],
)
def test_without_one_it_is_said_how_to_get_one(
    models: tuple[ChatModel, ...], memory_gb: float, why: str
) -> None:
    with pytest.raises(NoChatModel) as refused:
        default_model.default_model(models, memory_gb * GB)
    assert str(refused.value).startswith(why)
    assert "'make run' too; --demo takes a toy" in str(refused.value)


def model_folder(place: Path) -> Path:
    """A copy of the demo's draft model, which is a toy nowhere else."""
    return Path(shutil.copytree(demo_folder("demo-draft"), place))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which nothing is installed, and no model is named."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("TANDEM_TARGET", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_cannot_chat_is_no_choice(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = home / "models"
    plain, drafts = model_folder(models / "plain"), model_folder(models / "drafts")
    (plain / "chat_template.jinja").unlink()
    (drafts / HEAD_TOKENS).write_text("[]")
    (models / "demo-target").symlink_to(demo_folder("demo-target"))
    with pytest.raises(CannotLoad, match="no chat model is on this machine"):
        choose_target(None)
    settings = plain / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": "{{x}}"}))
    target = choose_target(None)
    assert (target.source, target.note) == (
        str(plain),
        "model: plain (the only chat model here; small, often wrong)",
    )
    (one,) = chat_models.chat_models(local_models.local_models())
    assert one.parameters == 893_568
    assert one.computed_bytes == 4 * one.parameters


def test_a_gguf_file_is_one_where_llama_cpp_computes_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "models").mkdir()
    write_gguf(demo_folder("demo-draft"), home / "models/a-Q8_0.gguf", kind="Q8_0")
    write_gguf(demo_folder("demo-draft"), home / "models/b-Q8_0.gguf", kind="Q8_0", template=False)
    monkeypatch.setattr(library, "is_installed", lambda: True)
    assert Path(choose_target(None).source).name == "a-Q8_0.gguf"
    (one,) = chat_models.chat_models(local_models.local_models())
    assert one.computed_bytes == one.model.size_bytes
    monkeypatch.setattr(library, "is_installed", lambda: False)
    with pytest.raises(CannotLoad, match="no chat model is on this machine"):
        choose_target(None)


def gguf_entry(key: bytes, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value


@pytest.mark.parametrize(("file_type", "bits"), [(1, 16), (7, 8.5), (15, 4.9), (99, 4.9)])
def test_the_type_of_a_gguf_file_tells_its_parameters(
    home: Path, monkeypatch: pytest.MonkeyPatch, file_type: int, bits: float
) -> None:
    monkeypatch.setattr(library, "is_installed", lambda: True)
    typed = gguf_entry(b"general.file_type", 4, struct.pack("<I", file_type))
    template = gguf_entry(b"tokenizer.chat_template", 8, struct.pack("<Q", 1) + b"x")
    (home / "models").mkdir()
    (home / "models/m.gguf").write_bytes(b"GGUF" + typed + template + bytes(1000))
    (one,) = chat_models.chat_models(local_models.local_models())
    assert one.parameters == 8 * one.model.size_bytes / bits


def test_a_model_in_parts_is_as_large_as_all_of_them(home: Path) -> None:
    for part in (1, 2):
        path = home / f"models/m-0000{part}-of-00002.gguf"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"GGUF" + bytes(100))
    (model,) = local_models.local_models()
    assert model.size_bytes == 208


def test_broken_files_are_no_models(home: Path) -> None:
    broken = model_folder(home / "models/broken")
    (broken / "model.safetensors").write_bytes(b"short")
    (home / "models/empty.gguf").touch()
    found = [*chat_models.chat_models(local_models.local_models())]
    assert [one.parameters for one in found] == [0]


def test_a_variable_and_flags_name_another(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = model_folder(home / "models/mine"), model_folder(home / "models/other")
    monkeypatch.setenv("TANDEM_TARGET", "other")
    target = choose_target(None)
    assert (target.source, target.note) == (str(other), "model: other (TANDEM_TARGET names it)")
    assert choose_target("mine") == choose_target(str(mine))
    assert choose_target("mine").note == ""
    toy = str(demo_folder("demo-target"))
    assert choose_target(None, demo=True).source == toy
    monkeypatch.setenv("TANDEM_TARGET", "demo")
    assert choose_target(None).source == toy


def test_a_command_names_the_model_that_answers_in_one_line(home: Path) -> None:
    ended = CliRunner().invoke(main, ["generate", "--json", "hello"])
    assert (ended.exit_code, ended.stdout) == (1, "")
    assert ended.stderr.startswith("error: no chat model is on this machine: 'tandem pull Qwen/")
    assert ended.stderr.count("\n") == 1
    model_folder(home / "models/mine")
    asked = ["generate", "hello", "--max-tokens", "2", "--json"]
    ended = CliRunner().invoke(main, asked)
    assert ended.exit_code == 0, ended.stderr
    assert ended.stderr.startswith("model: mine (the only chat model here; small, often wrong)\n")
    assert json.loads(ended.stdout)["tokens"] == 2
    ended = CliRunner().invoke(main, [*asked, "--demo"])
    assert ended.stderr.startswith("demo: a toy of 8 million parameters answers")
    ended = CliRunner().invoke(main, [*asked, "--target", "mine"])
    assert "model: mine" not in ended.stderr
    with pytest.raises(TandemError, match="leave out"):
        choose_target("mine", demo=True)
