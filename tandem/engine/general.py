"""The forward pass of any Hugging Face decoder, with its attention replaced by the pack's.

transformers calls one registered attention function with the calling module first. Some models
(StableLM, Nemotron) do not hand extra keyword arguments down to it, so the pack under way is found
through a slot that every module of the model carries: one slot per model, no globals. Must not
import grpc.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tandem.core.errors import InvalidArgument
from tandem.engine.attention import attend_pack
from tandem.engine.exit_pass import EarlyExits
from tandem.engine.kv import LayerShape
from tandem.engine.layer_tap import LayerTap
from tandem.engine.pack import Pack, Part
from tandem.engine.sight import seen_inputs
from tandem.engine.vision import SEEING

_ATTENTION = "tandem_packed"
_SLOT = "tandem_attention_slot"


class GeneralForward:
    """Runs packs through `model`; one at a time, on one thread."""

    def __init__(self, model: PreTrainedModel) -> None:
        _register_attention()
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
            raise InvalidArgument("model", f"{type(model).__name__} takes no position ids")
        self._sees = isinstance(model, SEEING)
        self._keeps_rows = "logits_to_keep" in accepted
        self._exits: EarlyExits | None = None
        self._tap: LayerTap | None = None

    def read(self, exits: EarlyExits) -> None:
        """Let segments read these early exits from now on."""
        self._tap, self._exits = LayerTap(self._model), exits

    def survey(self) -> tuple[list[LayerShape], int]:
        """What each attention layer stores, and the number of logits.

        Raises InvalidArgument("model") when attention does not pass through the registered
        function exactly once per layer, as in recurrent models and in those with older code.
        """
        found: dict[int, LayerShape] = {}

        def record(call: "_Call") -> Tensor:
            if call.layer in found:
                raise InvalidArgument("model", f"layer {call.layer} attends more than once")
            key, value = call.key, call.value
            shape = LayerShape(key.shape[0], key.shape[-1], value.shape[-1], call.window)
            found[call.layer] = shape
            heads, tokens = call.query.shape[:2]
            return value.new_zeros(tokens, heads, value.shape[-1])

        device = self._model.device
        token, position = torch.zeros(2, 1, dtype=torch.long, device=device)
        try:
            logits = self._run(record, token, position, torch.zeros_like(token))
        except (KeyError, AttributeError, RuntimeError, TypeError, ValueError) as error:
            raise InvalidArgument("model", f"{self._name} cannot be run packed: {error}") from error
        if sorted(found) != list(range(len(found))) or not found:
            raise InvalidArgument("model", f"{self._name} does not use attention in every layer")
        self._check_masks(found)
        return [found[layer] for layer in range(len(found))], logits.shape[-1]

    def _check_masks(self, found: dict[int, LayerShape]) -> None:
        """Refuse layers whose mask is more than causal in a way the attention call does not tell.

        The pack makes its own masks, so what only transformers' masks say would be lost.
        """
        kinds = getattr(self._model.config.get_text_config(), "layer_types", None) or []
        for layer, kind in enumerate(kinds):
            untold = kind == "sliding_attention" and found[layer].window is None
            if untold or kind == "chunked_attention":
                raise InvalidArgument("model", f"layer {layer} of {self._name} has {kind}")

    def __call__(self, pack: Pack) -> Tensor:
        """Logits [pack.wanted, vocabulary_size] of the wanted rows."""

        def attend(call: "_Call") -> Tensor:
            pack.check_cancelled()
            return attend_pack(
                pack,
                call.layer,
                call.query,
                call.key,
                call.value,
                scaling=call.scaling,
                window=call.window,
                softcap=call.softcap,
                sinks=call.sinks,
            )

        rows = pack.wanted_rows()
        if self._exits is None or self._tap is None or not pack.reads_exits:
            return self._run(attend, pack.token_ids, pack.positions(), rows, pack.parts)
        exits, tap = self._exits, self._tap

        def read(layer: int, hidden: Tensor) -> None:
            exits.after(layer, hidden[0], pack, tap.head)

        with tap.reading(read):
            return self._run(attend, pack.token_ids, pack.positions(), rows, pack.parts)

    @property
    def _name(self) -> str:
        return type(self._model).__name__

    @torch.inference_mode()
    def _run(
        self,
        attend: "Callable[[_Call], Tensor]",
        ids: Tensor,
        positions: Tensor,
        rows: Tensor,
        parts: Sequence[Part] = (),
    ) -> Tensor:
        inputs = {"input_ids": ids[None], "position_ids": positions[None]}
        if self._sees and parts:
            inputs = seen_inputs(self._model, ids, parts)
        keep = {"logits_to_keep": rows} if self._keeps_rows else {}
        self._slot.attend = attend
        try:
            outputs = self._model(**inputs, use_cache=False, **keep)
        finally:
            self._slot.attend = None
        logits: Tensor = outputs.logits[0]
        return logits if self._keeps_rows else logits[rows]


class _Call:
    """One layer's call of the attention function, without the batch dimension."""

    __slots__ = ("key", "layer", "query", "scaling", "sinks", "softcap", "value", "window")

    def __init__(self, module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor) -> None:
        layer = getattr(module, "layer_idx", None)
        if not isinstance(layer, int):
            raise InvalidArgument("model", f"{type(module).__name__} does not know its layer")
        if not getattr(module, "is_causal", True):
            raise InvalidArgument("model", f"{type(module).__name__} looks at later tokens")
        self.layer = layer
        self.query, self.key, self.value = query[0], key[0], value[0]
        self.scaling: float = query.shape[-1] ** -0.5
        self.window: int | None = None
        self.softcap: float | None = None
        self.sinks: Tensor | None = None


class _Slot:
    """Where the attention function finds what to do in the forward pass under way."""

    attend: Callable[[_Call], Tensor] | None = None


def _register_attention() -> None:
    """Make the packed attention known to transformers, whose registry is process-wide."""
    ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, _packed_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(_ATTENTION, _no_mask)


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
    """transformers' attention interface: [1, heads, tokens, size] -> [1, tokens, heads, size]."""
    attend = getattr(module, _SLOT).attend
    call = _Call(module, query, key, value)
    if scaling is not None:
        call.scaling = scaling
    call.window, call.softcap, call.sinks = sliding_window or None, softcap, s_aux
    return attend(call)[None], None


def _no_mask(*_: Any, **__: Any) -> None:
    """transformers' mask interface: the pack knows what each token sees."""
