"""Which model answers where nobody names one, and how that is said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tandem.backends.llamacpp import library
from tandem.backends.model_source import HEAD_TOKENS
from tandem.demo import demo_folder
from tandem.suite import chat_models, default_model, local_models
from tandem.suite.chat_models import ChatModel
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
