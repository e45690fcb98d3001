"""Training a draft's low-rank adapter on what the target said, over the weights that the engine
drafts with: there is no second copy of them.

The loss is the cross entropy of the draft's distribution with the target's tokens, or with its
probabilities where they are known; both have the same minimum. Texts of temperature 0 say only
which token is the likeliest; they are learned at `GREEDY_TEMPERATURE`, so that a draft that is sure
already is not made ever surer. The optimizer is AdamW over one vector, written out: torch's own
imports its compiler, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    fresh_weights,
    placed_adapter,
    trained_adapter,
    weight_count,
)
from tandem.core.errors import InvalidArgument

LEARNING_RATE = 2e-3
WARM_UP_STEPS = 10
WEIGHT_DECAY = 0.01
MOST_NORM = 1.0
"""Of a step's gradient."""
FIRST_BETA, SECOND_BETA, EPSILON = 0.9, 0.99, 1e-8
MEAN_BETA = 0.95
"""Of the mean over the last steps, which is what is used: single steps see few tokens."""
GREEDY_TEMPERATURE = 0.5
LEAST_TOKENS = 64
"""Of a text: a model that sees less at once learns nothing."""
LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.3, 2.0
SEED = 1
_STATE = ("weights", "mean", "first_moment", "second_moment")


