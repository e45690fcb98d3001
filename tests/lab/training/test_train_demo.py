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
from lab.training.demo_pair import corpus, growth, loop, objectives, stages
from lab.training.demo_pair.architecture import Size, build_model
from lab.training.demo_pair.batches import Batches
from lab.training.demo_pair.export import DRAFT_FOLDER, TARGET_FOLDER
from lab.training.demo_pair.precision import product_dtype, product_precision
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

    def test_tokenizer_round_trip(self) -> None:
        tokenizer = AutoTokenizer.from_pretrained(PUBLISHED / TARGET_FOLDER)
        text = "Tabs\tand  spaces, 1234 €, naïve 日本語\n\n    def f(x):\n"
        ids = tokenizer.encode(text)
        assert ids[0] == tokenizer.bos_token_id
        assert tokenizer.decode(ids, skip_special_tokens=True) == text

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

    def test_a_finished_training_is_skipped(self, tiny: stages.Settings) -> None:
        before = loop.read_spent(tiny.cache / "target.safetensors")
        stages.run_stage("target", tiny)
        assert loop.read_spent(tiny.cache / "target.safetensors") == before

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

    def test_the_tokenizer_is_kept(self, tiny: stages.Settings) -> None:
        before = _tokenizer_bytes(tiny.cache / "tokenizer")
        stages.make_tokenizer(replace(tiny, seed=5))
        assert _tokenizer_bytes(tiny.cache / "tokenizer") == before

    def test_an_unknown_stage_is_named(self, tiny: stages.Settings) -> None:
        with pytest.raises(ValueError, match="'bake'"):
            stages.run_stage("bake", tiny)

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

    def test_calculator_notes_are_removed(self, tiny: stages.Settings) -> None:
        assert not any("<<" in document.text for document in corpus.load_documents(tiny.documents))

    def test_batches_depend_on_seed_and_step_only(self, tiny: stages.Settings) -> None:
        documents = corpus.training_documents(corpus.load_documents(tiny.documents))
        tokenizer = stages.make_tokenizer(tiny)
        first = Batches(documents, tokenizer, seed=3, blocks_per_batch=1)
        for step in range(40):
            first.at(step)
        inputs, labels = first.at(37)
        again = Batches(documents, tokenizer, seed=3, blocks_per_batch=1).at(37)
        assert torch.equal(inputs, again[0])
        assert torch.equal(labels, again[1])
        assert torch.equal(inputs.flatten()[1:], labels.flatten()[:-1])
        assert inputs.numel() == 1024


class TestGrowth:
    def test_the_grown_model_computes_the_same(self, tiny: stages.Settings) -> None:
        tokenizer = stages.make_tokenizer(tiny)
        larger = Size(hidden=96, layers=5, intermediate=96, heads=3, kv_heads=1)
        small = stages.load_trained("plain", tiny)
        large = build_model(larger, tokenizer, seed=3).eval()
        growth.grow(small, large, (TINY, larger))
        ids = torch.arange(64).reshape(2, 32)
        with torch.no_grad():
            expected, logits = small(input_ids=ids).logits, large(input_ids=ids).logits
        # Not exact: the norms' epsilon weighs more beside a smaller mean square.
        assert (logits - expected).abs().max() < 0.01 * expected.std()

    def test_shrinking_is_refused(self, tiny: stages.Settings) -> None:
        model = stages.load_trained("plain", tiny)
        with pytest.raises(ValueError, match="hidden"):
            growth.grow(model, model, (TINY, replace(TINY, hidden=32)))


class TestObjectives:
    def test_distilling_from_itself_costs_nothing(self, tiny: stages.Settings) -> None:
        model = stages.load_trained("draft", tiny)
        inputs = torch.arange(64).reshape(2, 32)
        with product_precision(inputs.device):
            logits = model(input_ids=inputs, use_cache=False).logits
        objective = objectives.distillation(model)
        for progress in (0.0, 0.5, 1.0):
            assert objective(logits, inputs, inputs, progress).item() == pytest.approx(0, abs=1e-6)

    def test_the_late_loss_is_the_rejection_rate(self, tiny: stages.Settings) -> None:
        target, draft = (stages.load_trained(name, tiny) for name in ("target", "draft"))
        inputs = torch.arange(64).reshape(2, 32)
        with product_precision(inputs.device), torch.no_grad():
            target_probs = target(input_ids=inputs).logits.float().softmax(-1)
            logits = draft(input_ids=inputs).logits
        draft_probs = logits.float().softmax(-1)
        overlap = torch.minimum(target_probs, draft_probs).sum(-1).mean()
        divergence = (target_probs * (target_probs.log() - draft_probs.log())).sum(-1).mean()
        loss = objectives.distillation(target)(logits, inputs, inputs, 1.0)
        expected = 0.9 * (1 - overlap) + 0.1 * divergence
        assert loss.item() == pytest.approx(expected.item(), abs=1e-4)

    @pytest.mark.parametrize(
        ("device", "capability", "dtype"),
        [
            ("cpu", "AVX512", torch.bfloat16),
            ("cpu", "AVX2", torch.float32),
            ("cuda", "AVX2", torch.bfloat16),
        ],
    )
    def test_products_are_in_bfloat16_where_that_is_quick(
        self, device: str, capability: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
        assert product_dtype(torch.device(device)) is dtype

    def test_learning_rate_rises_holds_and_falls(self) -> None:
        plan = loop.Plan(budget_s=1.0)
        factors = [loop.learning_rate_factor(plan, step / 100) for step in range(101)]
        assert factors[1] < factors[2] == max(factors) == 1.0
        assert factors[-1] == pytest.approx(0.02)

    def test_wall_time_counts_only_when_patience_is_exceeded(self) -> None:
        plan = loop.Plan(budget_s=100.0, patience=2.0)
        assert loop.Spent(compute_s=50.0, wall_s=80.0).progress(plan) == 0.5
        assert loop.Spent(compute_s=50.0, wall_s=150.0).progress(plan) == 0.75
        assert loop.Spent(compute_s=50.0, wall_s=900.0).progress(plan) == 1.0


def _tokenizer_bytes(folder: Path) -> bytes:
    return (folder / "tokenizer.json").read_bytes()
