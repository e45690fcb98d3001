"""What a target said: in memory, on disk, and in training batches that are a pure function of
(answers, seed, step)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

UNRECORDED = -1
"""The label of a position that teaches nothing."""
_ROWS_ALIKE = 256
"""At least so many sequences are sorted by length before they are cut into batches."""
_BATCHES_ALIKE = 8
_PAD_TO = 32


@dataclass(frozen=True, slots=True)
class Recording:
    """Answers end to end. Sequence i is `token_ids[starts[i] : starts[i + 1]]`, and its first
    `prompt_lengths[i]` tokens are the prompt. `records[j]` is the row of `hidden` [rows, size] and
    `log_partition` [rows] that say what comes at token j, or UNRECORDED. `numbers` are those of the
    prompts."""

    numbers: Tensor
    temperatures: Tensor
    token_ids: Tensor
    starts: Tensor
    prompt_lengths: Tensor
    records: Tensor
    hidden: Tensor
    log_partition: Tensor

    def __len__(self) -> int:
        return len(self.numbers)

    def sequence(self, number: int) -> Tensor:
        """Return the token ids of a prompt and its answer."""
        return self.token_ids[int(self.starts[number]) : int(self.starts[number + 1])]

    def answer(self, number: int) -> Tensor:
        """Return the token ids of an answer, its end included; none after a text that was only
        read."""
        return self.sequence(number)[int(self.prompt_lengths[number]) :]

    def states_on(self, device: torch.device) -> Recording:
        """Return the same with `hidden` and `log_partition`, which are nearly all of it, on a
        device."""
        return replace(
            self, hidden=self.hidden.to(device), log_partition=self.log_partition.to(device)
        )


def write_recording(recording: Recording, path: Path) -> None:
    """Write a recording as safetensors, atomically."""
    tensors = {name: getattr(recording, name).contiguous() for name in Recording.__slots__}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    save_file(tensors, partial)
    os.replace(partial, path)


def read_recordings(folder: Path, named: str = "*.safetensors") -> Recording:
    """Read all of a folder's recordings as one. Raises FileNotFoundError if there is none."""
    parts = [Recording(**load_file(path)) for path in sorted(folder.glob(named))]
    if not parts:
        raise FileNotFoundError(f"no answers in {folder}: run the stage that samples them first")
    return joined(parts)


def joined(parts: Sequence[Recording]) -> Recording:
    """Return recordings one after another as one; at least one is needed."""
    ends = np.cumsum([0] + [len(part.token_ids) for part in parts])
    rows = np.cumsum([0] + [len(part.hidden) for part in parts])
    starts = [part.starts[:-1] + int(end) for part, end in zip(parts, ends, strict=False)]
    records = [
        torch.where(part.records == UNRECORDED, UNRECORDED, part.records + int(row))
        for part, row in zip(parts, rows, strict=False)
    ]
    plain = ("numbers", "temperatures", "token_ids", "prompt_lengths", "hidden", "log_partition")
    whole = {name: torch.cat([getattr(part, name) for part in parts]) for name in plain}
    last = torch.tensor([int(ends[-1])])
    return Recording(starts=torch.cat([*starts, last]), records=torch.cat(records), **whole)


class AnswerBatches:
    """Sequences of like length, padded at their ends, about `tokens` at a time."""

    def __init__(self, recording: Recording, seed: int, tokens: int) -> None:
        self._recording = recording
        self._seed = seed
        self._tokens = tokens
        self._epochs: dict[int, list[NDArray[np.int64]]] = {}

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """Return inputs and labels, int64 [rows, length]. The label at a position is the record of
        the token after it."""
        epoch = 0
        while step >= len(self._epoch(epoch)):
            step -= len(self._epoch(epoch))
            epoch += 1
        return padded(self._recording, self._epoch(epoch)[step].tolist())

    def tokens_until(self, step: int) -> int:
        """Return how many tokens the steps before this one see, pads included."""
        lengths, seen, epoch = self._recording.starts.diff().numpy(), 0, 0
        while step > 0:
            batches = self._epoch(epoch)[:step]
            seen += sum(len(rows) * _padded_length(int(lengths[rows].max())) for rows in batches)
            step, epoch = step - len(batches), epoch + 1
        return seen

    def _epoch(self, epoch: int) -> list[NDArray[np.int64]]:
        if epoch not in self._epochs:
            rng = np.random.default_rng((self._seed, epoch))
            lengths = self._recording.starts.diff().numpy()
            order = rng.permutation(len(lengths))
            batches = list[NDArray[np.int64]]()
            alike = max(_ROWS_ALIKE, int(_BATCHES_ALIKE * self._tokens / lengths.mean()))
            for first in range(0, len(order), alike):
                some = order[first : first + alike]
                batches += self._cut(some[np.argsort(lengths[some], kind="stable")], lengths)
            self._epochs[epoch] = [batches[index] for index in rng.permutation(len(batches))]
        return self._epochs[epoch]

    def _cut(
        self, rows: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> Iterator[NDArray[np.int64]]:
        """Yield rows from the shortest to the longest, in batches of at most `tokens` with their
        pads."""
        begin = 0
        for end in range(1, len(rows) + 1):
            if end == len(rows) or (end + 1 - begin) * lengths[rows[end]] > self._tokens:
                yield rows[begin:end]
                begin = end


def padded(
    recording: Recording, sequences: Sequence[int], *, answers_alone: bool = False
) -> tuple[Tensor, Tensor]:
    """Return inputs and labels as `AnswerBatches.at` does, but for these sequences.
    `answers_alone`: without labels in prompts."""
    spans = [(int(recording.starts[i]), int(recording.starts[i + 1])) for i in sequences]
    length = _padded_length(max(end - start for start, end in spans))
    inputs = torch.zeros(len(spans), length, dtype=torch.int64)
    labels = torch.full_like(inputs, UNRECORDED)
    for row, (start, end) in enumerate(spans):
        inputs[row, : end - start - 1] = recording.token_ids[start : end - 1]
        skipped = int(recording.prompt_lengths[sequences[row]]) - 1 if answers_alone else 0
        labels[row, skipped : end - start - 1] = recording.records[start + 1 + skipped : end]
    return inputs, labels


def _padded_length(tokens: int) -> int:
    """Return how long the inputs of a batch are whose longest sequence has `tokens` tokens."""
    return -(-(tokens - 1) // _PAD_TO) * _PAD_TO
