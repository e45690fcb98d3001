"""Training a draft's low-rank adapter on what the target said, over the weights that the engine
drafts with: there is no second copy of them.

With Gumbel coupling the target's token is the one that the noise takes of its distribution, and the
draft's that which the same noise takes of the draft's: so the noise is added before the loss, the
cross entropy with the target's token. It is small where the draft would be accepted, as at
temperature 0; sampled tokens without their noise would be far noisier labels.

Where the target told its distribution at every token, the loss is -log of its overlap with the
draft's, which is the acceptance of rejection sampling and bounds that of Gumbel coupling. Unlike
the overlap itself it has a slope where the draft says something else altogether.

Otherwise it is the cross entropy of the draft's distribution with the target's tokens. Where a
rejection told of the target's distribution, the token was drawn from what is left of it after the
draft's, so all of that takes the place of the one token: the expectation is the same, and the noise
less. (The target's distribution in its place would favour what the draft says already, since
accepted tokens are learned from as well.) Texts of temperature 0 say only
which token is the likeliest; they are learned at `GREEDY_TEMPERATURE`, so that a draft that is sure
already is not made ever surer. The optimizer is AdamW over one vector, written out: torch's own
imports its compiler, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandem.backends.adaptation import JudgedText, Overlap, Weights, innermost
from tandem.backends.interface import ForwardCancelled, Session, never
from tandem.backends.torch.kv_cache import KvSession
from tandem.backends.torch.llama_forward import LlamaForward
from tandem.backends.torch.low_rank import (
    RANK,
    DraftAdapter,
    PlacedAdapter,
    fresh_weights,
    merged_model,
    placed_adapter,
    trained_adapter,
    weight_count,
)
from tandem.core.errors import InvalidArgument
from tandem.core.gumbel import gumbel

LEARNING_RATE = 1e-3
WARM_UP_UPDATES = 10
BATCH_TOKENS = 256
"""Of the target's tokens in each update: a step has fewer, so that it ends soon."""
WEIGHT_DECAY = 0.01
MOST_NORM = 1.0
"""Of an update's gradient."""
FIRST_BETA = 0.9
SECOND_BETA = 0.99
EPSILON = 1e-8
MEAN_BETA = 0.9
"""Of the mean over the last updates, which is what is used: a single one sees few tokens."""
GREEDY_TEMPERATURE = 0.5
NOISY_TEMPERATURE = 0.5
CANDIDATES = 256
"""Tokens of a draft that noise chooses among: others are hardly ever taken."""
LEAST_TOKENS = 64
"""Of a text: a model that sees less at once learns nothing."""
LEAST_TEMPERATURE = 0.3
MOST_TEMPERATURE = 2.0
MOST_MERGED_BYTES = 256 * 2**20
"""Of a copy of the model's products with an adapter in them. In the steps of a larger model an
adapter beside the weights is hardly felt."""
LEAST_OVERLAP = 1e-4
SEED = 1
_VECTORS = ("weights", "mean", "first_moment", "second_moment", "gradient")
_NUMBERS = "numbers"


class _Kind(Enum):
    """What stands for a token whose target distribution is known: the token alone, the
    distribution, or what is left of it after the draft's."""

    TOKENS = auto()
    PROBS = auto()
    REST = auto()


