"""`tandem pull`: a hub's model at one commit, checked, resumed, and used without the hub."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tandem.backends import hub_cache
from tandem.backends.model_source import find_source
from tandem.cli import main
from tandem.core.errors import InvalidArgument
from tandem.demo import demo_folder
from tandem.suite.local_models import find_model, local_models
from tandem.suite.models import CannotLoad, choose_model
from tests.unit.suite.hub_server import COMMIT, FakeHub, Repository, serving

WEIGHTS = bytes(range(256)) * 40
CONFIG = json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}).encode()
SMALL = Repository(
    {
        "config.json": CONFIG,
        "tokenizer.json": b"{}",
        "model.safetensors": WEIGHTS,
        "pytorch_model.bin": b"pickle",
        "modeling_small.py": b"import os",
        "onnx/model.onnx": b"graph",
    }
)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with serving(FakeHub({"org/small": SMALL})) as hub:
        for name in ("HF_TOKEN", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.chdir(tmp_path)
        yield hub


def pull(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["pull", *arguments])


def refusal(*arguments: str) -> str:
    """The one line of a refused pull."""
    ended = pull(*arguments)
    assert ended.exit_code == 1, ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    return ended.stderr


def snapshot(home: Path, name: str = "org/small", commit: str = COMMIT) -> Path:
    place = f"models--{name.replace('/', '--')}"
    return home / ".cache/huggingface/hub" / place / "snapshots" / commit


def test_a_pulled_model_is_used_by_name_at_its_commit(hub: FakeHub, tmp_path: Path) -> None:
    ended = pull("org/small")
    assert ended.exit_code == 0, ended.stderr
    folder = snapshot(tmp_path)
    assert f"org/small at commit {COMMIT}: 3 files" in ended.stdout
    assert str(folder) in ended.stdout
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "tokenizer.json",
        "model.safetensors",
    }
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    hub.repositories.clear()
    assert choose_model("org/small").source == str(folder)


def test_the_commit_that_was_pulled_outlasts_what_others_download(
    hub: FakeHub, tmp_path: Path
) -> None:
    pull("org/small")
    repository = snapshot(tmp_path).parents[1]
    newer = repository / "snapshots" / ("b" * 40)
    newer.mkdir()
    for name, content in SMALL.files.items():
        if "/" not in name:
            (newer / name).write_bytes(content)
    (repository / "refs" / "main").write_text("b" * 40)
    assert find_model("org/small", local_models()).source == snapshot(tmp_path)


def test_a_broken_download_is_one_error_and_the_next_one_takes_what_is_missing(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    hub.cut["model.safetensors"] = 4000
    assert f"{hub.url} cannot be reached" in refusal("org/small")
    assert not (snapshot(tmp_path) / "model.safetensors").exists()
    assert local_models() == []
    hub.down.clear()
    hub.asked.clear()
    assert pull("org/small").exit_code == 0
    assert {path.rpartition("/")[2] for path in hub.asked if "/resolve/" in path} == {
        "model.safetensors"
    }
    assert (snapshot(tmp_path) / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_wrong_hash_is_refused_and_kept_nowhere(hub: FakeHub, tmp_path: Path, name: str) -> None:
    hub.lies.add(name)
    words = refusal("org/small")
    assert f"error: {name}: what was downloaded does not have the hash" in words
    assert not (snapshot(tmp_path) / name).exists()
    hub.lies.clear()
    assert pull("org/small").exit_code == 0
    assert (snapshot(tmp_path) / name).read_bytes() == SMALL.files[name]


def test_without_a_network_it_ends_at_once(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    began_s = time.monotonic()
    assert f"http://127.0.0.1:{port} cannot be reached" in refusal("org/small")
    assert time.monotonic() - began_s < 5
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE" in refusal("org/small")


def test_a_model_that_is_not_here_names_the_pull(hub: FakeHub) -> None:
    with pytest.raises(CannotLoad, match=r"'tandem pull org/other' downloads it"):
        choose_model("org/other")
    assert hub.asked == []


def test_a_pinned_name_that_cannot_be_had_is_refused_at_once(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries of the hub would try again for half a minute."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InvalidArgument, match=r"is not on this machine, and .* cannot be reached"):
        find_source("org/small", COMMIT)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(hub_cache, "ANSWER_S", 0.2)
        with pytest.raises(InvalidArgument, match="cannot be reached"):
            find_source("org/small", COMMIT)


def test_a_pinned_name_in_the_cache_asks_no_hub(hub: FakeHub) -> None:
    pull("org/small")
    hub.asked.clear()
    assert find_source("org/small", COMMIT).options["local_files_only"]
    assert hub.asked == []


def test_gated_and_private_models_name_the_token(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories["org/gated"] = Repository(SMALL.files, gated=True)
    hub.repositories["org/private"] = Repository(SMALL.files, private=True)
    assert f"org/gated is gated: ask for access at {hub.url}/org/gated" in refusal("org/gated")
    assert "or is private: set HF_TOKEN" in refusal("org/private")
    monkeypatch.setenv("HF_TOKEN", "wrong")
    assert "HF_TOKEN has no access yet" in refusal("org/gated")
    assert "HF_TOKEN may not read it" in refusal("org/private")
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert pull("org/gated").exit_code == 0
    assert pull("org/private").exit_code == 0


def test_pickles_alone_are_not_taken(hub: FakeHub) -> None:
    hub.repositories["org/old"] = Repository({"config.json": CONFIG, "pytorch_model.bin": b"x"})
    assert "has weights in pickle files alone" in refusal("org/old")
    hub.repositories["org/none"] = Repository({"README.md": b"x"})
    assert "has neither safetensors nor GGUF weights" in refusal("org/none")


def test_one_file_of_a_gguf_repository(hub: FakeHub, tmp_path: Path) -> None:
    files = {f"Some-{kind}.gguf": b"GGUF" + kind.encode() for kind in ("Q4_K_M", "Q8_0")}
    hub.repositories["org/Some-GGUF"] = Repository({"config.json": CONFIG, **files})
    words = refusal("org/Some-GGUF")
    assert "give one as org/Some-GGUF:FILE: Some-Q4_K_M (1 MB), Some-Q8_0 (1 MB)" in words
    assert "no file that 'Q5' alone means" in refusal("org/Some-GGUF:Q5")
    ended = pull("org/Some-GGUF:q4_k_m")
    assert ended.exit_code == 0, ended.stderr
    folder = snapshot(tmp_path, "org/Some-GGUF")
    assert [path.name for path in folder.iterdir()] == ["Some-Q4_K_M.gguf"]
    assert "tandem up --target org/Some-GGUF:q4_k_m" in ended.stdout
    for name in ("org/Some-GGUF:q4_k_m", "org/Some-GGUF", "some-q4_k_m"):
        assert choose_model(name).source == str(folder / "Some-Q4_K_M.gguf")


def test_a_pulled_model_answers_without_the_hub(hub: FakeHub) -> None:
    folder = demo_folder("demo-draft")
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    hub.repositories["org/mine"] = Repository(files)
    assert pull("org/mine").exit_code == 0
    hub.repositories.clear()
    hub.asked.clear()
    asked = ["--prompt", "one two", "--max-tokens", "4", "--seed", "1", "--json"]
    ended = CliRunner().invoke(main, ["generate", *asked, "--target", "org/mine"])
    assert ended.exit_code == 0, ended.stderr
    assert json.loads(ended.stdout)["tokens"] == 4
    assert hub.asked == []


def test_a_hub_that_answers_with_another_model_is_refused(hub: FakeHub, tmp_path: Path) -> None:
    """The name in its answer would be the one by which the files are used afterwards."""
    pull("org/small")
    hub.repositories["evil/small"] = Repository({"model.safetensors": b"evil"}, commit="e" * 40)
    for name in ("org/small", "Evil/small", "evil", "../small", None, 5):
        hub.renamed["evil/small"] = name
        refused = refusal("evil/small")
        assert f"tandem pull {name}" in refused or "does not answer as" in refused
    assert not snapshot(tmp_path, "evil/small").parents[1].exists()
    assert [model.name for model in local_models()] == ["org/small"]
    pulled = snapshot(tmp_path).parents[1]
    assert (pulled / "refs" / hub_cache.PULLED_REF).read_text() == COMMIT
