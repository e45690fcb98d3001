"""Train the draft of the real pair: `python models/train_real_draft.py --stage all`.

Needs what `make real-pair` makes. Every stage can be interrupted and run again; it goes on from
what lies in `--cache`. Delete that folder to start afresh. `tandem distill` makes drafts for other
targets in the same way; what is particular to this one is here.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

STARTED_S = time.monotonic()
os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from lab.training.demo_pair.script import run_stages, stages_parser, use_device  # noqa: E402
from lab.training.distilling.making import STAGES, DraftMaker, Settings  # noqa: E402
from lab.training.distilling.prompts import (  # noqa: E402
    ASKED,
    CODE,
    MATHS,
    PROSE,
    TALK,
    TOPICS,
    all_prompts,
    texts_to_read,
)

SHARES = {TALK: 0.14, MATHS: 0.2, PROSE: 0.12, CODE: 0.1, TOPICS: 0.14, ASKED: 0.3}
DRAFT = "draft"
CARD = "card"
JOIN = "join"
"""Stages beside those of every making: all but the last two, the card, and the whole draft from
what the repository has."""
TARGET = "SmolLM2-135M-Instruct"
STORAGE = """Embedding and head are the
target's, and are not stored: `make real-pair` (the stage `join` of the training) writes the whole
draft to `models/real/smollm2-draft`, a Llama model that any program reads."""
PROMPTS = """Prompts come from GSM8K's training split, the PEPs, HumanEval, WikiText-2, lists of
everyday things (`lab/training/distilling/prompts.py`) and from the target itself, which made up
questions (`asked`); the repository does not have these files (`--data` names a folder)."""
LICENCE = """A derivation of SmolLM2-135M-Instruct's weights (Hugging Face, Apache-2.0), see
`../NOTICE`. English only."""
_PLACES = ("target", "data", "cache", "out", "joined", "device", "states_in_memory")
_NOT_OF_THE_DRAFT = ("stage", "patience", *_PLACES)


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    settings = Settings(
        target=options.target,
        cache=options.cache,
        stored=options.out,
        out=options.joined or options.target.with_name(f"{options.target.name}-draft"),
        device=use_device(options.device),
        prompts=lambda: all_prompts(options.data, options.seed, options.variants),
        texts=lambda: texts_to_read(options.data, options.seed, options.text_characters),
        seed=options.seed,
        answers=options.answers,
        asked=options.asked,
        texts_read=options.texts,
        held_out_prompts=options.held_out,
        rows=options.rows,
        capacity=options.capacity,
        answer_tokens=options.tokens,
        layers=options.layers,
        kept=options.kept,
        shares=SHARES,
        minutes=options.minutes,
        sampling_share=options.sampling_share,
        states_on_disk=options.device == "cpu" and not options.states_in_memory,
        learning_rate=options.learning_rate,
        batch_tokens=options.batch_tokens,
        command=_command(options),
    )
    makers = list[DraftMaker]()

    def run(stage: str) -> None:
        if stage == DRAFT:
            for one in STAGES:
                if one != "export":
                    run(one)
        elif stage == JOIN:
            from lab.training.distilling.export import join

            join(settings.stored, settings.target, settings.out)
        elif stage == CARD:
            from lab.training.distilling.draft_card import CardWords, write_draft_card

            words = CardWords(TARGET, STORAGE, PROMPTS, LICENCE)
            write_draft_card(settings.stored, settings.target, settings.out, words)
        else:
            makers[:] = makers or [DraftMaker(settings, STARTED_S)]
            makers[0].run(stage)

    return run_stages(options.stage, (*STAGES, CARD), run)


def _command(options: argparse.Namespace) -> str:
    """What makes the same draft, wherever the files lie."""
    given = {
        name: ",".join(map(str, value)) if isinstance(value, tuple) else value
        for name, value in vars(options).items()
        if name not in _NOT_OF_THE_DRAFT
    }
    named = (f"--{name.replace('_', '-')} {value}" for name, value in given.items())
    return " ".join(("python models/train_real_draft.py", *named))


def _layers(given: str) -> tuple[int, ...]:
    return tuple(int(number) for number in given.split(","))


def _parser() -> argparse.ArgumentParser:
    parser = stages_parser(__doc__ or "", (*STAGES, DRAFT, CARD, JOIN))
    models = REPOSITORY / "models"
    parser.add_argument("--target", type=Path, default=models / "real" / "smollm2")
    parser.add_argument(
        "--data",
        type=Path,
        default=models / "data",
        help="folder with peps.jsonl, gsm8k-train.jsonl, HumanEval.jsonl.gz and "
        "wikitext2-valid.txt, which the repository does not have",
    )
    parser.add_argument("--cache", type=Path, default=models / ".cache" / "real-draft")
    parser.add_argument("--out", type=Path, default=models / "real-draft")
    parser.add_argument("--joined", type=Path, help="the whole draft; default: TARGET-draft")
    parser.add_argument("--answers", type=int, default=1_000_000, help="to learn from, at most")
    parser.add_argument("--asked", type=int, default=0, help="questions the target makes up")
    parser.add_argument("--variants", type=int, default=1, help="of the prompts of a document")
    parser.add_argument("--tokens", type=int, default=144, help="of an answer, at most")
    parser.add_argument("--texts", type=int, default=500, help="by others, to learn from")
    parser.add_argument("--text-characters", type=int, default=1200, help="of such a text")
    parser.add_argument("--held-out", type=int, default=8, help="prompts of a task to measure with")
    parser.add_argument("--rows", type=int, default=96, help="answers that are sampled at once")
    parser.add_argument("--capacity", type=int, default=352, help="tokens of prompt and answer")
    parser.add_argument("--layers", type=_layers, default=(0, 1, 2, 29), help="of the target")
    parser.add_argument("--kept", type=int, default=8192, help="tokens it can propose")
    parser.add_argument("--minutes", type=float, default=30.0, help="wall time of all stages")
    parser.add_argument("--sampling-share", type=float, default=0.4, help="of them for answers")
    parser.add_argument(
        "--states-in-memory", action="store_true", help="write no states of the target to the cache"
    )
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--batch-tokens", type=int, default=1024, help="of a training step")
    return parser


if __name__ == "__main__":
    sys.exit(main())