class LlamaAdaptation:
    """Implements `Adaptation` for the lean forward of a draft, in float32, bfloat16 or float16."""

    def __init__(self, forward: LlamaForward, like: Tensor, most_tokens: int) -> None:
        """Prepare to train adapters for `forward`. `like` has the dtype and the device of
        activations; a text has at most `most_tokens` tokens."""
        self._forward = forward
        self._like = like
        self.most_tokens = most_tokens
        self._shapes = forward.product_shapes
        self.size = weight_count(self._shapes)
        sides = ",".join(f"{shape.inputs}x{shape.outputs}" for shape in self._shapes)
        self.layout = f"low-rank 1, rank {RANK}: {sides}"
        self._merged: PlacedAdapter | None = None
        """The one that has a copy of the model's products."""
        self._places: Tensor | None = None
        """[vocabulary] -> index among the head's tokens, -1 for those that it lacks."""
        if (tokens := forward.head_tokens) is not None:
            size = int(tokens.max()) + 1
            self._places = torch.full((size,), -1, dtype=torch.long)
            self._places[tokens] = torch.arange(len(tokens))

    def place(self, weights: Weights) -> PlacedAdapter:
        return placed_adapter(self._checked(weights).to(self._like), self._shapes)

    def merge(self, adapter: object) -> None:
        assert isinstance(adapter, PlacedAdapter), "of `place`"
        size = sum(shape.inputs * shape.outputs for shape in self._shapes)
        if adapter.merged is not None or size * self._like.element_size() > MOST_MERGED_BYTES:
            return
        before, self._merged = self._merged, adapter
        if before is not None:
            before.merged = None  # sessions that run with it keep it to their end
        adapter.merged = merged_model(self._forward.products, adapter.weights, self._shapes)

    def use(self, session: Session, adapter: object) -> None:
        inner = innermost(session)
        if not isinstance(inner, KvSession) or not isinstance(adapter, PlacedAdapter):
            raise InvalidArgument("session", "belongs to another engine than the adapter")
        inner.adapter = adapter.merged or adapter.low_rank

    def trainer(self, weights: Weights | None, state: Mapping[str, NDArray[Any]]) -> LowRankTrainer:
        if state:
            if set(state) != {*_VECTORS, _NUMBERS} or state[_NUMBERS].shape != (2,):
                raise InvalidArgument("adapter", "is not a state of training")
            updates, tokens = map(int, state[_NUMBERS])
            vectors = {name: self._checked(state[name]) for name in _VECTORS}
            return LowRankTrainer(self, vectors, updates=updates, tokens=tokens)
        start = fresh_weights(self._shapes, SEED) if weights is None else self._checked(weights)
        vectors = {name: torch.zeros_like(start) for name in _VECTORS}
        vectors |= {"weights": start, "mean": start.clone()}
        return LowRankTrainer(self, vectors)

    def overlap(
        self, adapter: object | None, text: JudgedText, cancelled: Callable[[], bool] = never
    ) -> Overlap:
        assert adapter is None or isinstance(adapter, PlacedAdapter), "of `place`"
        with torch.inference_mode():
            low_rank = None if adapter is None else adapter.low_rank
            logits = self.logits(text, low_rank, cancelled)
            if text.temperature == 0:
                labels = self._labels(text, _Kind.TOKENS)
                drafted = logits.argmax(-1)[labels.rows]
                return Overlap(float((drafted == labels.places).sum()), text.judged)
            if text.seed is not None and not text.has_all_probs:
                scores = self._noisy(logits, text, text.seed)
                return Overlap(float((scores.argmax(-1) == 0).sum()), text.judged)
            probs = torch.softmax(logits / text.temperature, -1)
            labels = self._labels(text, _Kind.PROBS)
            drafted = probs[labels.rows, labels.places]
            if not text.known_probs:
                return Overlap(float(drafted.sum()), text.judged)
            known = torch.minimum(drafted, labels.weights)[~labels.drawn]
            return Overlap(float(known.sum()), len(text.known_probs))

    def logits(
        self, text: JudgedText, adapter: DraftAdapter | None, cancelled: Callable[[], bool]
    ) -> Tensor:
        """Return float32 logits [judged tokens, head tokens], one row for each of the target's
        tokens."""
        if len(text) > self.most_tokens:
            raise InvalidArgument("text", f"{len(text)} tokens; at most {self.most_tokens}")

        def check() -> None:
            if cancelled():
                raise ForwardCancelled("cancelled between two layers")

        ids = torch.from_numpy(text.token_ids[:-1].astype(np.int64)).to(self._like.device)
        return self._forward.whole_text(ids, text.first - 1, adapter, check).float()

    def loss(
        self, text: JudgedText, adapter: DraftAdapter, cancelled: Callable[[], bool]
    ) -> Tensor:
        """Return the loss over all judged tokens; 0 where the head has none of them."""
        logits = self.logits(text, adapter, cancelled)
        if text.temperature and text.has_all_probs:
            return self._surprise(logits, text)
        if text.temperature and text.seed is not None:
            scores = self._noisy(logits, text, text.seed) / NOISY_TEMPERATURE
            return -torch.log_softmax(scores, -1)[:, 0].sum()
        # At temperature 0 a distribution says no more than the token.
        labels = self._labels(text, _Kind.REST if text.temperature else _Kind.TOKENS)
        logits = logits / learned_temperature(text.temperature)
        logs = torch.log_softmax(logits, -1)[labels.rows, labels.places]
        return -(logs * labels.weights).sum()

    def _surprise(self, logits: Tensor, text: JudgedText) -> Tensor:
        """Return -log of the overlap with each known target distribution, over all tokens."""
        labels = self._labels(text, _Kind.PROBS)
        probs = torch.softmax(logits / text.temperature, -1)[labels.rows, labels.places]
        shared = torch.minimum(probs, labels.weights)
        overlaps = shared.new_zeros(text.judged).index_add(0, labels.rows, shared)
        return -torch.log(overlaps[labels.rows.unique()].clamp_min(LEAST_OVERLAP)).sum()

    def _noisy(self, logits: Tensor, text: JudgedText, seed: int) -> Tensor:
        """Return what Gumbel coupling chooses by, logits / temperature + noise [tokens, candidates
        + 1]: first of the target's token, then of the likeliest others. Without tokens that the
        head lacks: their drafts are never accepted."""
        labels = self._labels(text, _Kind.TOKENS)
        rows = labels.rows
        mine = labels.places[:, None]
        logits = logits[rows] / text.temperature
        likeliest = logits.detach().topk(min(CANDIDATES, logits.shape[1]), -1).indices
        places = torch.cat([mine, likeliest], -1)
        tokens = self._forward.head_tokens
        ids = (places if tokens is None else tokens.to(places.device)[places]).cpu().numpy()
        first = text.position + text.first
        noise = [
            gumbel(seed, first + row, some) for row, some in zip(rows.tolist(), ids, strict=True)
        ]
        scores = logits.gather(-1, places) + torch.from_numpy(np.array(noise)).to(logits)
        again = torch.cat([torch.zeros_like(mine, dtype=torch.bool), likeliest == mine], -1)
        return scores.masked_fill(again, float("-inf"))

    def _labels(self, text: JudgedText, kind: _Kind) -> Labels:
        """Return the tokens to be drafted after each row."""
        rows: list[int] = []
        ids: list[int] = []
        weights: list[float] = []
        drawn: list[bool] = []
        for row, index in enumerate(range(text.first, len(text))):
            known = None if kind is _Kind.TOKENS else text.known_probs.get(index)
            token_id = int(text.token_ids[index])
            if known is not None and kind is _Kind.REST and token_id not in known.ids:
                known = None  # it was drawn from the rest that is not known
            if known is None:
                rows.append(row)
                ids.append(token_id)
                weights.append(1.0)
                drawn.append(True)
            else:
                rows += [row] * len(known.ids)
                ids += known.ids.tolist()
                weights += (known.probs if kind is _Kind.PROBS else known.rest).tolist()
                drawn += [False] * len(known.ids)
        labels = Labels(
            torch.tensor(rows, dtype=torch.long),
            self._placed(torch.tensor(ids, dtype=torch.long)),
            torch.tensor(weights),
            torch.tensor(drawn, dtype=torch.bool),
        )
        inside = labels.places >= 0
        device = self._like.device
        return Labels(*(column[inside].to(device) for column in labels))

    def _placed(self, ids: Tensor) -> Tensor:
        """Return the place of each token among the head's tokens; -1 for a token that the head
        lacks."""
        if self._places is None:
            return ids
        known = ids < len(self._places)
        return torch.where(known, self._places[ids.clamp(max=len(self._places) - 1)], -1)

    def _checked(self, weights: NDArray[Any]) -> Tensor:
        if weights.shape != (self.size,) or not np.isfinite(weights).all():
            why = f"{weights.shape} numbers, or not finite ones; the model needs {self.size}"
            raise InvalidArgument("adapter", why)
        return torch.from_numpy(np.array(weights, dtype=np.float32))

    def trained(self, weights: Tensor) -> DraftAdapter:
        """Return an adapter that gradients go through to `weights`."""
        return trained_adapter(weights.to(self._like), self._shapes)


