"""Early exits inside a forward pass: which rows are read after a layer, and who is told.

Invariant: nothing here changes the pass; hidden states are read, never written. Must not import
grpc.
"""

from collections.abc import Callable

from torch import Tensor

from tandem.engine.exit_adapters import ExitAdapters
from tandem.engine.pack import Pack


class EarlyExits:
    """The exits of one model, called by its forward pass after each layer."""

    def __init__(self, exits: ExitAdapters, like: Tensor, vocabulary_size: int) -> None:
        """`like`: of the activations' dtype, on their device."""
        self.depths = exits.depths
        self._adapters = exits.placed(like)
        self._index = {layer: i for i, layer in enumerate(exits.description.layers)}
        self._vocabulary_size = vocabulary_size

    def after(
        self, layer: int, hidden: Tensor, pack: Pack, head: Callable[[Tensor], Tensor]
    ) -> None:
        """Layer `layer` has put out `hidden` [tokens, size]: tell those who read the exit there.

        `head` takes hidden states [rows, size] to logits [rows, vocabulary], as the model's own
        end does. Only rows whose logits are wanted, of segments that read this exit, are computed.
        """
        index = self._index.get(layer)
        parts = [part for part in pack.parts if index in part.exits and part.wanted]
        if index is None or not parts:
            return
        count = sum(part.wanted for part in parts)
        rows = hidden if count == len(hidden) else hidden[pack.rows_of(parts)]
        adapted = self._adapters[index](rows)
        logits = head(adapted)[:, : self._vocabulary_size].float().cpu().numpy()
        first = 0
        for part in parts:
            part.on_exit(index, logits[first : first + part.wanted])
            first += part.wanted
