"""The stages of making the demo pair, each restartable and skipped when already done."""

from __future__ import annotations

import math
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer

from lab.training.demo_pair import corpus, export
from lab.training.demo_pair.architecture import DRAFT, TARGET, Size, build_model
from lab.training.demo_pair.batches import Batches
from lab.training.demo_pair.growth import grow
from lab.training.demo_pair.loop import Plan, load_weights, read_spent, train
from lab.training.demo_pair.objectives import cross_entropy, distillation
from lab.training.demo_pair.tokenizer import (
    VOCAB_SIZE,
    load_tokenizer,
    save_tokenizer,
    train_tokenizer,
)
from lab.training.exit_training import ExitTraining, encode_texts, train_exits
from tandem.backends.torch.exit_adapters import read_description
from tandem.backends.torch.loading import base_hash
from tandem.core.errors import InvalidArgument

STAGES = ("tokenizer", "plain", "target", "draft", "export", "exits")
SNAPSHOT = "plain-snapshot.safetensors"
SNAPSHOT_AT = 0.4


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run is made from. `out` receives the models; `out/.cache` the checkpoints."""

    documents: Path
    out: Path
    device: torch.device
    seed: int = 0
    minutes_target: float = 70.0
    minutes_plain: float = 70.0
    minutes_draft: float = 22.0
    patience: float = 1.6
    target_size: Size = TARGET
    draft_size: Size = DRAFT
    vocab_size: int = VOCAB_SIZE
    blocks_per_batch: int = 4
    exit_texts: int = 3000
    exit_rank: int = 128
    exit_steps: int = 600

    @property
    def cache(self) -> Path:
        return self.out / ".cache"


def run_stage(stage: str, settings: Settings) -> None:
    """Run one of `STAGES`; ValueError for another name."""
    settings.cache.mkdir(parents=True, exist_ok=True)
    match stage:
        case "tokenizer":
            make_tokenizer(settings)
        case "target":
            train_target(settings)
        case "plain":
            train_plain(settings)
        case "draft":
            train_draft(settings)
        case "export":
            export_pair(settings)
        case "exits":
            make_exits(settings)
        case _:
            raise ValueError(f"stage {stage!r} is none of {', '.join(STAGES)}")


def make_tokenizer(settings: Settings) -> Tokenizer:
    """Train the tokenizer once; afterwards the published one is kept, whatever the seed."""
    published = settings.out / export.TARGET_FOLDER
    folder = settings.cache / "tokenizer"
    for known in (folder, published):
        if (known / "tokenizer.json").exists():
            tokenizer = load_tokenizer(known)
            break
    else:
        documents = corpus.training_documents(corpus.load_documents(settings.documents))
        texts = (corpus.render_prose(document) for document in documents)
        tokenizer = train_tokenizer(texts, settings.vocab_size)
    if not (folder / "tokenizer.json").exists():
        save_tokenizer(tokenizer, folder)
    return tokenizer


def train_plain(settings: Settings) -> None:
    """Train a draft plainly; target and draft both start from a snapshot taken on the way."""
    tokenizer = make_tokenizer(settings)
    model = build_model(settings.draft_size, tokenizer, settings.seed)
    batches = _batches(settings, tokenizer, seed=settings.seed)
    plan = Plan(settings.minutes_plain * 60, patience=settings.patience, snapshot_at=SNAPSHOT_AT)
    train("plain", model, batches, cross_entropy, plan, settings.cache, settings.device)


def train_target(settings: Settings) -> None:
    """Grow the snapshot of the plain draft and train on; its computing time is counted in."""
    tokenizer = make_tokenizer(settings)
    snapshot = settings.cache / SNAPSHOT
    small = build_model(settings.draft_size, tokenizer, settings.seed)
    load_weights(snapshot, small)
    model = build_model(settings.target_size, tokenizer, settings.seed)
    grow(small, model, (settings.draft_size, settings.target_size))
    batches = _batches(settings, tokenizer, seed=settings.seed + 1)
    budget_s = settings.minutes_target * 60 - read_spent(snapshot).compute_s
    if budget_s <= 0:
        raise ValueError("minutes_target must exceed the time already in the snapshot")
    # What has been learned survives only a gentler rate than a fresh start likes: at the usual
    # 3e-3 the loss rose for 100 steps.
    plan = Plan(
        budget_s, patience=settings.patience, learning_rate=1.2e-3, warmup=0.03, decay_from=0.1
    )
    train("target", model, batches, cross_entropy, plan, settings.cache, settings.device)


def train_draft(settings: Settings) -> None:
    """Distil the draft from the finished target, starting from the snapshot as the target did."""
    tokenizer = make_tokenizer(settings)
    target = load_trained("target", settings).to(settings.device)
    draft = build_model(settings.draft_size, tokenizer, settings.seed + 1)
    load_weights(settings.cache / SNAPSHOT, draft)
    batches = _batches(settings, tokenizer, seed=settings.seed + 2)
    plan = Plan(
        settings.minutes_draft * 60, patience=settings.patience, learning_rate=2e-3, decay_from=0.4
    )
    objective = distillation(target)
    train("draft", draft, batches, objective, plan, settings.cache, settings.device)


def load_trained(name: str, settings: Settings) -> torch.nn.Module:
    """Load the model of checkpoint `name` (target, plain or draft), on the CPU in fp32."""
    size = settings.target_size if name == "target" else settings.draft_size
    model = build_model(size, make_tokenizer(settings), settings.seed)
    load_weights(settings.cache / f"{name}.safetensors", model)
    return model.eval()


def export_pair(settings: Settings) -> None:
    """Write both model folders and the held-out excerpt; until distillation, the plain draft."""
    tokenizer = make_tokenizer(settings)
    distilled = (settings.cache / "draft.safetensors").exists()
    target = load_trained("target", settings)
    draft = load_trained("draft" if distilled else "plain", settings)
    export.write_model(target, tokenizer, settings.out / export.TARGET_FOLDER)
    export.write_model(draft, tokenizer, settings.out / export.DRAFT_FOLDER)
    documents = corpus.held_out_documents(corpus.load_documents(settings.documents))
    export.write_held_out(documents, settings.out / "heldout.jsonl")


def make_exits(settings: Settings) -> None:
    """Train early exits for the published target, unless those that are there were trained for it.

    Frozen base, so it takes minutes; the training resumes from its own checkpoint.
    """
    target = settings.out / export.TARGET_FOLDER
    out = settings.out / export.EXITS_FOLDER
    with suppress(InvalidArgument):
        if read_description(out).base_hash == base_hash(target):
            return
    documents = corpus.training_documents(corpus.load_documents(settings.documents))
    texts = corpus.render_epoch(documents, settings.seed)[: settings.exit_texts]
    training = ExitTraining(
        exits=min(4, settings.target_size.layers - 1),
        rank=settings.exit_rank,
        steps=settings.exit_steps,
        seed=settings.seed,
    )

    def show(step: int, loss: float) -> None:
        if step % 10 == 0:
            said = "" if math.isnan(loss) else f", loss {loss:.3f} nats   "
            sys.stderr.write(f"\rexits: step {step} of {training.steps}{said}")

    tokens = encode_texts(target, texts)
    train_exits(target, tokens, out, training, settings.device.type, show)
    sys.stderr.write("\n")


def _batches(settings: Settings, tokenizer: Tokenizer, seed: int) -> Batches:
    documents = corpus.training_documents(corpus.load_documents(settings.documents))
    return Batches(documents, tokenizer, seed, settings.blocks_per_batch)
