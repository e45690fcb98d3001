"""Low-rank adapters of a Llama-family draft (LoRA: Hu et al. 2021), over the products that its
forward pass fuses: of each layer queries, keys and values, their output, both halves of the gate,
the way down, and the head.

A session that uses an adapter multiplies by products of its own (`KvSession.products`): the
model's, with the adapter's added to the result (`LowRankLinear`), or a copy of the model's weights
with the adapter in them. Invariants: an adapter whose `up` matrices are zero changes nothing; a
row's product does not depend on the rows beside it, as `linear` promises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandem.backends.interface import Engine, ForwardCancelled, Session, never
from tandem.backends.torch.engine import HuggingFaceEngine
from tandem.backends.torch.kv_cache import KvSession
from tandem.backends.torch.linear import Linear, make_linear, merged_linear
from tandem.backends.torch.llama_forward import LlamaForward
from tandem.backends.torch.products import LayerProducts, ModelProducts
from tandem.backends.wrapped_engine import WrappedSession
from tandem.core.errors import InvalidArgument
from tandem.learning.adaptation import Weights
from tandem.learning.evaluation import Score
from tandem.learning.examples import Example
from tandem.learning.torch.loss import loss_of, score_of
from tandem.learning.torch.training import STATE, VECTORS, AdamW, LowRankTrainer

RANK = 8
MIN_TOKENS = 64
"""Of a text: a model that sees less at once learns nothing."""
MAX_MERGED_BYTES = 256 * 2**20
"""Of a copy of the model's products with an adapter in them. In the steps of a larger model an
adapter beside the weights is hardly felt."""
SEED = 1


class LowRankLinear:
    """Implements `linear.Linear`: the product `base`, and rows [rows, in] · down · up [rank, out]
    added to it."""

    def __init__(self, base: Linear, down: Linear, up: Linear) -> None:
        self._base = base
        self._down = down
        self._up = up

    def __call__(self, rows: Tensor, few: bool) -> Tensor:
        return self._up.add_to(self._base(rows, few), self._down(rows, few), few)

    def add_to(self, residual: Tensor, rows: Tensor, few: bool) -> Tensor:
        return self._up.add_to(self._base.add_to(residual, rows, few), self._down(rows, few), few)


class Matrix:
    """Implements `linear.Linear`: the product with `matrix` [in, out], through which gradients
    go."""

    def __init__(self, matrix: Tensor) -> None:
        self._matrix = matrix

    def __call__(self, rows: Tensor, few: bool) -> Tensor:
        return rows @ self._matrix

    def add_to(self, residual: Tensor, rows: Tensor, few: bool) -> Tensor:
        return torch.addmm(residual, rows, self._matrix)


@dataclass(slots=True, eq=False)
class PlacedAdapter:
    """An adapter laid out for passes. `merged`: in the weights of a copy of the model's products,
    where there is one."""

    weights: Tensor
    products: ModelProducts
    merged: ModelProducts | None = None


def low_rank_adaptation(engine: Engine) -> LowRankAdaptation | None:
    """Return the adapters of a torch engine's model; None where its passes take no gradients, or
    see too little at once."""
    if not isinstance(engine, HuggingFaceEngine) or engine.trainable is None:
        return None
    max_tokens = min(engine.context_length, engine.trainable.window or engine.context_length)
    return LowRankAdaptation(engine.trainable, max_tokens) if max_tokens >= MIN_TOKENS else None


class LowRankAdaptation:
    """Implements `Adaptation` for the forward pass of a draft, in float32, bfloat16 or float16."""

    def __init__(self, forward: LlamaForward, max_tokens: int) -> None:
        self._forward = forward
        self._like = forward.like
        self.max_tokens = max_tokens
        shapes = forward.product_shapes
        self._sizes = [RANK * side for shape in shapes for side in shape]
        self.size = sum(self._sizes)
        sides = ",".join(f"{shape.inputs}x{shape.outputs}" for shape in shapes)
        self.layout = f"low-rank 1, rank {RANK}: {sides}"
        self._merged: PlacedAdapter | None = None
        """The one that has a copy of the model's products."""

    def place(self, weights: Weights) -> PlacedAdapter:
        def placed(matrix: Tensor) -> Linear:
            return make_linear(matrix.t(), None, single_rows=True)

        on_device = self._checked(weights).to(self._like)
        with torch.inference_mode(False), torch.no_grad():
            return PlacedAdapter(on_device, self._beside(on_device, placed))

    def merge(self, adapter: object) -> None:
        assert isinstance(adapter, PlacedAdapter), "of `place`"
        size = sum(shape.inputs * shape.outputs for shape in self._forward.product_shapes)
        if adapter.merged is not None or size * self._like.element_size() > MAX_MERGED_BYTES:
            return
        before, self._merged = self._merged, adapter
        if before is not None:
            before.merged = None  # sessions that run with it keep it to their end
        with torch.inference_mode(False), torch.no_grad():
            merged = []
            for product, (down, up) in zip(self._model, self._pairs(adapter.weights), strict=True):
                if (one := merged_linear(product, down, up)) is None:
                    return
                merged.append(one)
        adapter.merged = _by_layers(merged)

    def use(self, session: Session, adapter: object) -> None:
        while isinstance(session, WrappedSession):
            session = session.inner
        if session.length:
            raise InvalidArgument("session", "an adapter is chosen before the first token")
        if not isinstance(session, KvSession) or not isinstance(adapter, PlacedAdapter):
            raise InvalidArgument("session", "belongs to another engine than the adapter")
        session.products = adapter.merged or adapter.products

    def trainer(self, weights: Weights | None, state: Mapping[str, NDArray[Any]]) -> LowRankTrainer:
        if state:
            if set(state) != set(STATE) or state[STATE[-1]].shape != (2,):
                raise InvalidArgument("adapter", "is not a state of training")
            updates, tokens = map(int, state[STATE[-1]])
            vectors = {name: self._checked(state[name]) for name in VECTORS}
            return LowRankTrainer(self._loss, AdamW(vectors, updates), tokens)
        start = self._fresh() if weights is None else self._checked(weights)
        vectors = {name: torch.zeros_like(start) for name in VECTORS}
        vectors |= {"weights": start, "mean": start.clone()}
        return LowRankTrainer(self._loss, AdamW(vectors))

    def score(
        self, adapter: object | None, text: Example, cancelled: Callable[[], bool] = never
    ) -> Score:
        assert adapter is None or isinstance(adapter, PlacedAdapter), "of `place`"
        with torch.inference_mode():
            logits = self.logits(text, None if adapter is None else adapter.products, cancelled)
            return score_of(logits, text, self._forward.head_tokens)

    def logits(
        self, text: Example, products: ModelProducts | None, cancelled: Callable[[], bool]
    ) -> Tensor:
        """Return float32 logits [target's tokens, head tokens], one row for each of the target's
        tokens. `products`: in the place of the model's own."""
        if len(text) > self.max_tokens:
            raise InvalidArgument("text", f"{len(text)} tokens; at most {self.max_tokens}")

        def check() -> None:
            if cancelled():
                raise ForwardCancelled("cancelled between two layers")

        ids = torch.from_numpy(text.token_ids[:-1].astype(np.int64)).to(self._like.device)
        return self._forward.whole_text(ids, text.first - 1, products, check).float()

    def _loss(self, text: Example, weights: Tensor, cancelled: Callable[[], bool]) -> Tensor:
        products = self._beside(weights.to(self._like), Matrix)
        logits = self.logits(text, products, cancelled)
        return loss_of(logits, text, self._forward.head_tokens)

    @property
    def _model(self) -> list[Linear]:
        """The model's own products, in the order of an adapter's weights."""
        products = self._forward.products
        return [*(one for layer in products.layers for one in layer), products.head]

    def _pairs(self, weights: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the matrices down [in, rank] and up [rank, out] of each product: views of `weights`
        [n]."""
        parts = iter(weights.split(self._sizes))  # one split, whose gradient is one concatenation
        for shape in self._forward.product_shapes:
            yield next(parts).view(shape.inputs, RANK), next(parts).view(RANK, shape.outputs)

    def _beside(self, weights: Tensor, make: Callable[[Tensor], Linear]) -> ModelProducts:
        """Return the model's products with those of `weights` [n] added, laid out by `make`."""
        pairs = zip(self._model, self._pairs(weights), strict=True)
        return _by_layers([LowRankLinear(one, make(down), make(up)) for one, (down, up) in pairs])

    def _fresh(self) -> Tensor:
        """Return the weights [n] of an adapter that changes nothing yet: each `up` is zero."""
        generator = torch.Generator().manual_seed(SEED)
        weights = torch.zeros(self.size)
        for down, _ in self._pairs(weights):
            scale = down.shape[0] ** -0.5
            down.copy_(torch.randn(down.numel(), generator=generator).view_as(down) * scale)
        return weights

    def _checked(self, weights: NDArray[Any]) -> Tensor:
        if weights.shape != (self.size,) or not np.isfinite(weights).all():
            why = f"{weights.shape} numbers, or not finite ones; the model needs {self.size}"
            raise InvalidArgument("adapter", why)
        return torch.from_numpy(np.array(weights, dtype=np.float32))


def _by_layers(products: Sequence[Linear]) -> ModelProducts:
    size = len(LayerProducts._fields)
    firsts = range(0, len(products) - 1, size)
    layers = tuple(LayerProducts(*products[first : first + size]) for first in firsts)
    return ModelProducts(layers, products[-1])
