"""How the real pair's draft is made: each part, and all stages with a tiny target."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from lab.training.distilling.export import join, store
from lab.training.distilling.prompts import ANSWERED, TASKS, all_prompts, mixed, texts_to_read
from lab.training.distilling.pruning import PrunedLlama
from lab.training.distilling.recordings import (
    UNRECORDED,
    Recording,
    joined,
)
from lab.training.distilling.sampling import AnswerSampler, SamplingTask
from models import train_real_draft
from tandem.backends.torch.loading import load_engine
from tests.long_runs import LONG
from tests.unit.backends.tiny_folders import write_tokenizer

VOCABULARY = 290
END = 1
TOKENS = 12


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def target() -> Any:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=END,
    )
    make: Any = LlamaForCausalLM
    return make(config).eval().requires_grad_(False)


def asked(temperature: float = 0.0) -> list[SamplingTask]:
    """Prompts of different lengths, more of them than are answered at once."""
    generator = torch.Generator().manual_seed(2)
    lengths = (3, 9, 5, 20, 4, 11, 7)
    ids = [torch.randint(5, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]
    return [SamplingTask(n, tuple(one), temperature, TOKENS, 2) for n, one in enumerate(ids)]


def sampler(target: Any, rows: int = 3) -> AnswerSampler:
    return AnswerSampler(target, frozenset({END}), rows, capacity=40, seed=3)


def answered(target: Any, temperature: float = 1.0, rows: int = 3) -> Recording:
    return joined(list(sampler(target, rows).answers(asked(temperature))))


@pytest.mark.parametrize("rows", [3, 7])
def test_greedy_answers_are_those_of_transformers(target: Any, rows: int) -> None:
    recording = answered(target, 0.0, rows)
    assert sorted(recording.numbers.tolist()) == list(range(len(asked())))
    for index, number in enumerate(recording.numbers.tolist()):
        prompt = torch.tensor([asked()[number].token_ids])
        wanted = target.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=TOKENS
        )
        assert torch.equal(recording.answer(index), wanted[0, prompt.shape[1] :])


def test_what_is_kept_of_a_token_gives_its_distribution(target: Any) -> None:
    recording = answered(target)
    for index in range(len(recording)):
        whole = recording.sequence(index)[None]
        logits = target(whole).logits[0, asked()[0].known - 1 : -1]
        rows = recording.records[int(recording.starts[index]) : int(recording.starts[index + 1])]
        rows = rows[rows != UNRECORDED]
        kept = recording.hidden[rows].float() @ target.lm_head.weight.T
        assert (kept - logits).abs().max() < 0.02 * logits.abs().max()  # rounded to bfloat16
        assert torch.allclose(recording.log_partition[rows], logits.logsumexp(-1), atol=1e-3)


def test_a_stored_draft_is_joined_with_its_targets_embedding(target: Any, tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "target")
    target.save_pretrained(folder)
    draft, kept = PrunedLlama(target, [0, 2]), torch.tensor([1, 8, 80])
    store(draft, kept, target, tmp_path / "stored")
    join(tmp_path / "stored", folder, tmp_path / "joined")
    joined: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "joined", dtype=torch.float32)
    assert joined.config.num_hidden_layers == 2
    assert json.loads((tmp_path / "joined/head_tokens.json").read_text()) == kept.tolist()
    ids = torch.arange(5, 45).reshape(2, 20)
    wanted = draft(ids).logits @ target.lm_head.weight.T
    with torch.inference_mode():
        found = joined(ids).logits
    assert (found - wanted).norm() < 0.03 * wanted.norm()  # weights are in 8 bits
    other = AutoModelForCausalLM.from_pretrained(folder)
    other.model.embed_tokens.weight.data[7] += 1
    other.save_pretrained(folder)
    with pytest.raises(ValueError, match="other weights"):
        join(tmp_path / "stored", folder, tmp_path / "joined")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A little of each of the four files."""
    folder = tmp_path_factory.mktemp("texts")
    words = "The fox jumps over the lazy dog and the café. "
    peps = [{"id": f"pep-{n:04}", "title": f"Pep {n}", "text": words * 5} for n in range(150)]
    sums = [{"question": f"What is {n} and 1?", "answer": f"#### {n + 1}"} for n in range(150)]
    code = [
        {
            "task_id": f"HumanEval/{n}",
            "prompt": f'def f{n}(x):\n    """ Adds {n}.\n    >>> f{n}(1)\n    """\n',
            "entry_point": f"f{n}",
        }
        for n in range(60)
    ]
    for name, records in (("peps", peps), ("gsm8k-train", sums)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    packed = "".join(json.dumps(one) + "\n" for one in code).encode()
    (folder / "HumanEval.jsonl.gz").write_bytes(gzip.compress(packed))
    article = " = Fox {n} = \n \n A <unk> of 1 @.@ 5 . " + "Foxes run , and run . " * 9 + "\n"
    wikitext = "".join(article.replace("{n}", str(n)) for n in range(60))
    (folder / "wikitext2-valid.txt").write_text(wikitext)
    return folder


def test_prompts_of_all_tasks_some_of_each_held_out(texts: Path) -> None:
    prompts = all_prompts(texts, seed=1)
    assert prompts == all_prompts(texts, seed=1)
    twice = all_prompts(texts, seed=1, variants=2)
    assert twice[: len(prompts)] == prompts
    assert len(twice) == 2 * len(prompts)
    assert {prompt.task for prompt in prompts} == set(TASKS)
    assert {prompt.task for prompt in prompts if prompt.held_out} == set(TASKS)
    assert not any("<unk>" in prompt.text or " ," in prompt.text for prompt in prompts)
    some = mixed(prompts, dict.fromkeys(TASKS, 0.2), 50)
    assert [sum(prompt.task == task for prompt in some) for task in TASKS] == [10] * 5
    held_out = {prompt.source_id for prompt in prompts if prompt.held_out}
    read = texts_to_read(texts, seed=1)
    assert not held_out & {text.source_id for text in read}
    assert any(ANSWERED in text.text for text in read)


@LONG  # each stage by itself is here, and all of the demonstration's in test_train_demo.py
def test_all_stages(
    texts: Path, target: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_tokenizer(tmp_path / "target")
    target.save_pretrained(folder)
    options = f"--target {folder} --data {texts} --cache {tmp_path / 'cache'} --device cpu"
    options += f" --out {tmp_path / 'draft'} --layers 0,2 --kept 60 --minutes 0.005"
    options += " --answers 10 --asked 2 --held-out 1 --texts 10 --rows 8 --tokens 6"
    assert train_real_draft.main(options.split()) == 0
    first = (tmp_path / "draft/draft.safetensors").stat().st_mtime_ns
    assert "made up" in capsys.readouterr().err
    assert train_real_draft.main([*options.split(), "--stage", "draft"]) == 0
    assert "answers;" not in capsys.readouterr().err
    card = (tmp_path / "draft/README.md").read_text(encoding="utf-8")
    assert "| talk |" in card
    assert first == (tmp_path / "draft/draft.safetensors").stat().st_mtime_ns
    assert load_engine(tmp_path / "target-draft", drafts=True).vocabulary_size == VOCABULARY


def test_missing_texts_are_a_one_line_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_tokenizer(tmp_path / "target")
    (folder / "config.json").write_text('{"num_hidden_layers": 30}')
    options = f"--stage answers --data {tmp_path} --cache {tmp_path / 'cache'} --target {folder}"
    assert train_real_draft.main(options.split()) == 1
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert message.count("\n") == 1
