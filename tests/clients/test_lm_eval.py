"""lm-evaluation-harness rates the same questions over HTTP and with transformers on the same
weights: every answer must be the same.

It needs torch and transformers beside `lm-eval[api,hf]`, so it has an environment of its own, that
`make test-lm-eval` makes, or whose Python LM_EVAL_PYTHON names. Without one these tests are
skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.running_suite import running_up
from tests.programs import REPOSITORY

PYTHON = Path(os.environ.get("LM_EVAL_PYTHON", REPOSITORY / ".venv-lm-eval/bin/python"))
WEIGHTS = REPOSITORY / "models/demo-target"
QUESTIONS = 50
CHOICES = 4
TIMEOUT_S = 600.0

PROGRAM = """
import json, sys
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

model, arguments, folder, batch = sys.argv[1:]
found = simple_evaluate(
    model=model,
    model_args=json.loads(arguments),
    tasks=["tandem_choices"],
    task_manager=TaskManager(include_path=folder, include_defaults=False),
    batch_size=int(batch),
    bootstrap_iters=0,
    log_samples=True,
)
samples = sorted(found["samples"]["tandem_choices"], key=lambda sample: sample["doc_id"])
told = {
    "accuracy": found["results"]["tandem_choices"]["acc,none"],
    "right": [sample["acc"] for sample in samples],
    "logprobs": [[float(each[0]) for each in sample["filtered_resps"]] for sample in samples],
    "greedy": [[str(each[1]) for each in sample["filtered_resps"]] for sample in samples],
}
print("told:" + json.dumps(told))
"""

TASK = """
task: tandem_choices
dataset_path: json
dataset_kwargs:
  data_files:
    test: {questions}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""


@pytest.fixture(scope="module", autouse=True)
def environment() -> None:
    if not PYTHON.exists():
        pytest.skip(f"{PYTHON}: not there; 'make test-lm-eval' makes it")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with questions of arithmetic, their answers, and answers to others among them."""
    folder = tmp_path_factory.mktemp("task")
    texts = (REPOSITORY / "models/heldout.jsonl").read_text(encoding="utf-8").splitlines()
    solved = [row for row in map(json.loads, texts) if row["source"] == "gsm8k"]
    answers = [row["text"][len(row["prompt"]) :].strip() for row in solved]
    questions = folder / "questions.jsonl"
    with questions.open("w", encoding="utf-8") as file:
        for number, row in enumerate(solved[:QUESTIONS]):
            right = number % CHOICES
            choices = [answers[(number + 7 * step) % len(answers)] for step in range(1, CHOICES)]
            choices.insert(right, answers[number])
            question = {"question": row["prompt"], "choices": choices, "answer": right}
            file.write(json.dumps(question) + "\n")
    (folder / "task.yaml").write_text(TASK.format(questions=questions), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running_up() as suite:
        yield suite.places["http"]


def rated(task: Path, kind: str, batch: int = 1, **arguments: Any) -> Any:
    """What lm-eval finds, without asking any hub."""
    offline = dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"), "1")
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    ended = subprocess.run(
        [PYTHON, "-c", PROGRAM, kind, json.dumps(arguments), str(task), str(batch)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        cwd=task,
        env={
            **kept,
            **offline,
            **{"HF_HOME": str(task / "hf"), "TOKENIZERS_PARALLELISM": "false"},
            "OMP_NUM_THREADS": "1",
        },
    )
    lines = [line for line in ended.stdout.splitlines() if line.startswith("told:")]
    assert ended.returncode == 0, ended.stderr[-4000:]
    return json.loads(lines[-1].removeprefix("told:"))


@pytest.fixture(scope="module")
def by_transformers(task: Path) -> Any:
    return rated(task, "hf", pretrained=str(WEIGHTS), dtype="float32", device="cpu")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("batch", [1, 4])
def test_every_question_is_answered_as_by_transformers(
    task: Path, server: str, by_transformers: Any, batch: int
) -> None:
    found = rated(
        task,
        "local-completions",
        batch=batch,
        model="demo-target",
        base_url=f"{server}/v1/completions",
        tokenizer=str(WEIGHTS),
        tokenizer_backend="huggingface",
        tokenized_requests=True,
        add_bos_token=True,  # as this model's tokenizer does, and lm-eval's `hf` with it
    )
    assert len(found["right"]) == QUESTIONS
    assert found["right"] == by_transformers["right"]
    assert found["accuracy"] == by_transformers["accuracy"]
    assert found["greedy"] == by_transformers["greedy"]
    for ours, theirs in zip(found["logprobs"], by_transformers["logprobs"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-3)
    print(f"accuracy {found['accuracy']:.2f} of {QUESTIONS} questions", file=sys.stderr)