class Labels(NamedTuple):
    """Tokens that are to be drafted: the row of logits, the place in the head, the weight in the
    loss, and whether it is the token that the target drew, not one of a known distribution."""

    rows: Tensor
    places: Tensor
    weights: Tensor
    drawn: Tensor


def learned_temperature(temperature: float) -> float:
    """Return what logits are divided by before the loss, for texts of this temperature."""
    if temperature == 0:
        return GREEDY_TEMPERATURE
    return min(max(temperature, LEAST_TEMPERATURE), MOST_TEMPERATURE)


class LowRankTrainer:
    """Implements `AdapterTrainer`; `vectors` are float32 [size], `updates` those made so far, and
    `tokens` how many the gradient has that waits for the next."""

    def __init__(
        self,
        adaptation: LlamaAdaptation,
        vectors: Mapping[str, Tensor],
        *,
        updates: int = 0,
        tokens: int = 0,
    ) -> None:
        self._adaptation = adaptation
        self._weights = vectors["weights"].requires_grad_()
        self._mean = vectors["mean"]
        self._first_moment = vectors["first_moment"]
        self._second_moment = vectors["second_moment"]
        self._gradient = vectors["gradient"]
        self._updates = updates
        self._tokens = tokens

    def step(self, text: JudgedText, cancelled: Callable[[], bool] = never) -> float:
        with torch.inference_mode(False), torch.enable_grad():
            adapter = self._adaptation.trained(self._weights)
            loss = self._adaptation.loss(text, adapter, cancelled)
            (gradient,) = torch.autograd.grad(loss, self._weights)
        if not bool(torch.isfinite(gradient).all()):
            return float(loss.detach())
        with torch.no_grad():
            self._gradient += gradient
            self._tokens += text.judged
            if self._tokens >= BATCH_TOKENS:
                self._apply(self._gradient / self._tokens)
                self._gradient.zero_()
                self._tokens = 0
        return float(loss.detach()) / max(1, text.judged)

    def _apply(self, gradient: Tensor) -> None:
        gradient *= min(1.0, MOST_NORM / (float(gradient.norm()) + EPSILON))
        self._updates += 1
        self._first_moment.lerp_(gradient, 1 - FIRST_BETA)
        self._second_moment.mul_(SECOND_BETA).addcmul_(gradient, gradient, value=1 - SECOND_BETA)
        rate = LEARNING_RATE * min(1.0, self._updates / WARM_UP_UPDATES)
        scale = (self._second_moment / (1 - SECOND_BETA**self._updates)).sqrt_().add_(EPSILON)
        self._weights.mul_(1 - rate * WEIGHT_DECAY)
        self._weights.addcdiv_(
            self._first_moment, scale, value=-rate / (1 - FIRST_BETA**self._updates)
        )
        self._mean.lerp_(self._weights, 1 - MEAN_BETA)

    def weights(self) -> Weights:
        return self._mean.numpy().copy()

    def state(self) -> dict[str, NDArray[Any]]:
        vectors = (
            *(self._weights.detach(), self._mean, self._first_moment, self._second_moment),
            self._gradient,
        )
        named = zip(_VECTORS, vectors, strict=True)
        state: dict[str, NDArray[Any]] = {name: vector.numpy().copy() for name, vector in named}
        return state | {_NUMBERS: np.array([self._updates, self._tokens], dtype=np.int64)}
