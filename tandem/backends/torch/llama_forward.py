"""The Llama family's forward pass with as few operations as possible, over the model's own weights.

At a few million parameters the time of a decoding step is the number of operations, so weights that
multiply the same input are fused and rotary tables are kept; at more it is the reading of weights,
so they are laid out for it (`linear`). The model's own are released layer by layer: the model holds
no second copy, but can no longer run. Nor does the file: what it was read from is a mapping of all
of it, which any view keeps in memory. Equal to the generic path within 1e-5 in float32.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter, functional
from transformers import (
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from tandem.backends.torch.attention import AttentionLayer, attend_packed, attend_whole
from tandem.backends.torch.exit_adapters import EarlyExits
from tandem.backends.torch.kv_cache import LayerShape
from tandem.backends.torch.linear import (
    Linear,
    lays_out_anew,
    make_guessing_linear,
    make_linear,
)
from tandem.backends.torch.owned_weights import owned
from tandem.backends.torch.packed_batch import PackedBatch
from tandem.backends.torch.products import LayerProducts, ModelProducts, ProductShape
from tandem.backends.torch.reduced_head import MakeLinear, ReducedHead

Module = Any  # transformers types its modules by what all of them have, not by their sequences

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From query [heads, tokens, size], key and value [kv_heads, tokens, size] to [tokens, heads,
size]."""

_FAMILY = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
_FIXED_ROPE = {"default", "linear", "llama3", "yarn"}  # frequencies do not depend on the length


def llama_forward_serves(model: PreTrainedModel) -> bool:
    """Return True if the model is a plain member of the Llama family."""
    if type(model) not in _FAMILY:
        return False
    config = model.config
    rope = config.rope_parameters
    return (
        config.hidden_act == "silu"
        and rope.get("rope_type", "default") in _FIXED_ROPE
        and rope.get("partial_rotary_factor", 1.0) == 1.0
    )


class LlamaForward:
    """Runs packed batches like `GenericForward`, for models that `llama_forward_serves`.
    `single_rows`: what most passes are made of, `bits`: of each weight; see `make_linear`. With
    `bits` all but the weights is float32, and embeddings stay as they were loaded. All tokens but
    `head_tokens`, where there are some, have the logit -inf. With fewer `shapes` than the model has
    layers only these run, and a pass answers the hidden states that the last of them puts out in
    the place of logits."""

    def __init__(
        self,
        model: PreTrainedModel,
        shapes: list[LayerShape],
        exits: EarlyExits | None = None,
        *,
        single_rows: bool,
        bits: int | None = None,
        head_tokens: Tensor | None = None,
    ) -> None:
        self._exits = exits
        decoder: Module = model.model
        loaded: Tensor = decoder.embed_tokens.weight.detach()
        self._embedding = owned(loaded)
        self._dtype = self._embedding.dtype if bits is None else torch.float32
        if bits is not None:
            _widen_norms(decoder)
        self._norm = _rms_norm(decoder.norm)
        self._rotary = _Rotary(decoder.rotary_emb, self._embedding.new_empty(0, dtype=self._dtype))
        make = partial(make_linear, single_rows=single_rows, bits=bits)
        with torch.inference_mode(False), torch.no_grad():
            self._layers = [
                _Layer(layer, index, shape, make)
                for index, (layer, shape) in enumerate(zip(decoder.layers, shapes, strict=False))
            ]
            self._is_whole = len(shapes) == len(decoder.layers)
            if not self._is_whole:
                return
            head: Tensor = model.lm_head.weight.detach()
            if not lays_out_anew(head, bits):  # it is kept as it is
                head = self._embedding if head.data_ptr() == loaded.data_ptr() else owned(head)
            reduced = None if head_tokens is None else ReducedHead(head, head_tokens, make)
            self._reduced = reduced
            self.head_tokens = head_tokens
            inside = make(head, None) if reduced is None else reduced.inside  # tied: a second copy
            self.products = ModelProducts(tuple(layer.products for layer in self._layers), inside)
            outputs = head.shape[0] if head_tokens is None else len(head_tokens)
            self.product_shapes = (
                *(shape for layer in self._layers for shape in layer.product_shapes),
                ProductShape(head.shape[1], outputs),
            )
            """Of the products of each layer, one after the other, and of the head."""
            self._early_head = make_guessing_linear(head, reduced or inside) if exits else inside

    @torch.inference_mode()
    def __call__(self, packed: PackedBatch) -> Tensor:
        """Return the logits [packed.logits_to_keep, vocabulary_size]; if only the first layers run,
        their hidden states [packed.logits_to_keep, size]."""
        hidden = packed.hidden
        if hidden is None:
            hidden = functional.embedding(packed.token_ids, self._embedding)
        hidden = hidden.to(self._dtype)
        turn = self._rotary.at(packed)
        exits = self._exits if packed.reads_exits else None
        own = packed.products
        last = len(self._layers) - 1
        for index, layer in enumerate(self._layers):
            if index < packed.first_layer:
                continue
            packed.check_cancelled()
            rows = None
            if index == last and packed.logits_to_keep < hidden.shape[0]:
                rows = packed.logit_rows()
            hidden = layer(
                hidden,
                turn,
                layer.products if own is None else own.layers[index],
                partial(attend_packed, packed, layer.attention),
                few=packed.few,
                rows=rows,
                few_rows=packed.few_logits,
            )
            if exits is not None and index < last:
                exits.after(index, hidden, packed, self._early_logits)
        if not self._is_whole:
            return hidden
        head = (own or self.products).head
        logits = head(self._norm(hidden), packed.few_logits)
        return logits if self._reduced is None else self._reduced.spread(logits)

    def whole_text(
        self,
        token_ids: Tensor,
        first: int,
        products: ModelProducts | None,
        check: Callable[[], None],
    ) -> Tensor:
        """Return the logits [tokens - first, head tokens] after the tokens from index `first` on,
        of one text from its beginning, without a session's keys and values. `products`: instead of
        the model's own; gradients go through them, so that no weights may be quantised. `check` is
        called before each layer, on the way back too."""
        products = products or self.products
        hidden = functional.embedding(token_ids, self._embedding).to(self._dtype)
        turn = self._rotary.first(len(token_ids))
        for layer, layer_products in zip(self._layers, products.layers, strict=True):
            check()
            attend = partial(attend_whole, layer.attention)
            hidden = layer(hidden, turn, layer_products, attend, few=False)
            if hidden.requires_grad:  # asked on the way back, too
                hidden.register_hook(lambda gradient: check())
        check()
        return products.head(self._norm(hidden[first:]), False)

    @property
    def like(self) -> Tensor:
        """Has the dtype and the device of activations."""
        return self._embedding.new_empty(0, dtype=self._dtype)

    @property
    def window(self) -> int | None:
        """How many tokens every layer sees at least; None: all."""
        windows = [layer.attention.window for layer in self._layers]
        return min((window for window in windows if window), default=None)

    def _early_logits(self, hidden: Tensor) -> Tensor:
        """Return an exit's logits [rows, vocabulary] of hidden states [rows, size]: a guess, which
        may be rounded."""
        return self._early_head(self._norm(hidden), few=False)


