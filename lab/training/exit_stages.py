"""The stages of making early exits for the real pair's target, each skipped when it is done."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lab.training.exit_card import exits_card
from lab.training.exit_training import ExitTraining, train_exits
from tandem.backends.torch.exit_adapters import (
    DESCRIPTION,
    TENSORS,
    place_beside,
    read_description,
)
from tandem.core.errors import InvalidArgument

STAGES = ("texts", "train", "card", "place")
TOKENS = "tokens.npy"
_NOTES = """Texts: solved problems of GSM8K's training split as chats, pieces of PEPs, and articles
of WikiText-2, but for the documents that the demo pair holds out, which benchmarks use. HumanEval
was not read. The repository does not have these files (`--data` names a folder).

A derivation of SmolLM2-135M-Instruct's weights (Hugging Face, Apache-2.0), see `../NOTICE`."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run is made from. `texts` has what `distilling.prompts` reads, `cache` receives token
    ids, `out` the exits; `sampled`, `rows` and `positions` as of `ExitTraining`."""

    target: Path
    texts: Path
    cache: Path
    out: Path
    device: str
    tokens: int = 1_000_000
    exits: int = 10
    rank: int = 64
    minutes: float = 25.0
    sampled: int = 8192
    rows: int = 2
    positions: int = 512
    seed: int = 0

    @property
    def command(self) -> str:
        """What makes the same exits, wherever the files lie."""
        told = ("tokens", "exits", "rank", "minutes", "rows", "positions", "sampled", "seed")
        flags = " ".join(f"--{name} {getattr(self, name)}" for name in told)
        return f"python models/train_real_exits.py {flags}"


def run_stage(stage: str, settings: Settings) -> None:
    """Run one of `STAGES`; ValueError for another name, and for what cannot be trained."""
    settings.cache.mkdir(parents=True, exist_ok=True)
    try:
        match stage:
            case "texts":
                write_tokens(settings)
            case "train":
                train(settings)
            case "card":
                write_card(settings)
            case "place":
                place(settings)
            case _:
                raise ValueError(f"stage {stage!r} is none of {', '.join(STAGES)}")
    except InvalidArgument as error:
        raise ValueError(str(error)) from error


def write_tokens(settings: Settings) -> None:
    """Write the token ids of all texts end to end, an end-of-text token after each."""
    path = settings.cache / TOKENS
    if path.exists():
        return
    from transformers import AutoTokenizer

    from lab.training.distilling.prompts import ANSWERED, texts_to_read

    tokenizer: Any = AutoTokenizer.from_pretrained(settings.target)
    end = tokenizer.eos_token_id
    token_ids = list[int]()
    for text in texts_to_read(settings.texts, settings.seed):
        question, _, answer = text.text.partition(ANSWERED)
        turn = [{"role": "user", "content": question}]
        asked = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        whole = asked + answer if text.chat else question
        token_ids += [*tokenizer.encode(whole, add_special_tokens=False), end]
        if len(token_ids) >= settings.tokens:
            break
    kind = np.uint16 if max(token_ids) < 1 << 16 else np.uint32
    np.save(path, np.array(token_ids[: settings.tokens], dtype=kind))


def train(settings: Settings) -> None:
    if (settings.out / DESCRIPTION).exists():
        return
    training = ExitTraining(
        exits=settings.exits,
        rank=settings.rank,
        minutes=settings.minutes,
        sampled=settings.sampled,
        rows=settings.rows,
        positions=settings.positions,
        seed=settings.seed,
    )
    token_ids = np.load(settings.cache / TOKENS, allow_pickle=False)
    train_exits(settings.target, token_ids, settings.out, training, settings.device, _show)


def write_card(settings: Settings) -> None:
    about = read_description(settings.out)
    title = "Early exits for SmolLM2-135M-Instruct"
    text = exits_card(title, about, settings.out, settings.command, _NOTES)
    (settings.out / "README.md").write_text(text, encoding="utf-8")


def place(settings: Settings) -> None:
    """Copy the exits, if there are any, to where a verifier looks for those of the target."""
    beside = place_beside(settings.target)
    there = (settings.out / DESCRIPTION).exists()
    if not there or beside == settings.out.resolve():
        return
    beside.mkdir(parents=True, exist_ok=True)
    for name in (TENSORS, DESCRIPTION):  # the description comes last and makes it complete
        shutil.copyfile(settings.out / name, beside / name)


def _show(step: int, loss: float) -> None:
    if step % 20 == 0:
        sys.stderr.write(f"exits: step {step}, loss {loss:.3f} nats\n")
