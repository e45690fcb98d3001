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

import torch  # noqa: E402

from models.training.stages import STAGES, Settings, run_stage  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.device == "cpu":
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    settings = Settings(
        documents=options.data,
        out=options.out,
        device=torch.device(options.device),
        seed=options.seed,
        minutes_target=options.minutes_target,
        minutes_plain=options.minutes_plain,
        minutes_draft=options.minutes_draft,
        patience=options.patience,
    )
    try:
        for stage in STAGES if options.stage == "all" else (options.stage,):
            run_stage(stage, settings)
    except (FileNotFoundError, ValueError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted; run the same command again to go on\n")
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--stage", choices=(*STAGES, "all"), default="all")
    parser.add_argument(
        "--data",
        type=Path,
        default=REPOSITORY / "models" / "data",
        help="folder with peps.jsonl and gsm8k-train.jsonl, which the repository does not have",
    )
    parser.add_argument("--out", type=Path, default=REPOSITORY / "models")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument("--minutes-target", type=float, default=70.0, help="computing time")
    parser.add_argument("--minutes-plain", type=float, default=70.0, help="computing time")
    parser.add_argument("--minutes-draft", type=float, default=22.0, help="computing time")
    parser.add_argument(
        "--patience",
        type=float,
        default=1.6,
        help="a stage also ends after its budget times this in wall time (busy machine)",
    )
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    sys.exit(main())
