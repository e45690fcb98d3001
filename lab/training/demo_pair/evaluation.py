"""Held-out figures: cross-entropy of each model and the acceptance rate of the drafts.

Acceptance is the mean over positions of sum min(target_probs, draft_probs) at temperature 1: the
expected acceptance rate of the rejection rule when the context is held-out text.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from tokenizers import Tokenizer

from lab.training.demo_pair.batches import encode_stream
from lab.training.demo_pair.corpus import GSM8K, PEPS, Document, render_chat, render_prose

ROW_LENGTH = 512
MAX_ROWS = 96


@dataclass(frozen=True, slots=True)
class DraftFigures:
    """Against the target: overlap of distributions, and how often both most likely tokens are
    equal."""

    cross_entropy: float
    acceptance: float
    greedy_agreement: float


def held_out_rows(
    documents: list[Document], tokenizer: Tokenizer
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return, for each source, inputs and labels, int64 [rows <= 96, 512]. Problems are in the chat
    form."""
    texts = {
        PEPS: [render_prose(document) for document in documents if document.source == PEPS],
        GSM8K: [
            render_chat(document.question, document.text)
            for document in documents
            if document.source == GSM8K
        ],
    }
    return {source: _rows(encode_stream(tokenizer, part)) for source, part in texts.items()}


def cross_entropy(model: torch.nn.Module, rows: tuple[torch.Tensor, torch.Tensor]) -> float:
    """Return the mean nats per token in fp32."""
    total = 0.0
    with torch.inference_mode():
        for inputs, labels in _chunks(rows):
            logits = model(input_ids=inputs, use_cache=False).logits
            total += F.cross_entropy(
                logits.flatten(0, 1).float(), labels.flatten(), reduction="sum"
            ).item()
    return total / rows[1].numel()


def compare(
    target: torch.nn.Module, draft: torch.nn.Module, rows: tuple[torch.Tensor, torch.Tensor]
) -> DraftFigures:
    overlap = agreement = entropy = 0.0
    with torch.inference_mode():
        for inputs, labels in _chunks(rows):
            target_logits = target(input_ids=inputs, use_cache=False).logits.float()
            draft_logits = draft(input_ids=inputs, use_cache=False).logits.float()
            probs = target_logits.softmax(-1), draft_logits.softmax(-1)
            overlap += torch.minimum(*probs).sum().item()
            agreement += (target_logits.argmax(-1) == draft_logits.argmax(-1)).sum().item()
            entropy += F.cross_entropy(
                draft_logits.flatten(0, 1), labels.flatten(), reduction="sum"
            ).item()
    count = rows[1].numel()
    return DraftFigures(entropy / count, overlap / count, agreement / count)


def _rows(stream: object) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.as_tensor(stream, dtype=torch.int64)
    length = min(ROW_LENGTH, len(tokens) - 1)
    count = (len(tokens) - 1) // length
    inputs = tokens[: count * length].reshape(count, length)
    labels = tokens[1 : count * length + 1].reshape(count, length)
    chosen = torch.linspace(0, count - 1, min(count, MAX_ROWS)).long()
    return inputs[chosen], labels[chosen]


def _chunks(
    rows: tuple[torch.Tensor, torch.Tensor],
) -> zip[tuple[torch.Tensor, torch.Tensor]]:
    return zip(torch.split(rows[0], 4), torch.split(rows[1], 4), strict=True)
