"""Models that other programs keep on this machine, found by name and read in place."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tandem.cli import main
from tandem.demo import demo_folder
from tandem.suite.local_models import LocalModel, NoSuchModel, find_model, local_models
from tandem.suite.models import choose_model
from tools.write_gguf import write_gguf

OLD = "1" * 40
NEW = "2" * 40
FIRST, SECOND = (f"sha256:{digit * 64}" for digit in "ab")
WEIGHTS = b"GGUF" + bytes(60)


def transformers_folder(folder: Path, architecture: str = "LlamaForCausalLM") -> Path:
    folder.mkdir(parents=True)
    config = {"model_type": "llama", "architectures": [architecture]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(bytes(100))
    return folder


def hub_snapshot(home: Path, repository: str, revision: str, *, main: str | None = None) -> Path:
    place = home / ".cache/huggingface/hub" / f"models--{repository.replace('/', '--')}"
    if main is not None:
        (place / "refs").mkdir(parents=True, exist_ok=True)
        (place / "refs" / "main").write_text(main)
    return transformers_folder(place / "snapshots" / revision)


def ollama_model(store: Path, *names: str, digest: str = FIRST) -> Path:
    manifest = store.joinpath("manifests", "registry.example", *names)
    manifest.parent.mkdir(parents=True, exist_ok=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.license", "digest": f"sha256:{'d' * 64}"},
        {"mediaType": "application/vnd.ollama.image.model", "digest": digest},
    ]
    manifest.write_text(json.dumps({"layers": layers}))
    blob = store / "blobs" / digest.replace(":", "-")
    blob.parent.mkdir(exist_ok=True)
    blob.write_bytes(WEIGHTS)
    return blob


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def names(home: Path, **variables: str) -> dict[str, LocalModel]:
    listed = local_models({"HOME": str(home), **variables}, here=home)
    return {model.name: model for model in listed}


def test_the_cache_of_hugging_face_has_models_at_the_revision_of_main(home: Path) -> None:
    older = hub_snapshot(home, "Qwen/Qwen2.5-0.5B", OLD, main=OLD)
    hub_snapshot(home, "Qwen/Qwen2.5-0.5B", NEW)
    found = names(home)
    assert found == {
        "Qwen/Qwen2.5-0.5B": LocalModel(
            "Qwen/Qwen2.5-0.5B", older, "Hugging Face cache", 100, "llama"
        )
    }


def test_ollama_keeps_weights_under_their_digest(home: Path) -> None:
    blob = ollama_model(home / ".ollama/models", "library", "llama3.2", "1b")
    mine = ollama_model(home / ".ollama/models", "me", "tuned", "latest", digest=SECOND)
    found = names(home)
    assert found["llama3.2:1b"].source == blob
    assert found["me/tuned:latest"].source == mine
    assert found["llama3.2:1b"].kind == "gguf"
    assert found["llama3.2:1b"].size_bytes == len(WEIGHTS)


def test_what_is_no_model_that_writes_text_is_not_listed(home: Path) -> None:
    transformers_folder(home / "models/embeds", architecture="BertModel")
    (home / "models/empty").mkdir()
    (home / "models/broken").mkdir()
    (home / "models/broken/config.json").write_text("{")
    (home / "models/broken/model.safetensors").write_bytes(bytes(10))
    manifest = home / ".ollama/models/manifests/registry.example/library/x/latest"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("[]")
    assert names(home) == {}


def test_what_strangers_put_into_a_store_is_passed_over(home: Path) -> None:
    """Circles of links, pipes, names and digests that lead elsewhere, links to nothing."""
    store = home / ".ollama/models"
    ollama_model(store, "library", "good", "1b")
    for number, digest in enumerate(("../../secret", "sha256:abc")):
        ollama_model(store, "library", f"bad{number}", "1b", digest=digest)
    for number in range(4):
        for place in ("manifests", "manifests/registry.example"):
            (store / place / f"circle{number}").symlink_to(store / "manifests")
    hub = hub_snapshot(home, "a/b", OLD, main="../../../../models--c--d").parents[1]
    transformers_folder(home / ".cache/models--c--d")
    os.mkfifo(hub / "refs" / "tandem-pull")
    odd = home / "models/odd"
    odd.mkdir(parents=True)
    os.mkfifo(odd / "config.json")
    (odd / "model.safetensors").symlink_to(odd / "nothing")
    os.mkfifo(odd / "pipe.gguf")
    (odd / "part-00001-of-00002.gguf").write_bytes(WEIGHTS)
    (odd / "part-00002-of-00002.gguf").symlink_to(odd / "nothing")
    found = names(home)
    assert set(found) == {"good:1b", "a/b", "odd/part-00001-of-00002"}
    assert found["a/b"].source == hub / "snapshots" / OLD


def test_no_name_gives_orders_to_the_terminal(home: Path) -> None:
    for name in ("evil\x1b]52;c;cm0gLXJm\x07", "evil\u202egpj", "evil\nmodel", "evil\udc9b0m"):
        transformers_folder(home / "models" / name)
    plain = transformers_folder(home / "models" / "plain")
    (plain / "config.json").write_text(json.dumps({"model_type": "\x1b]0;title\x07"}))
    ended = CliRunner().invoke(main, ["models", str(home / "models")])
    assert ended.exit_code == 0
    assert "plain" in ended.stdout
    assert "evil" not in ended.stdout
    assert ended.stdout.replace("\n", "").isprintable()


MODELS = [
    LocalModel("Qwen/Qwen2.5-0.5B", Path("/a"), "x", 1),
    LocalModel("unsloth/Llama-3.2-1B", Path("/b"), "x", 1),
    LocalModel("meta/Llama-3.2-1B", Path("/c"), "x", 1),
]


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-0.5B", "qwen/qwen2.5-0.5b", "qwen2.5-0.5B"])
def test_a_name_or_its_last_part_means_a_model(name: str) -> None:
    assert find_model(name, MODELS).source == Path("/a")


def test_only_a_name_of_the_hub_can_be_pulled() -> None:
    with pytest.raises(NoSuchModel, match=r"'tandem pull org/absent' downloads it"):
        find_model("org/absent", MODELS)
    for path in ("./my-model", "../my-model", "~/my-model"):
        with pytest.raises(NoSuchModel, match=r"no such folder.*lists them\)$"):
            find_model(path, MODELS)


def test_a_name_that_means_two_models_is_refused_with_both() -> None:
    with pytest.raises(NoSuchModel, match=r"unsloth/Llama-3.2-1B \(/b\), meta/Llama-3.2-1B \(/c\)"):
        find_model("llama-3.2-1b", MODELS)


def test_a_target_is_named_and_read_where_ollama_has_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a user: `--target NAME`, with real weights behind a digest."""
    blob = ollama_model(home / ".ollama/models", "library", "demo", "latest")
    file = write_gguf(demo_folder("demo-draft"), home / "demo.gguf", kind="Q8_0")
    shutil.move(file, blob)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    monkeypatch.chdir(home)
    assert choose_model("demo:latest").source == str(blob)
    ended = CliRunner().invoke(main, ["models", "--json"])
    assert [json.loads(line)["name"] for line in ended.stdout.splitlines()] == ["demo:latest"]
    models = ["--draft", "demo:latest", "--target", "demo:latest"]
    answer = ["--prompt", "A", "--max-tokens", "3", "--seed", "1", "--json"]
    ended = CliRunner().invoke(main, ["generate", *answer, *models])
    assert ended.exit_code == 0, ended.stderr
    assert json.loads(ended.stdout)["tokens"] == 3
