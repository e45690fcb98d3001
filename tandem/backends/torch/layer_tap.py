"""A tap on the layers of any Hugging Face decoder: reads what a layer puts out, and takes a hidden
state of one's own through the rest of the model.

What lies behind the last layer differs between architectures (norm, projection, head, soft caps,
scales), so it is not rebuilt: the model's own code runs once more, with its layers passing the
given state through. Invariant: outside `reading` and `head` a tapped model computes what it did.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from transformers import PreTrainedModel

from tandem.backends.torch.qwen_vision import Pixels, see_whole
from tandem.core.errors import InvalidArgument

Reader = Callable[[int, Tensor], None]


class LayerTap:
    """Takes over the `forward` of each decoder layer of `model`. Raises InvalidArgument("model")
    when the layers cannot be found."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self._layers = decoder_layers(model)
        config = model.config.get_text_config()
        self.layer_count = len(self._layers)
        self.hidden_size = int(config.hidden_size)
        self.vocabulary_size = int(config.vocab_size)
        self.device: torch.device = model.device
        self._read: Reader | None = None
        self._given: Tensor | None = None
        self._outputs = 0  # how many values a layer puts out; 0: a bare tensor
        for index, layer in enumerate(self._layers):
            layer.forward = partial(self._pass, index, layer.forward)

    @contextmanager
    def reading(self, read: Reader) -> Iterator[None]:
        """Call `read(layer, hidden)` after each layer of a forward pass, while the context is
        open."""
        self._read = read
        try:
            yield
        finally:
            self._read = None

    def hidden_states(
        self, token_ids: Tensor, layers: Sequence[int], pixels: Pixels | None = None
    ) -> list[Tensor]:
        """Return the outputs of each of `layers` for whole texts [rows, length], whose placeholders
        stand for `pixels`: [rows, length, size]."""
        states: dict[int, Tensor] = {}
        ids = token_ids.to(self.device)
        with self.reading(states.__setitem__):
            if pixels is None:
                self.model.get_decoder()(input_ids=ids, use_cache=False)
            else:
                see_whole(self.model, ids, pixels)
        return [states[layer] for layer in layers]

    def head(self, hidden: Tensor) -> Tensor:
        """Return the logits [rows, vocabulary] of hidden states [rows, size], as if of the last
        layer; after a pass or during one. Differentiable where gradients are on."""
        rows = torch.zeros(1, hidden.shape[0], dtype=torch.long, device=hidden.device)
        read, self._read = self._read, None
        self._given = hidden[None]
        try:
            outputs = self.model(input_ids=rows, position_ids=rows, use_cache=False)
        finally:
            self._read = read
            self._given = None
        logits: Tensor = outputs.logits[0]
        return logits

    @contextmanager
    def narrowed(self, token_ids: Tensor) -> Iterator[None]:
        """Have `head` return the logits of these tokens alone, in their order: [rows, tokens],
        while the context is open. Raises InvalidArgument("model") for a head that is not one
        product."""
        head: Any = self.model.get_output_embeddings()
        if type(head) is not torch.nn.Linear:
            raise InvalidArgument("model", f"{type(self.model).__name__} has no plain head")
        weight = head.weight
        bias = head.bias
        head.weight = Parameter(weight.detach()[token_ids], requires_grad=False)
        if bias is not None:
            head.bias = Parameter(bias.detach()[token_ids], requires_grad=False)
        try:
            yield
        finally:
            head.weight = weight
            head.bias = bias

    def _pass(self, index: int, forward: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if self._given is not None:
            return (self._given, *[None] * (self._outputs - 1)) if self._outputs else self._given
        output = forward(*args, **options)
        self._outputs = len(output) if isinstance(output, tuple) else 0
        if self._read is not None:
            self._read(index, output[0] if isinstance(output, tuple) else output)
        return output


def decoder_layers(model: PreTrainedModel) -> list[torch.nn.Module]:
    count = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    decoder = model.get_decoder()
    for module in decoder.modules():  # the outermost comes first: experts lie inside layers
        if isinstance(module, torch.nn.ModuleList) and len(module) == count:
            return list(module)
    raise InvalidArgument("model", f"{type(model).__name__} has no accessible decoder layers")
