"""What is minimised in training, and the acceptance that it stands for.

With Gumbel coupling the target's token is the one that the noise takes of its distribution, and the
draft's that which the same noise takes of the draft's: so the noise is added before the loss, the
cross entropy with the target's token. It is small where the draft would be accepted, as at
temperature 0; sampled tokens without their noise would be far noisier labels.

Where the target told its distribution at every token, the loss is -log of its overlap with the
draft's, which is the acceptance of rejection sampling and bounds that of Gumbel coupling. Unlike
the overlap itself it has a slope where the draft says something else altogether.

Otherwise it is the cross entropy of the draft's distribution with the target's tokens. Where a
rejection told of the target's distribution, the token was drawn from the residual distribution, so
all of that takes the place of the one token: the expectation is the same, and the noise less. (The
target's distribution in its place would favour what the draft says already, since accepted tokens
are learned from as well.) Texts of temperature 0 say only which token is the likeliest; they are
learned at `GREEDY_TEMPERATURE`, so that a draft that is sure already is not made ever surer.

`head_tokens` [n] are the tokens of the columns of logits, ascending; None: all in order.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tandem.core.gumbel import gumbel
from tandem.learning.evaluation import Score
from tandem.learning.examples import Example

GREEDY_TEMPERATURE = 0.5
NOISY_TEMPERATURE = 0.5
MIN_TEMPERATURE = 0.3
MAX_TEMPERATURE = 2.0
CANDIDATES = 256
"""Tokens of a draft that noise chooses among: others are hardly ever taken."""
MIN_OVERLAP = 1e-4


class _Kind(Enum):
    """What stands for a token whose target distribution is known: the token alone, the
    distribution, or what is left of it after the draft's."""

    TOKENS = auto()
    PROBS = auto()
    RESIDUAL = auto()


class _Labels(NamedTuple):
    """Tokens that are to be drafted: the row of logits, the column, the weight in the loss, and
    whether it is the token that the target drew, not one of a known distribution."""

    rows: Tensor
    columns: Tensor
    weights: Tensor
    drawn: Tensor


def loss_of(logits: Tensor, text: Example, head_tokens: Tensor | None) -> Tensor:
    """Return the loss over all of the target's tokens, of logits [tokens, columns]; 0 where the
    head has none of them."""
    if text.temperature and text.has_all_probs:
        labels = _labels(text, _Kind.PROBS, head_tokens, logits.device)
        probs = torch.softmax(logits / text.temperature, -1)[labels.rows, labels.columns]
        shared = torch.minimum(probs, labels.weights)
        overlaps = shared.new_zeros(text.target_tokens).index_add(0, labels.rows, shared)
        return -torch.log(overlaps[labels.rows.unique()].clamp_min(MIN_OVERLAP)).sum()
    if text.temperature and text.seed is not None:
        scores = _noisy(logits, text, text.seed, head_tokens) / NOISY_TEMPERATURE
        return -torch.log_softmax(scores, -1)[:, 0].sum()
    # At temperature 0 a distribution says no more than the token.
    kind = _Kind.RESIDUAL if text.temperature else _Kind.TOKENS
    labels = _labels(text, kind, head_tokens, logits.device)
    temperature = min(max(text.temperature, MIN_TEMPERATURE), MAX_TEMPERATURE)
    logits = logits / (temperature if text.temperature else GREEDY_TEMPERATURE)
    logs = torch.log_softmax(logits, -1)[labels.rows, labels.columns]
    return -(logs * labels.weights).sum()


def score_of(logits: Tensor, text: Example, head_tokens: Tensor | None) -> Score:
    """Return the expected acceptance, as `Adaptation.score` says, of logits [tokens, columns]."""
    if text.temperature == 0:
        labels = _labels(text, _Kind.TOKENS, head_tokens, logits.device)
        drafted = logits.argmax(-1)[labels.rows]
        return Score(float((drafted == labels.columns).sum()), text.target_tokens)
    if text.seed is not None and not text.has_all_probs:
        scores = _noisy(logits, text, text.seed, head_tokens)
        return Score(float((scores.argmax(-1) == 0).sum()), text.target_tokens)
    labels = _labels(text, _Kind.PROBS, head_tokens, logits.device)
    drafted = torch.softmax(logits / text.temperature, -1)[labels.rows, labels.columns]
    if not text.target_probs:
        return Score(float(drafted.sum()), text.target_tokens)
    known = torch.minimum(drafted, labels.weights)[~labels.drawn]
    return Score(float(known.sum()), len(text.target_probs))


def _noisy(logits: Tensor, text: Example, seed: int, head_tokens: Tensor | None) -> Tensor:
    """Return what Gumbel coupling chooses by, logits / temperature + noise [tokens, candidates +
    1]: first of the target's token, then of the likeliest others. Without tokens that the head
    lacks: their drafts are never accepted."""
    rows, mine, *_ = _labels(text, _Kind.TOKENS, head_tokens, logits.device)
    logits = logits[rows] / text.temperature
    likeliest = logits.detach().topk(min(CANDIDATES, logits.shape[1]), -1).indices
    columns = torch.cat([mine[:, None], likeliest], -1)
    tokens = columns if head_tokens is None else head_tokens.to(columns.device)[columns]
    first = text.position + text.first
    each = zip(rows.tolist(), tokens.cpu().numpy(), strict=True)
    noise = np.array([gumbel(seed, first + row, ids) for row, ids in each])
    scores = logits.gather(-1, columns) + torch.from_numpy(noise).to(logits)
    again = likeliest == mine[:, None]
    again = torch.cat([torch.zeros_like(again[:, :1]), again], -1)
    return scores.masked_fill(again, float("-inf"))


def _labels(
    text: Example, kind: _Kind, head_tokens: Tensor | None, device: torch.device
) -> _Labels:
    """Return the tokens to be drafted after each row, but for those that the head lacks."""
    rows: list[int] = []
    ids: list[int] = []
    weights: list[float] = []
    drawn: list[bool] = []
    for row, index in enumerate(range(text.first, len(text))):
        known = None if kind is _Kind.TOKENS else text.target_probs.get(index)
        token_id = int(text.token_ids[index])
        if known is not None and kind is _Kind.RESIDUAL and token_id not in known.ids:
            known = None  # it was drawn from the part that is not known
        if known is None:
            rows.append(row)
            ids.append(token_id)
            weights.append(1.0)
            drawn.append(True)
        else:
            rows += [row] * len(known.ids)
            ids += known.ids.tolist()
            weights += (known.probs if kind is _Kind.PROBS else known.residual).tolist()
            drawn += [False] * len(known.ids)
    columns = torch.tensor(ids, dtype=torch.long)
    inside = torch.ones_like(columns, dtype=torch.bool)
    if head_tokens is not None:
        wanted, tokens = columns, head_tokens.cpu()
        columns = torch.searchsorted(tokens, wanted).clamp(max=len(tokens) - 1)
        inside = tokens[columns] == wanted
    labels = _Labels(
        torch.tensor(rows, dtype=torch.long),
        columns,
        torch.tensor(weights),
        torch.tensor(drawn, dtype=torch.bool),
    )
    return _Labels(*(column[inside].to(device) for column in labels))
