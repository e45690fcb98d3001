"""Train early exits for the real pair's target: `python models/train_real_exits.py --stage all`.

Needs what `make real-pair` makes. The stage `texts` reads the texts and writes their token ids,
which is all that the stage `train` needs of them: so it can run on another machine. A training that
was interrupted goes on where it stopped. The stage `place` copies exits that are there beside the
target, where a verifier finds them.
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
from lab.training.exit_stages import STAGES, Settings, run_stage  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    use_device(options.device)
    settings = Settings(
        target=options.target,
        texts=options.data,
        cache=options.cache,
        out=options.out,
        device=options.device,
        tokens=options.tokens,
        exits=options.exits,
        rank=options.rank,
        minutes=options.minutes,
        sampled=options.sampled,
        rows=options.rows,
        positions=options.positions,
        seed=options.seed,
    )
    return run_stages(options.stage, STAGES, lambda stage: run_stage(stage, settings))


def _parser() -> argparse.ArgumentParser:
    parser = stages_parser(__doc__ or "", STAGES)
    models = REPOSITORY / "models"
    parser.add_argument("--target", type=Path, default=models / "real" / "smollm2")
    parser.add_argument(
        "--data",
        type=Path,
        default=models / "data",
        help="folder with peps.jsonl, gsm8k-train.jsonl and wikitext2-valid.txt, which the "
        "repository does not have",
    )
    parser.add_argument("--cache", type=Path, default=models / ".cache" / "real-exits")
    parser.add_argument("--out", type=Path, default=models / "real-exits")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="of text, at most")
    parser.add_argument("--exits", type=int, default=10)
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=25.0)
    parser.add_argument("--rows", type=int, default=2, help="texts of a step")
    parser.add_argument("--positions", type=int, default=512, help="that a step learns from")
    parser.add_argument(
        "--sampled",
        type=int,
        default=8192,
        help="tokens of the vocabulary that a step compares; 0: all",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
