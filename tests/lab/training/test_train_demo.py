"""The demo pair as committed, and its training script on a tiny corpus."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lab.bench.harness.models import Models
from lab.bench.harness.pair_distributions import Sums, distributions_along, texts
from lab.training.demo_pair import corpus, loop, objectives, stages
from lab.training.demo_pair.architecture import Size
from lab.training.demo_pair.batches import Batches
from lab.training.demo_pair.export import DRAFT_FOLDER, TARGET_FOLDER
from models import train_demo
from tandem.backends.torch.loading import load_engine

PUBLISHED = Path(train_demo.__file__).parent
STEP_S = 0.05
SIZE_LIMIT_BYTES = 38_500_000
TINY = Size(hidden=64, layers=1, intermediate=64, heads=1, kv_heads=1)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> stages.Settings:
    """A tiny pair taken through every stage: 24 steps of the target, 12 of either draft."""
    folder = tmp_path_factory.mktemp("demo")
    _write_corpus(folder / "corpus")
    settings = stages.Settings(
        documents=folder / "corpus",
        out=folder / "models",
        device=torch.device("cpu"),
        minutes_target=0.02,
        minutes_plain=0.01,
        minutes_draft=0.01,
        patience=50.0,
        target_size=replace(TINY, layers=2, hidden=96),
        draft_size=TINY,
        vocab_size=320,
        blocks_per_batch=1,
        exit_texts=60,
        exit_rank=4,
        exit_steps=4,
    )
    with counted_steps():
        for stage in stages.STAGES:
            stages.run_stage(stage, settings)
    return settings


@contextmanager
def counted_steps() -> Iterator[None]:
    """Each step takes as long, so that a busy machine trains no less."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Laps, "lap", lambda self: (STEP_S, STEP_S))
        yield


def _write_corpus(folder: Path) -> None:
    folder.mkdir()
    words = ["the", "type", "system", "of", "a", "function", "returns", "every", "value", "was"]
    rng = np.random.default_rng(0)
    with (folder / "peps.jsonl").open("w") as lines:
        for index in range(60):
            text = "\n\n".join(" ".join(rng.choice(words, 30)) for _ in range(6))
            record = {"id": f"pep-{index:04d}", "title": f"Title {index}", "text": text}
            lines.write(json.dumps(record) + "\n")
    with (folder / "gsm8k-train.jsonl").open("w") as lines:
        for index in range(120):
            question = f"Ann has {index} pens and buys 2. How many pens has she?"
            answer = f"She has {index}+2=<<{index}+2={index + 2}>>{index + 2}.\n#### {index + 2}"
            record = {"question": question, "answer": answer}
            lines.write(json.dumps(record) + "\n")