class LlamaAdaptation:
    """Implements `Adaptation` for the lean forward of a draft, in float32, bfloat16 or float16."""

    def __init__(self, forward: LlamaForward, like: Tensor, most_tokens: int) -> None:
        """`like` has dtype and device of activations; texts have at most `most_tokens`."""
        self._forward = forward
        self._like = like
        self.most_tokens = most_tokens
        self._shapes = forward.product_shapes
        self.size = weight_count(self._shapes)
        sides = ",".join(f"{shape.inputs}x{shape.outputs}" for shape in self._shapes)
        self.layout = f"low-rank 1, rank {RANK}: {sides}"
        self._places: Tensor | None = None
        """[vocabulary] -> index among the head's tokens, -1 for those that it lacks."""
        if (tokens := forward.head_tokens) is not None:
            size = int(tokens.max()) + 1
            self._places = torch.full((size,), -1, dtype=torch.long)
            self._places[tokens] = torch.arange(len(tokens))

    def place(self, weights: Weights) -> DraftAdapter:
        return placed_adapter(self._checked(weights).to(self._like), self._shapes)

    def use(self, session: Session, adapter: object) -> None:
        inner = innermost(session)
        if not isinstance(inner, KvSession) or not isinstance(adapter, DraftAdapter):
            raise InvalidArgument("session", "belongs to another engine than the adapter")
        inner.adapter = adapter

    def trainer(self, weights: Weights | None, state: Mapping[str, NDArray[Any]]) -> LowRankTrainer:
        if state:
            if set(state) != {*_STATE, "steps"}:
                raise InvalidArgument("adapter", "is not a state of training")
            vectors = [self._checked(state[name]) for name in _STATE]
            return LowRankTrainer(self, *vectors, steps=int(state["steps"][0]))
        start = fresh_weights(self._shapes, SEED) if weights is None else self._checked(weights)
        zeros = torch.zeros_like(start)
        return LowRankTrainer(self, start, start.clone(), zeros, zeros.clone(), steps=0)

    def overlap(
        self, adapter: object | None, text: JudgedText, cancelled: Callable[[], bool] = never
    ) -> Overlap:
        assert adapter is None or isinstance(adapter, DraftAdapter), "of `place`"
        with torch.inference_mode():
            logits = self.logits(text, adapter, cancelled)
            if text.temperature == 0:
                labels = self._labels(text, greedy=True)
                drafted = logits.argmax(-1)[labels.rows]
                return Overlap(float((drafted == labels.places).sum()), text.judged)
            probs = torch.softmax(logits / text.temperature, -1)
            labels = self._labels(text)
            drafted = probs[labels.rows, labels.places]
            # Of a single token that was drawn, the expected overlap is the draft's probability.
            known = torch.minimum(drafted, labels.weights)
            accepted = torch.where(labels.drawn, drafted, known)
            return Overlap(float(accepted.sum()), text.judged)

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
        """Return the mean loss of the judged tokens; 0 where the head has none of them."""
        logits = self.logits(text, adapter, cancelled) / learned_temperature(text.temperature)
        labels = self._labels(text, greedy=text.temperature == 0)
        logs = torch.log_softmax(logits, -1)[labels.rows, labels.places]
        return -(logs * labels.weights).sum() / max(1, text.judged)

    def _labels(self, text: JudgedText, greedy: bool = False) -> Labels:
        """Return the tokens to be drafted after each row; at temperature 0 probabilities say no
        more than the token."""
        rows: list[int] = []
        ids: list[int] = []
        weights: list[float] = []
        drawn: list[bool] = []
        for row, index in enumerate(range(text.first, len(text))):
            known = None if greedy else text.known_probs.get(index)
            if known is None:
                rows.append(row)
                ids.append(int(text.token_ids[index]))
                weights.append(1.0)
                drawn.append(True)
            else:
                rows += [row] * len(known.ids)
                ids += known.ids.tolist()
                weights += known.probs.tolist()
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
        """Where the head has each token, -1 where it has not."""
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
    """Implements `AdapterTrainer`; all vectors are float32 [size]."""

    def __init__(
        self,
        adaptation: LlamaAdaptation,
        weights: Tensor,
        mean: Tensor,
        first_moment: Tensor,
        second_moment: Tensor,
        *,
        steps: int,
    ) -> None:
        self._adaptation = adaptation
        self._weights = weights.requires_grad_()
        self._mean = mean
        self._first_moment = first_moment
        self._second_moment = second_moment
        self._steps = steps

    def step(self, texts: Sequence[JudgedText], cancelled: Callable[[], bool] = never) -> float:
        self._weights.grad = None
        total = 0.0
        with torch.inference_mode(False), torch.enable_grad():
            for text in texts:
                adapter = self._adaptation.trained(self._weights)
                loss = self._adaptation.loss(text, adapter, cancelled) / len(texts)
                if cancelled():
                    raise ForwardCancelled("cancelled before the backward pass")
                loss.backward()
                total += float(loss.detach())
        gradient = self._weights.grad
        self._weights.grad = None
        if gradient is None or not bool(torch.isfinite(gradient).all()):
            return total
        with torch.no_grad():
            self._apply(gradient)
        return total

    def _apply(self, gradient: Tensor) -> None:
        gradient *= min(1.0, MOST_NORM / (float(gradient.norm()) + EPSILON))
        self._steps += 1
        self._first_moment.lerp_(gradient, 1 - FIRST_BETA)
        self._second_moment.mul_(SECOND_BETA).addcmul_(gradient, gradient, value=1 - SECOND_BETA)
        rate = LEARNING_RATE * min(1.0, self._steps / WARM_UP_STEPS)
        scale = (self._second_moment / (1 - SECOND_BETA**self._steps)).sqrt_().add_(EPSILON)
        self._weights.mul_(1 - rate * WEIGHT_DECAY)
        self._weights.addcdiv_(
            self._first_moment, scale, value=-rate / (1 - FIRST_BETA**self._steps)
        )
        self._mean.lerp_(self._weights, 1 - MEAN_BETA)

    def weights(self) -> Weights:
        return self._mean.numpy().copy()

    def state(self) -> dict[str, NDArray[Any]]:
        vectors = (self._weights.detach(), self._mean, self._first_moment, self._second_moment)
        named = zip(_STATE, vectors, strict=True)
        state: dict[str, NDArray[Any]] = {name: vector.numpy().copy() for name, vector in named}
        return state | {"steps": np.array([self._steps], dtype=np.int64)}
