"""Early exits inside a forward pass: which rows are read after a layer, and for which requests.
Invariant: nothing here changes the pass; hidden states are read, never written."""

from collections.abc import Callable

from torch import Tensor

from tandem.backends.torch.exit_adapters import ExitAdapters
from tandem.backends.torch.packed_batch import PackedBatch


class EarlyExits:
    """The exits of one model, called by its forward pass after each layer."""

    def __init__(self, exits: ExitAdapters, like: Tensor, vocabulary_size: int) -> None:
        """`like`: of the activations' dtype, on their device."""
        self.depths = exits.depths
        self._adapters = exits.placed(like)
        self._index = {layer: i for i, layer in enumerate(exits.description.layers)}
        self._vocabulary_size = vocabulary_size

    def after(
        self, layer: int, hidden: Tensor, packed: PackedBatch, head: Callable[[Tensor], Tensor]
    ) -> None:
        """Layer `layer` has put out `hidden` [tokens, size]: call the requests that read its exit.
        `head` takes hidden states [rows, size] to logits [rows, vocabulary], as the model's own end
        does. Only the rows that these requests keep are computed."""
        index = self._index.get(layer)
        sequences = [one for one in packed.sequences if index in one.exits and one.logits_to_keep]
        if index is None or not sequences:
            return
        count = sum(sequence.logits_to_keep for sequence in sequences)
        rows = hidden if count == len(hidden) else hidden[packed.rows_of(sequences)]
        logits = head(self._adapters[index](rows))[:, : self._vocabulary_size].float().cpu().numpy()
        first = 0
        for sequence in sequences:
            sequence.on_exit(index, logits[first : first + sequence.logits_to_keep])
            first += sequence.logits_to_keep
