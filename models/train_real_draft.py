"""Train the draft of the real pair: `python models/train_real_draft.py --stage all`.

Needs what `make real-pair` makes. Every stage can be interrupted and run again; it goes on from
what lies in `--cache`, and a finished one is skipped. Delete that folder to start afresh.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from lab.training.demo_pair.script import run_stages, stages_parser, use_device  # noqa: E402
from lab.training.distilling.stages import STAGES, Settings, run_stage  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    settings = Settings(
        target=options.target,
        texts=options.data,
        cache=options.cache,
        out=options.out,
        device=use_device(options.device),
        seed=options.seed,
        answers=options.answers,
        texts_read=options.texts,
        held_out_prompts=options.held_out,
        rows=options.rows,
        answer_tokens=options.tokens,
        layers=options.layers,
        kept=options.kept,
        minutes=options.minutes,
        patience=options.patience,
        learning_rate=options.learning_rate,
        batch_tokens=options.batch_tokens,
        command=_command(options),
    )
    return run_stages(options.stage, STAGES, lambda stage: run_stage(stage, settings))


def _command(options: argparse.Namespace) -> str:
    """What makes the same draft, wherever the files lie."""
    told = {
        name: ",".join(map(str, value)) if isinstance(value, tuple) else value
        for name, value in vars(options).items()
        if name not in ("stage", "target", "data", "cache", "out", "device")
    }
    named = (f"--{name.replace('_', '-')} {value}" for name, value in told.items())
    return " ".join(("python models/train_real_draft.py", *named))


def _layers(given: str) -> tuple[int, ...]:
    return tuple(int(number) for number in given.split(","))


def _parser() -> argparse.ArgumentParser:
    parser = stages_parser(__doc__ or "", STAGES)
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
    parser.add_argument("--answers", type=int, default=480, help="to learn from")
    parser.add_argument("--tokens", type=int, default=144, help="of an answer, at most")
    parser.add_argument("--texts", type=int, default=500, help="by others, to learn from")
    parser.add_argument("--held-out", type=int, default=8, help="prompts of a task to measure with")
    parser.add_argument("--rows", type=int, default=96, help="answers that are sampled at once")
    parser.add_argument("--layers", type=_layers, default=(0, 1, 2, 29), help="of the target")
    parser.add_argument("--kept", type=int, default=8192, help="tokens it can propose")
    parser.add_argument("--minutes", type=float, default=30.0, help="computing time")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--batch-tokens", type=int, default=1024, help="of a training step")
    return parser


if __name__ == "__main__":
    sys.exit(main())
