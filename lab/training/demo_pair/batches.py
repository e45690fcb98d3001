"""Token batches as a pure function of (documents, seed, step), so that resuming needs no state.

An epoch's texts are laid end to end, cut into blocks of one context, and the blocks are shuffled;
a batch is a few blocks from different places, cut into rows of one length.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from lab.training.demo_pair.corpus import Document, render_epoch
from lab.training.demo_pair.tokenizer import BOS, CONTEXT_LENGTH, EOS

ROW_LENGTHS = (256, 512, 1024)
ROW_LENGTH_WEIGHTS = (0.55, 0.30, 0.15)


@dataclass(slots=True)
class Batches:
    """Training batches; each step yields `blocks_per_batch` x 1024 tokens and their successors."""

    documents: list[Document]
    tokenizer: Tokenizer
    seed: int
    blocks_per_batch: int
    _epochs: dict[int, tuple[NDArray[np.uint16], NDArray[np.int64]]] = field(default_factory=dict)
    _first_step: dict[int, int] = field(default_factory=lambda: {0: 0})

    def at(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the inputs and labels of a step, int64 of shape [rows, length]."""
        stream, starts, place = self._locate(step)
        chosen = starts[place : place + self.blocks_per_batch]
        spans = np.stack([stream[start : start + CONTEXT_LENGTH + 1] for start in chosen])
        rng = np.random.default_rng((self.seed, step, 1))
        length = int(rng.choice(ROW_LENGTHS, p=ROW_LENGTH_WEIGHTS))
        tokens = torch.from_numpy(spans.astype(np.int64))
        inputs = tokens[:, :-1].reshape(-1, length)
        labels = tokens[:, 1:].reshape(-1, length)
        return inputs, labels

    def _locate(self, step: int) -> tuple[NDArray[np.uint16], NDArray[np.int64], int]:
        epoch = 0
        while True:
            stream, starts = self._epoch(epoch)
            first = self._first_step[epoch]
            steps = len(starts) // self.blocks_per_batch
            if step < first + steps:
                return stream, starts, (step - first) * self.blocks_per_batch
            self._first_step[epoch + 1] = first + steps
            epoch += 1

    def _epoch(self, epoch: int) -> tuple[NDArray[np.uint16], NDArray[np.int64]]:
        if epoch not in self._epochs:
            texts = render_epoch(self.documents, self.seed * 1000 + epoch)
            rng = np.random.default_rng((self.seed, epoch, 0))
            stream = encode_stream(self.tokenizer, texts)
            needed = self.blocks_per_batch * CONTEXT_LENGTH * 2
            if len(stream) < needed:
                stream = np.tile(stream, needed // len(stream) + 1)
            phase = int(rng.integers(CONTEXT_LENGTH))
            starts = np.arange(phase, len(stream) - CONTEXT_LENGTH - 1, CONTEXT_LENGTH)
            self._epochs[epoch] = (stream, rng.permutation(starts))
        return self._epochs[epoch]


def encode_stream(tokenizer: Tokenizer, texts: list[str]) -> NDArray[np.uint16]:
    """Return the tokens of all texts end to end, each as bos, tokens, eos."""
    marked = [f"{BOS}{text}{EOS}" for text in texts]
    pieces: list[int] = []
    for encoding in tokenizer.encode_batch(marked, add_special_tokens=False):
        pieces.extend(encoding.ids)
    return np.asarray(pieces, dtype=np.uint16)
