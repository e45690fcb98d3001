"""The forward pass of any Hugging Face decoder, with its attention replaced by the packed batch's.

transformers calls one registered attention function with the calling module first. Some models
(StableLM, Nemotron) do not hand extra keyword arguments down to it, so the packed batch under way
is found through a slot that every module of the model carries: one slot per model, no globals.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tandem.backends.torch.attention import AttentionLayer, attend_packed
from tandem.backends.torch.exit_adapters import EarlyExits
from tandem.backends.torch.kv_cache import LayerShape
from tandem.backends.torch.layer_tap import LayerTap
from tandem.backends.torch.packed_batch import PackedBatch, PackedSequence
from tandem.backends.torch.qwen_vision import VISION_MODELS
from tandem.core.errors import InvalidArgument

_ATTENTION = "tandem_packed"
_SLOT = "tandem_attention_slot"


class _Call(NamedTuple):
    """One layer's call of the attention function, without the batch dimension."""

    layer: AttentionLayer
    query: Tensor
    key: Tensor
    value: Tensor


class GenericForward:
    """Runs packed batches through `model`; one at a time, on one thread."""

    def __init__(self, model: PreTrainedModel) -> None:
        # transformers' registry is process-wide.
        ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, _packed_attention)
        ALL_MASK_ATTENTION_FUNCTIONS.register(_ATTENTION, _no_mask)
        text = model.config.get_text_config()
        # A vision tower keeps its own attention: it looks both ways and has no cache.
        alone = text is model.config
        model.set_attn_implementation(_ATTENTION if alone else {"text_config": _ATTENTION})
        if text._attn_implementation != _ATTENTION:
            raise InvalidArgument("model", f"{type(model).__name__} has its own attention code")
        self._model = model
        self._slot = _Slot()
        for module in model.modules():
            setattr(module, _SLOT, self._slot)
        accepted = inspect.signature(model.forward).parameters
        if "position_ids" not in accepted:
            raise InvalidArgument("model", f"{type(model).__name__} accepts no position ids")
        self._has_vision = isinstance(model, VISION_MODELS)
        self._keeps_rows = "logits_to_keep" in accepted
        self._exits: EarlyExits | None = None
        self._tap: LayerTap | None = None

    def read(self, exits: EarlyExits) -> None:
        """Let requests read these early exits from now on."""
        self._tap = LayerTap(self._model)
        self._exits = exits

    def survey(self) -> tuple[list[LayerShape], int]:
        """Return what each attention layer stores, and the number of logits. Raises
        InvalidArgument("model") when attention does not pass through the registered function
        exactly once per layer, as in recurrent models and in those with older code."""
        shapes: dict[int, LayerShape] = {}

        def record(call: _Call) -> Tensor:
            index = call.layer.number
            key = call.key
            value = call.value
            if index in shapes:
                raise InvalidArgument("model", f"layer {index} attends more than once")
            shapes[index] = LayerShape(
                kv_heads=key.shape[0],
                key_size=key.shape[-1],
                value_size=value.shape[-1],
                window=call.layer.window,
            )
            heads, tokens = call.query.shape[:2]
            return value.new_zeros(tokens, heads, value.shape[-1])

        token, position = torch.zeros(2, 1, dtype=torch.long, device=self._model.device)
        try:
            logits = self._run(record, token, position, torch.zeros_like(token))
        except (KeyError, AttributeError, RuntimeError, TypeError, ValueError) as error:
            raise InvalidArgument(
                "model", f"{self._name} cannot run in a packed batch: {error}"
            ) from error
        if sorted(shapes) != list(range(len(shapes))) or not shapes:
            raise InvalidArgument("model", f"{self._name} does not use attention in every layer")
        self._check_masks(shapes)
        return [shapes[layer] for layer in range(len(shapes))], logits.shape[-1]

    def _check_masks(self, shapes: dict[int, LayerShape]) -> None:
        """Refuse layers that need more than a causal mask where the attention call does not say."""
        kinds = getattr(self._model.config.get_text_config(), "layer_types", None) or []
        for layer, kind in enumerate(kinds):
            unsaid = kind == "sliding_attention" and shapes[layer].window is None
            if unsaid or kind == "chunked_attention":
                raise InvalidArgument("model", f"layer {layer} of {self._name} has {kind}")

    def __call__(self, packed: PackedBatch) -> Tensor:
        """Return the logits [packed.logits_to_keep, vocabulary_size]."""

        def attend(call: _Call) -> Tensor:
            packed.check_cancelled()
            return attend_packed(
                packed=packed, layer=call.layer, query=call.query, key=call.key, value=call.value
            )

        rows = packed.logit_rows()
        if self._exits is None or self._tap is None or not packed.reads_exits:
            return self._run_packed(attend, packed, rows)
        exits = self._exits
        tap = self._tap

        def read(layer: int, hidden: Tensor) -> None:
            exits.after(layer, hidden[0], packed, tap.head)

        with tap.reading(read):
            return self._run_packed(attend, packed, rows)

    @property
    def _name(self) -> str:
        return type(self._model).__name__

    def _run_packed(
        self, attend: Callable[[_Call], Tensor], packed: PackedBatch, rows: Tensor
    ) -> Tensor:
        return self._run(
            attend,
            ids=packed.token_ids,
            positions=packed.positions(),
            rows=rows,
            sequences=packed.sequences,
        )

    @torch.inference_mode()
    def _run(
        self,
        attend: Callable[[_Call], Tensor],
        ids: Tensor,
        positions: Tensor,
        rows: Tensor,
        sequences: Sequence[PackedSequence] = (),
    ) -> Tensor:
        inputs = {"input_ids": ids[None], "position_ids": positions[None]}
        if self._has_vision and sequences:
            inputs = _embed_inputs(self._model, ids, sequences)
        keep = {"logits_to_keep": rows} if self._keeps_rows else {}
        self._slot.attend = attend
        try:
            outputs = self._model(**inputs, use_cache=False, **keep)
        finally:
            self._slot.attend = None
        logits: Tensor = outputs.logits[0]
        return logits if self._keeps_rows else logits[rows]


