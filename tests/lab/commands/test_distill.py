"""`tandem distill`: what it makes, how it goes on, and what it refuses by name."""

import copy
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from transformers import AutoModelForCausalLM

from lab.commands.distill import distill
from lab.training.distilling.export import stored_facts
from lab.training.distilling.prompts import Prompt, own_prompts, split_held_out
from tandem.backends.torch.loading import load_engine
from tandem.core.errors import InvalidArgument
from tests.unit.backends.reference_models import CONFIGS
from tests.unit.backends.tiny_folders import write_tokenizer

SHORT = ("--minutes=0.01", "--tokens=6", "--length=60", "--rows=8", "--held-out=2")
VOCABULARY = 300


def write_llama(folder: Path, layers: int = 3) -> Path:
    config = copy.deepcopy(CONFIGS["llama"])
    config.vocab_size, config.num_hidden_layers = VOCABULARY, layers
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return write_tokenizer(folder, size=VOCABULARY)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "prompts.jsonl"
    lines = [json.dumps({"prompt": f"fox {number} jumps"}) for number in range(20)]
    path.write_text("\n".join(lines), "utf-8")
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(distill, [*map(str, arguments)])


def test_a_draft_is_made_beside_the_target_and_goes_on(target: Path, prompts: Path) -> None:
    arguments = ("--target", target, "--prompts", prompts, *SHORT, "--head-tokens=50")
    ended = run(*arguments)
    assert ended.exit_code == 0, ended.output
    assert re.search(r"cost: about \d+\.\d core hours", ended.stdout)
    out, work = target.with_name("tiny-draft"), target.with_name("tiny-draft.work")
    assert len(json.loads((out / "head_tokens.json").read_text())) == 50
    assert load_engine(out, drafts=True).vocabulary_size == VOCABULARY
    card = (out / "README.md").read_text("utf-8")
    assert "| own |" in card
    assert "Prompts come from prompts.jsonl" in card
    accepted = re.search(r"held out: ([\d.]+)% accepted at temperature 1, ([\d.]+)%", ended.stdout)
    assert accepted is not None
    assert 0 < float(accepted[1]) <= 100
    steps = stored_facts(work / "stored")["steps"]
    assert steps > 0

    again = run(*arguments, "--json")
    assert again.exit_code == 0, again.output
    assert stored_facts(work / "stored")["steps"] == steps
    assert json.loads(again.stdout.splitlines()[-1])["out"] == str(out)
    spent_s = json.loads((work / "spent.json").read_text())["wall_s"]
    longer = run(*arguments, f"--minutes={(spent_s + 2) / 60}", "--json")
    assert longer.exit_code == 0, longer.output
    assert stored_facts(work / "stored")["steps"] > steps

    other = run(*arguments, "--layers=0,2")
    assert isinstance(other.exception, InvalidArgument)
    assert "of another making" in str(other.exception)


def test_a_small_model_becomes_the_draft(target: Path, prompts: Path, tmp_path: Path) -> None:
    small = write_llama(tmp_path / "small", layers=1)
    arguments = ("--target", target, "--prompts", prompts, "--draft-from", small, *SHORT)
    out = tmp_path / "draft"
    ended = run(*arguments, "--out", out, "--gguf=Q8_0", "--json")
    assert ended.exit_code == 0, ended.output
    assert json.loads((out / "config.json").read_text())["num_hidden_layers"] == 1
    assert "a small model that was given" in (out / "README.md").read_text("utf-8")
    files = json.loads(ended.stdout.splitlines()[-1])["files"]
    assert Path(files[1]).read_bytes()[:4] == b"GGUF"

    other = write_tokenizer(write_llama(tmp_path / "other"), size=280)
    refused = run(*arguments, "--draft-from", other, "--out", tmp_path / "no")
    assert isinstance(refused.exception, InvalidArgument)
    assert "another vocabulary" in str(refused.exception)


def test_an_estimate_makes_nothing(target: Path, tmp_path: Path) -> None:
    out = tmp_path / "draft"
    arguments = ("--target", target, "--out", out, *SHORT, "--minutes=60", "--estimate")
    ended = run(*arguments, "--price-per-hour=2")
    assert ended.exit_code == 0, ended.output
    assert "about 60 minutes" in ended.stdout
    assert "cost: about 2.00" in ended.stdout
    assert not out.exists()
    figures = json.loads(run(*arguments, "--json").stdout.splitlines()[-1])
    assert figures["answers"] > 0
    assert figures["trained_tokens"] > 0


def test_own_prompts_are_lines_or_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("What is rain?\n\n  What is tea?\nWhat is rain?\n", "utf-8")
    assert {prompt.text for prompt in own_prompts(path, 0)} == {"What is rain?", "What is tea?"}
    records: list[object] = [
        "plain",
        {"prompt": "a prompt"},
        {"question": "a question", "answer": "no"},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "said"}]},
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, records)), "utf-8")
    texts = {prompt.text for prompt in own_prompts(path, 0)}
    assert texts == {"plain", "a prompt", "a question", "said"}
    for bad in ("{}", "3", '{"messages": []}', "not json"):
        path.write_text(f'"good"\n{bad}\n', "utf-8")
        with pytest.raises(ValueError, match="line 2"):
            own_prompts(path, 0)


def test_few_prompts_are_held_out_too_and_never_learnt_from() -> None:
    prompts = [Prompt(f"source-{n}", "own", str(n)) for n in range(10)]
    learnt, held_out = split_held_out(prompts, least=4)
    assert len(held_out) >= 4
    assert sorted(learnt + held_out, key=str) == sorted(prompts, key=str)
    assert split_held_out(list(reversed(prompts)), least=4)[1] != []
    assert {p.text for p in split_held_out(list(reversed(prompts)), 4)[1]} == {
        p.text for p in held_out
    }
