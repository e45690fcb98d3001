"""The model card: figures measured on the exported weights, written to `models/README.md`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from lab.training.demo_pair.architecture import parameter_count
from lab.training.demo_pair.corpus import GSM8K, PEPS, Document
from lab.training.demo_pair.evaluation import DraftFigures, compare, cross_entropy, held_out_rows
from lab.training.demo_pair.export import DRAFT_FOLDER, EXITS_FOLDER, TARGET_FOLDER
from tandem.backends.torch.exit_adapters import read_description

SAMPLE_PROMPTS = (
    "<|user|>Tom has 3 boxes with 12 pencils each. He gives away 9 pencils. "
    "How many pencils does he have left?<|assistant|>",
    "The purpose of this PEP is to",
)
SAMPLE_TOKENS = 80


@dataclass(frozen=True, slots=True)
class SourceFigures:
    """Held-out figures on one source; `tokens` is how many positions were measured."""

    source: str
    tokens: int
    target_cross_entropy: float
    plain: DraftFigures
    distilled: DraftFigures


@dataclass(frozen=True, slots=True)
class Training:
    """How one model was trained, for the card's table; the snapshot it started from counts in."""

    name: str
    method: str
    compute_s: float
    steps: int
    tokens: int


def measure(
    out: Path, plain: torch.nn.Module, documents: list[Document], tokenizer: Tokenizer
) -> list[SourceFigures]:
    """Return the figures, by source of texts, of the pair as published (bf16 weights, computed in
    fp32) and of the plain draft."""
    target, draft = load_published(out, TARGET_FOLDER), load_published(out, DRAFT_FOLDER)
    return [
        SourceFigures(
            source,
            rows[1].numel(),
            cross_entropy(target, rows),
            compare(target, plain, rows),
            compare(target, draft, rows),
        )
        for source, rows in held_out_rows(documents, tokenizer).items()
    ]


def load_published(out: Path, folder: str) -> torch.nn.Module:
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(out / folder, dtype=torch.float32)
    return model.eval()


def samples(out: Path, tokenizer: Tokenizer, seed: int) -> list[str]:
    """Return one continuation of each sample prompt by the target, at temperature 0.7."""
    target: Any = load_published(out, TARGET_FOLDER)
    torch.manual_seed(seed)
    texts = []
    for prompt in SAMPLE_PROMPTS:
        ids = torch.tensor([tokenizer.encode(prompt).ids])
        drawn = target.generate(
            ids, max_new_tokens=SAMPLE_TOKENS, do_sample=True, temperature=0.7, top_k=0
        )
        texts.append(tokenizer.decode(drawn[0].tolist(), skip_special_tokens=False))
    return texts


def write(
    out: Path,
    figures: list[SourceFigures],
    trainings: Sequence[Training],
    sample_texts: list[str],
    seed: int,
    command: str,
) -> None:
    sizes = {
        folder: parameter_count(load_published(out, folder))
        for folder in (TARGET_FOLDER, DRAFT_FOLDER)
    }
    text = _TEXT.format(
        target_parameters=f"{sizes[TARGET_FOLDER] / 1e6:.2f} M",
        draft_parameters=f"{sizes[DRAFT_FOLDER] / 1e6:.2f} M",
        size=f"{published_bytes(out) / 1e6:.1f} MB",
        comparison=_comparison(figures),
        figures="\n".join(_figure_row(figure) for figure in figures),
        trainings="\n".join(_training_row(training) for training in trainings),
        exits=_exits(out / EXITS_FOLDER),
        samples="\n\n".join(f"```text\n{text}\n```" for text in sample_texts),
        seed=seed,
        command=command,
    )
    partial = out / "README.partial"
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, out / "README.md")


def _exits(folder: Path) -> str:
    """Return which early exits there are, and how often each already says what the target says."""
    described = read_description(folder)
    pairs = zip(described.layers, described.agreement, strict=True)
    said = ", ".join(f"{share:.1%} after layer {layer}" for layer, share in pairs)
    text = f"Adapters of rank {described.rank}; agreement with the target: {said}."
    if described.calibration_errors:
        errors = ", ".join(
            f"{before:.3f} and {after:.3f}" for before, after in described.calibration_errors
        )
        text += (
            f" Calibration error of their confidence, without and with its temperature: {errors}."
        )
    return text


def published_bytes(out: Path) -> int:
    """Return the bytes of both model folders and the exits together."""
    folders = (out / TARGET_FOLDER, out / DRAFT_FOLDER, out / EXITS_FOLDER)
    return sum(file.stat().st_size for folder in folders for file in folder.iterdir())


def _comparison(figures: list[SourceFigures]) -> str:
    """Return whether the larger model is worth its size, source by source, in plain words."""
    words = [
        f"{figure.plain.cross_entropy - figure.target_cross_entropy:+.3f} on {figure.source}"
        for figure in figures
    ]
    return (
        "Advantage of the target over the plain draft, in nats (negative: the plain draft is "
        f"better):\n{', '.join(words)}. The trainings below say what time each had."
    )


_SOURCE_WORDS = {PEPS: "PEPs (prose)", GSM8K: "GSM8K (chat form)"}