class TestCommittedPair:
    def test_both_models_load_and_share_one_tokenizer(self) -> None:
        digests = set()
        for folder in (TARGET_FOLDER, DRAFT_FOLDER):
            model = AutoModelForCausalLM.from_pretrained(PUBLISHED / folder, dtype=torch.float32)
            tokenizer = AutoTokenizer.from_pretrained(PUBLISHED / folder)
            assert model.config.vocab_size == len(tokenizer) == 4096
            assert model.config.eos_token_id == tokenizer.eos_token_id
            assert all(torch.isfinite(tensor).all() for tensor in model.parameters())
            digests.add(hashlib.sha256(_tokenizer_bytes(PUBLISHED / folder)).hexdigest())
        assert len(digests) == 1

    def test_size_limit(self) -> None:
        shipped = [
            file
            for file in PUBLISHED.rglob("*")
            if file.is_file()
            and not {".cache", "__pycache__"} & set(file.parts)
            # What `make real-pair` gets, and what is tried beside it, is not committed.
            and file.suffix != ".gguf"
            and PUBLISHED / "real" not in file.parents
        ]
        assert sum(file.stat().st_size for file in shipped) <= SIZE_LIMIT_BYTES

    def test_held_out_excerpt(self) -> None:
        path = PUBLISHED / "heldout.jsonl"
        assert path.stat().st_size <= 150_000
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        assert {record["source"] for record in records} == {corpus.PEPS, corpus.GSM8K}
        for record in records:
            assert corpus.is_held_out(record["id"])
            assert record["text"].startswith(record["prompt"])

    def test_chat_template_equals_the_training_form(self) -> None:
        tokenizer = AutoTokenizer.from_pretrained(PUBLISHED / TARGET_FOLDER)
        roles = ("system", "document", "user", "assistant")
        contents = ("Be kind.", "A page.", "Why?", "Because.")
        messages = [
            {"role": role, "content": content}
            for role, content in zip(roles, contents, strict=True)
        ]
        system, document, question, answer = contents
        expected = corpus.render_chat(question, answer, document, system)
        assert tokenizer.apply_chat_template(messages, tokenize=False) == "<|bos|>" + expected

    def test_the_target_reads_held_out_text_better_and_the_draft_is_accepted(self) -> None:
        target, draft = (
            load_engine(PUBLISHED / folder) for folder in (TARGET_FOLDER, DRAFT_FOLDER)
        )
        sums = Sums()
        for _, token_ids in list(texts(Models(), quick=True))[:6]:
            of_target, of_draft = (distributions_along(one, token_ids) for one in (target, draft))
            sums.add(of_target, of_draft, token_ids[1:])
        row = sums.row("held out", seed=0)
        assert row["target_cross_entropy"] < row["draft_cross_entropy"]
        assert row["acceptance_rate"] >= 0.65


class TestStages:
    def test_the_published_files_load(self, tiny: stages.Settings) -> None:
        for folder in (TARGET_FOLDER, DRAFT_FOLDER):
            model = AutoModelForCausalLM.from_pretrained(tiny.out / folder)
            tokenizer = AutoTokenizer.from_pretrained(tiny.out / folder)
            assert model.dtype == torch.bfloat16
            assert len(tokenizer) == model.config.vocab_size == 320
        assert _tokenizer_bytes(tiny.out / TARGET_FOLDER) == _tokenizer_bytes(
            tiny.out / DRAFT_FOLDER
        )

    def test_a_longer_budget_resumes(self, tiny: stages.Settings) -> None:
        before = loop.read_spent(tiny.cache / "target.safetensors")
        with counted_steps():
            stages.run_stage("target", replace(tiny, minutes_target=0.025))
        after = loop.read_spent(tiny.cache / "target.safetensors")
        assert after.step > before.step
        assert after.compute_s > before.compute_s

    def test_training_lowers_the_loss(self, tiny: stages.Settings) -> None:
        tokenizer = stages.make_tokenizer(tiny)
        documents = corpus.training_documents(corpus.load_documents(tiny.documents))
        rows = Batches(documents, tokenizer, seed=9, blocks_per_batch=1).at(0)
        trained = stages.load_trained("target", tiny)
        with torch.inference_mode():
            logits = trained(input_ids=rows[0]).logits
        loss = objectives.cross_entropy(logits, *rows, progress=0.0)
        assert float(loss) < 0.8 * float(np.log(320))

    def test_a_missing_corpus_is_a_one_line_error(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        arguments = ["--stage", "tokenizer", "--device", "cpu", "--out", str(tmp_path)]
        assert train_demo.main([*arguments, "--data", str(tmp_path / "none")]) == 1
        message = capsys.readouterr().err
        assert message.startswith("error: ")
        assert "peps.jsonl" in message
        assert message.count("\n") == 1


class TestCorpus:
    def test_held_out_documents_never_reach_an_epoch(self, tiny: stages.Settings) -> None:
        documents = corpus.load_documents(tiny.documents)
        held_out = corpus.held_out_documents(documents)
        texts = corpus.render_epoch(corpus.training_documents(documents), seed=1)
        assert held_out
        for document in held_out:
            marker = document.question or document.text
            assert not any(marker in text for text in texts)


def _tokenizer_bytes(folder: Path) -> bytes:
    return (folder / "tokenizer.json").read_bytes()
