"""`tandem train-exits`: what it writes, and what it refuses by name."""

import copy
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from transformers import AutoModelForCausalLM

from tandem.cli import main
from tests.unit.backends.reference_models import CONFIGS
from tests.unit.backends.tiny_folders import CORPUS, write_tokenizer

SHORT = ("--exits=2", "--rank=4", "--steps=3", "--rows=2", "--length=16", "--positions=8")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny-target"
    config = copy.deepcopy(CONFIGS["llama"])
    config.vocab_size = 300
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return write_tokenizer(folder)


def train(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["train-exits", *map(str, arguments)])


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "text.txt"
    path.write_text("".join(CORPUS) * 3, "utf-8")
    return path


def test_exits_are_written_beside_the_target(target: Path, text: Path) -> None:
    ended = train("--target", target, "--text", text, *SHORT, "--json")
    assert ended.exit_code == 0, ended.output
    said = json.loads(ended.stdout)
    assert said["out"] == str(target.with_name("tiny-exits"))
    assert said["layers"] == [0, 1]
    assert len(said["agreement"]) == 2
    assert (target.with_name("tiny-exits") / "exits.json").exists()


def test_json_lines_are_texts_of_their_own(target: Path, tmp_path: Path) -> None:
    lines = tmp_path / "texts.jsonl"
    lines.write_text("\n".join(json.dumps({"text": text * 4}) for text in CORPUS), "utf-8")
    out = tmp_path / "out"
    ended = train("--target", target, "--text", lines, "--out", out, *SHORT, "--layers=1")
    assert ended.exit_code == 0, ended.output
    assert "exit after layer 1: the model's likeliest token in" in ended.stdout
    assert "training exits" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--rank=0",), "rank: must be at least 1, is 0"),
        (("--learning-rate=nan",), "learning_rate: must be above 0, is nan"),
        (("--layers=1,x",), "layers: '1,x' is not like 1,3"),
        (("--exits=3",), "exits: 3; a model of 3 layers has room for 1…2"),
        (("--text=/no/such/file",), "text: /no/such/file cannot be read"),
        (("--device=abacus",), "device: 'abacus' is neither cpu nor cuda"),
    ],
)
def test_a_bad_value_is_named(
    target: Path, text: Path, tmp_path: Path, arguments: tuple[str, ...], why: str
) -> None:
    ended = train("--target", target, "--text", text, "--out", tmp_path, *SHORT, *arguments)
    assert ended.exit_code == 2, ended.output
    assert why.split(": ", 1)[1] in ended.stderr


def test_bad_json_lines_are_refused(target: Path, tmp_path: Path) -> None:
    lines = tmp_path / "texts.jsonl"
    for content in (b'{"words": "x"}', b"[1]", b"{", b"\xff"):
        lines.write_bytes(content)
        ended = train("--target", target, "--text", lines, "--out", tmp_path / "out", *SHORT)
        assert ended.exit_code == 2
        assert "is not UTF-8 text, or not JSON lines with a field 'text'" in ended.stderr


def test_a_text_is_needed(target: Path) -> None:
    ended = train("--target", target, *SHORT)
    assert ended.exit_code == 2
    assert "text: is needed" in ended.stderr