def _figure_row(figure: SourceFigures) -> str:
    plain = figure.plain
    distilled = figure.distilled
    return (
        f"| {_SOURCE_WORDS[figure.source]} | {figure.tokens:,} | {figure.target_cross_entropy:.3f} "
        f"| {plain.cross_entropy:.3f} | {distilled.cross_entropy:.3f} "
        f"| {plain.acceptance:.3f} | **{distilled.acceptance:.3f}** "
        f"| {plain.greedy_agreement:.3f} | {distilled.greedy_agreement:.3f} |"
    )


def _training_row(training: Training) -> str:
    return (
        f"| {training.name} | {training.method} | {training.compute_s / 60:.1f} min "
        f"| {training.steps:,} | {training.tokens / 1e6:.1f} M |"
    )


_TEXT = """\
# The demo pair

Two small Llama-architecture models that share one tokenizer, so that every preset, test and
benchmark of this repository runs without downloading anything. They are for exercising the
machinery. They are not useful language models.

| | parameters | layers | hidden | heads (kv) | context |
|---|---|---|---|---|---|
| `demo-target` | {target_parameters} | 6 | 320 | 5 (1) | 1024 |
| `demo-draft` | {draft_parameters} | 2 | 128 | 2 (1) | 1024 |

Weights are bf16 safetensors; the folders, exits included, take {size}. Tied embeddings,
RoPE, head size 64. The tokenizer is a byte-level BPE of 4,096 tokens (single-digit numbers,
`<|bos|>`, `<|eos|>`, `<|pad|>` and the marks `<|user|>`, `<|assistant|>`, `<|system|>`,
`<|document|>`, `<|end|>`), with a chat template. An answer ends in `<|end|>` and every text in
`<|eos|>`; either one stops generation.

## Held-out figures

Measured on the published bf16 weights, computed in fp32, rows of 512 tokens. Cross-entropy in nats
per token. *Acceptance* is the mean over positions of Σ min(target_probs, draft_probs) at
temperature 1, which is the acceptance rate of the rejection rule when the context is that text;
*agreement* is how often the most likely tokens are equal. The plain draft has the same
architecture as the draft and is not shipped.

| text | tokens | CE: target | plain | draft | acceptance: plain | draft | agree: plain | draft |
|---|---|---|---|---|---|---|---|---|
{figures}

{comparison}

A distilled draft imitates the target, not the text, so its own cross-entropy may be worse than
that of the plain draft while its acceptance is better. How the published weights came about, with
the attempts that were given up, is in `HISTORY.md`.

## Early exits

`demo-exits` holds adapters that let the target say early, after some layers (counted from 0), what
it is about to say (preset `fsd`). They belong to these very weights of the target and are refused
by any other. {exits}
Agreement is how often the likeliest tokens are equal, measured on text that the training did not
see. To train them again, in minutes, after the target has
changed: `python models/train_demo.py --stage exits`, or delete the folder first if it has not.

## Training

| model | method | computing time, one CPU core | steps | tokens |
|---|---|---|---|---|
{trainings}

Muon for the weight matrices, AdamW for embeddings and norms, bf16 autocast over fp32 weights,
4,096 tokens a step in rows of 256, 512 or 1,024. Budgets are counted in computing time of the
process, so that the target and the plain draft get the same whatever the load of the machine.

Target and draft both start from one snapshot, taken about 40% into the training of the plain
draft, and the table counts its time and tokens in for each. The target is *grown* from it: the
small model is placed inside a larger one that computes the same function, whose new heads, neurons
and layers then learn (`training/growth.py`). One core shows a model of that size only a few million
tokens: when this was tried, a target from scratch stood at 4.38 (PEPs) and 2.79 (GSM8K) nats after
16 minutes, the plain draft at 3.84 and 2.27 after 19. The draft is distilled from the frozen
target: KL(target ‖ draft) first, blending into total variation between 40% and 70% of its budget.

Command (seed {seed}; `make demo-models` runs it with the defaults):

```bash
{command}
```

Runs with the same seed see the same batches in the same order, but the learning rate follows
computing time, so weights are not bitwise reproducible. Stages resume from `models/.cache/`. The
texts are expected in `models/data/` (`--data` names another folder): `peps.jsonl` with
`id, title, text` and `gsm8k-train.jsonl` with `question, answer`, both JSON lines.

## Texts

* Python Enhancement Proposals, placed in the public domain or under CC0 by their authors.
* GSM8K training split, MIT, © 2021 OpenAI, without the calculator notes `<<…>>`.

About 3% of the documents are held out and never seen by the tokenizer or any training:
those with sha256("tandem-heldout-v1:" + id) as a fraction of its range below 0.03
(`training/corpus.py`; the id of a problem is `gsm8k-train-` and its line number).
`heldout.jsonl` is an excerpt of them for tests and benchmarks (`id, source, prompt, text`).
`peps-excerpt.jsonl.gz` has the PEPs that benchmarks search: held-out ones whole, of the others the
beginning (`excerpt_peps.py` makes it from a file of all PEPs).
Notices are in `NOTICE`.

## Limits

* English prose about Python and primary-school word problems only. The target has seen
  tens of millions of tokens, most of them several times; it writes mostly grammatical phrases,
  often repeats itself, its facts and sums are wrong, and it does not follow instructions. Do not
  read quality of answers from this pair.
* Contexts beyond 1,024 tokens were never trained; long contexts near it only in a small share.
* A pair this small and this closely distilled accepts more than a real pair does: acceptance rates
  here say nothing about other models.

A sample of the target at temperature 0.7, unselected:

{samples}
"""
