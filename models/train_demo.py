"""Train the demo pair: `python models/train_demo.py --stage all`.

Every stage can be interrupted and run again; it goes on from its last checkpoint in
`<out>/.cache`, and a finished one is skipped. Delete that folder to start afresh.
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
from lab.training.demo_pair.stages import STAGES, Settings, run_stage  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    settings = Settings(
        documents=options.data,
        out=options.out,
        device=use_device(options.device),
        seed=options.seed,
        minutes_target=options.minutes_target,
        minutes_plain=options.minutes_plain,
        minutes_draft=options.minutes_draft,
        patience=options.patience,
    )
    return run_stages(options.stage, STAGES, lambda stage: run_stage(stage, settings))


def _parser() -> argparse.ArgumentParser:
    parser = stages_parser(__doc__ or "", STAGES)
    parser.add_argument(
        "--data",
        type=Path,
        default=REPOSITORY / "models" / "data",
        help="folder with peps.jsonl and gsm8k-train.jsonl, which the repository does not have",
    )
    parser.add_argument("--out", type=Path, default=REPOSITORY / "models")
    parser.add_argument("--minutes-target", type=float, default=70.0, help="computing time")
    parser.add_argument("--minutes-plain", type=float, default=70.0, help="computing time")
    parser.add_argument("--minutes-draft", type=float, default=22.0, help="computing time")
    return parser


if __name__ == "__main__":
    sys.exit(main())