class _Layer:
    """One decoder layer: attention and gated feed-forward block, each after an RMS norm."""

    def __init__(self, layer: Module, index: int, shape: LayerShape, make: MakeLinear) -> None:
        attention = layer.self_attn
        mlp = layer.mlp
        self.attention = AttentionLayer(index, attention.scaling, shape.window)
        self._head_size = shape.key_size
        self._kv_heads = shape.kv_heads
        self._heads = attention.q_proj.weight.shape[0] // shape.key_size
        self.product_shapes = [
            _product_shape(attention.q_proj, attention.k_proj, attention.v_proj),
            _product_shape(attention.o_proj),
            _product_shape(mlp.gate_proj, mlp.up_proj),
            _product_shape(mlp.down_proj),
        ]
        take_over = partial(_take_over, make=make)
        self.products = LayerProducts(
            qkv=take_over(attention.q_proj, attention.k_proj, attention.v_proj),
            out=take_over(attention.o_proj),
            gate_up=take_over(mlp.gate_proj, mlp.up_proj),
            down=take_over(mlp.down_proj),
        )
        self._norm = _rms_norm(layer.input_layernorm)
        self._mlp_norm = _rms_norm(layer.post_attention_layernorm)
        self._head_norm = self._fused_head_norm(attention)

    def __call__(
        self,
        hidden: Tensor,
        turn: tuple[Tensor, Tensor],
        products: LayerProducts,
        attend: Attend,
        *,
        few: bool,
        rows: Tensor | None = None,
        few_rows: bool = False,
    ) -> Tensor:
        """Run the layer with these `products`: hidden [tokens, size] -> the same shape, or after
        attention only `rows` of it. `few`, and of `rows` `few_rows`, are as in `Linear`."""
        tokens = hidden.shape[0]
        turned_heads = self._heads + self._kv_heads
        heads = products.qkv(self._norm(hidden), few)
        if tokens == 1:  # an operation less for a draft step
            heads = heads.view(-1, 1, self._head_size)
        else:
            heads = heads.view(tokens, -1, self._head_size).transpose(0, 1)
        turned = self._turned(heads[:turned_heads], turn)
        value = heads[turned_heads:]
        query = turned[: self._heads]
        key = turned[self._heads :]
        seen = attend(query, key, value).reshape(tokens, -1)
        if rows is not None:
            hidden = hidden[rows]
            seen = seen[rows]
            few = few_rows
        hidden = products.out.add_to(hidden, seen, few)
        gate, up = products.gate_up(self._mlp_norm(hidden), few).chunk(2, -1)
        gated = functional.silu(gate)
        # In place only where no gradient needs what was there.
        gated = gated * up if gated.requires_grad else gated.mul_(up)
        return products.down.add_to(hidden, gated, few)

    def _turned(self, heads: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """Apply the head norm, if there is one, and the rotary position embedding to query and key
        heads [heads, tokens, size]."""
        if self._head_norm is not None:
            heads = self._head_norm(heads)
        cos, sin = turn
        return torch.addcmul(heads * cos, heads.roll(self._head_size // 2, -1), sin)

    def _fused_head_norm(self, attention: Module) -> "_RmsNorm | None":
        """Return one norm for all query and key heads, which Qwen 3 normalises; None if the model
        does not."""
        if not hasattr(attention, "q_norm"):
            return None
        query = attention.q_norm
        key = attention.k_norm
        counts = ((query, self._heads), (key, self._kv_heads))
        weights = [norm.weight.expand(heads, 1, -1) for norm, heads in counts]
        return _RmsNorm(torch.cat(weights), query.variance_epsilon)


class _RmsNorm:
    """x · weight / sqrt(mean(x²) + eps) over the last dimension."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        size = weight.shape[-1]
        self._weight = owned(weight)
        self._eps = eps
        self._scaled = self._weight * size**0.5
        self._floor = torch.tensor((size * eps) ** 0.5, device=weight.device)

    def __call__(self, hidden: Tensor) -> Tensor:
        if hidden.dtype == torch.float32:
            # sqrt(mean + eps) = hypot(norm, sqrt(size · eps)) / sqrt(size): four operations, not 6
            length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
            scaled: Tensor = hidden * self._scaled / torch.hypot(length, self._floor)
            return scaled
        wide = hidden.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self._eps)
        return self._weight * wide.to(hidden.dtype)


class _Rotary:
    """Cosines and sines per position, made by the model's own module and kept."""

    def __init__(self, module: Module, like: Tensor) -> None:
        self._module = module
        self._like = like
        self._cos = self._sin = like.new_empty(0, 0)

    def at(self, packed: PackedBatch) -> tuple[Tensor, Tensor]:
        """Return cos and sin [tokens, head size] for a batch; sin carries the sign of the half that
        it is added to."""
        if packed.last_position >= self._cos.shape[0]:
            self._grow(packed.last_position + 1)
        sequence = packed.sequences[0]
        if len(packed.sequences) == 1 and sequence.parents is None:  # consecutive: a view will do
            span = slice(sequence.length, sequence.length + sequence.count)
            return self._cos[span], self._sin[span]
        positions = packed.positions()
        return self._cos[positions], self._sin[positions]

    def first(self, tokens: int) -> tuple[Tensor, Tensor]:
        """Return what `at` returns, but for the first `tokens` positions, and as copies, which a
        backward pass may keep."""
        if tokens > self._cos.shape[0]:
            self._grow(tokens)
        return self._cos[:tokens].clone(), self._sin[:tokens].clone()

    def _grow(self, positions: int) -> None:
        count = max(256, 1 << (positions - 1).bit_length())
        cos, sin = self._module(self._like, torch.arange(count, device=self._like.device)[None])
        half = sin.shape[-1] // 2
        self._cos = cos[0]
        self._sin = torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)


def _rms_norm(norm: Module) -> _RmsNorm:
    return _RmsNorm(norm.weight, norm.variance_epsilon)


def _widen_norms(decoder: Module) -> None:
    for module in decoder.modules():
        if hasattr(module, "variance_epsilon"):
            module.float()


def _product_shape(*linears: Module) -> ProductShape:
    """Return the shape of the one product that replaces several linear layers of the same input."""
    return ProductShape(linears[0].in_features, sum(linear.out_features for linear in linears))


def _take_over(*linears: Module, make: MakeLinear) -> Linear:
    """Return one product for several linear layers of one input, which give their weights up."""
    weight = torch.cat([linear.weight for linear in linears])
    biases = [linear.bias for linear in linears]
    bias = None if biases[0] is None else torch.cat(biases).detach()
    for linear in linears:
        linear.weight = Parameter(weight.new_empty(0), requires_grad=False)
    return make(weight.detach(), bias)