def _embed_inputs(
    model: PreTrainedModel, ids: Tensor, sequences: Sequence[PackedSequence]
) -> dict[str, Tensor]:
    """Return what a model with M-RoPE is called with for a packed batch of token ids [tokens]."""
    hidden = model.get_input_embeddings()(ids)
    has_images = any(sequence.session.image_embeddings for sequence in sequences)
    token_ids = ids.tolist() if has_images else ()
    columns = []
    for sequence in sequences:
        image_embeddings = sequence.session.image_embeddings
        if image_embeddings is None:
            columns.append(torch.tensor(sequence.positions, device=hidden.device).expand(3, -1))
            continue
        rows = sequence.rows
        image_embeddings.insert(hidden[rows], sequence.positions, token_ids[rows])
        columns.append(image_embeddings.rope_at(sequence.positions))
    return {"inputs_embeds": hidden[None], "position_ids": torch.cat(columns, dim=1)[:, None]}


class _Slot:
    """Slot in which the attention function finds the current forward pass."""

    attend: Callable[[_Call], Tensor] | None = None


def _packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers' attention interface asks: query, key and value [1, heads, tokens,
    size] -> [1, tokens, heads, size]."""
    attend = getattr(module, _SLOT).attend
    index = getattr(module, "layer_idx", None)
    if not isinstance(index, int):
        raise InvalidArgument("model", f"{type(module).__name__} has no layer index")
    if not getattr(module, "is_causal", True):
        raise InvalidArgument("model", f"{type(module).__name__} is not causal")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer = AttentionLayer(
        number=index, scaling=scaling, window=sliding_window or None, softcap=softcap, sinks=s_aux
    )
    return attend(_Call(layer, query[0], key[0], value[0]))[None], None


def _no_mask(*_: Any, **__: Any) -> None:
    """Return no mask to transformers' mask interface: the packed batch knows what each token
    sees."""
