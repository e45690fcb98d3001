"""Early exits for a real target: texts to token ids, exits beside the model, and a card."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from models import train_real_exits
from tandem.backends.torch.loading import load_engine
from tests.unit.backends.reference_models import CONFIGS
from tests.unit.backends.tiny_folders import write_tokenizer


@pytest.fixture
def target(tmp_path: Path) -> Path:
    config = copy.deepcopy(CONFIGS["llama"])
    config.vocab_size = 300
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "tiny-target")
    return write_tokenizer(tmp_path / "tiny-target")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A little of each of the three files."""
    folder = tmp_path / "texts"
    folder.mkdir()
    words = "The fox jumps over the lazy dog and the café. "
    peps = [{"id": f"pep-{n:04}", "title": f"Pep {n}", "text": words * 5} for n in range(30)]
    sums = [{"question": f"What is {n} and 1?", "answer": f"#### {n + 1}"} for n in range(30)]
    for name, records in (("peps", peps), ("gsm8k-train", sums)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    article = " = Fox = \n \n " + "Foxes run , and run . " * 30 + "\n"
    (folder / "wikitext2-valid.txt").write_text(article * 4)
    return folder


def test_all_stages(target: Path, texts: Path, tmp_path: Path) -> None:
    cache, out = tmp_path / "cache", tmp_path / "exits"
    options = f"--target {target} --data {texts} --cache {cache} --out {out} --device cpu"
    options += " --exits 2 --rank 4 --minutes 0.002 --sampled 64 --positions 32 --tokens 4000"
    assert train_real_exits.main(options.split()) == 0
    token_ids = np.load(cache / "tokens.npy")
    assert token_ids.dtype == np.uint16
    assert 2000 < len(token_ids) <= 4000
    beside = load_engine(target, exits="auto")
    assert beside.exit_depths == (1 / 3, 2 / 3)
    assert len(beside.exit_temperatures) == 2
    card = (out / "README.md").read_text("utf-8")
    assert "python models/train_real_exits.py --tokens 4000 --exits 2" in card
    assert "| layer | share of the pass | agreement |" in card


def test_missing_texts_are_a_one_line_error(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = f"--stage texts --target {target} --data {tmp_path} --cache {tmp_path / 'cache'}"
    assert train_real_exits.main(options.split()) == 1
    assert capsys.readouterr().err.count("\n") == 1
