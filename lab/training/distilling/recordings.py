"""Answers on disk, and training batches of them as a pure function of (answers, seed, step)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from lab.training.distilling.sampling import Answer

UNRECORDED = -1
"""The label of a position that teaches nothing."""
_ROWS_ALIKE = 256
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


def record(answers: Sequence[Answer]) -> Recording:
    """Return the recording of answers; at least one is needed."""
    sequences = [(*answer.task.token_ids, *answer.token_ids) for answer in answers]
    recorded = torch.tensor(
        [
            place >= answer.task.known
            for answer, line in zip(answers, sequences, strict=True)
            for place in range(len(line))
        ]
    )
    return Recording(
        numbers=torch.tensor([answer.task.number for answer in answers]),
        temperatures=torch.tensor([answer.task.temperature for answer in answers]),
        token_ids=torch.tensor([token for line in sequences for token in line]),
        starts=torch.tensor([0, *np.cumsum([len(line) for line in sequences])]),
        prompt_lengths=torch.tensor([len(answer.task.token_ids) for answer in answers]),
        records=torch.where(recorded, recorded.cumsum(0) - 1, UNRECORDED),
        hidden=torch.cat([answer.hidden for answer in answers]),
        log_partition=torch.cat([answer.log_partition for answer in answers]),
    )


def write_recording(recording: Recording, path: Path) -> None:
    """Atomically, as safetensors."""
    tensors = {name: getattr(recording, name).contiguous() for name in Recording.__slots__}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    save_file(tensors, partial)
    os.replace(partial, path)


def read_recordings(folder: Path, named: str = "*.safetensors") -> Recording:
    """All of a folder as one. FileNotFoundError if there is none."""
    parts = [Recording(**load_file(path)) for path in sorted(folder.glob(named))]
    if not parts:
        raise FileNotFoundError(f"no answers in {folder}: run the stage that samples them first")
    ends = np.cumsum([0] + [len(part.token_ids) for part in parts])
    rows = np.cumsum([0] + [len(part.hidden) for part in parts])
    starts = [part.starts[:-1] + int(end) for part, end in zip(parts, ends, strict=False)]
    records = [
        torch.where(part.records == UNRECORDED, UNRECORDED, part.records + int(row))
        for part, row in zip(parts, rows, strict=False)
    ]
    plain = ("numbers", "temperatures", "token_ids", "prompt_lengths", "hidden", "log_partition")
    joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in plain}
    last = torch.tensor([int(ends[-1])])
    return Recording(starts=torch.cat([*starts, last]), records=torch.cat(records), **joined)


class AnswerBatches:
    """Sequences of like length, padded at their ends, about `tokens` at a time."""

    def __init__(self, recording: Recording, seed: int, tokens: int) -> None:
        self._recording, self._seed, self._tokens = recording, seed, tokens
        self._epochs: dict[int, list[NDArray[np.int64]]] = {}

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels, int64 [rows, length]. The label at a position is the record of the
        token after it."""
        epoch = 0
        while step >= len(self._epoch(epoch)):
            step -= len(self._epoch(epoch))
            epoch += 1
        return padded(self._recording, self._epoch(epoch)[step].tolist())

    def _epoch(self, epoch: int) -> list[NDArray[np.int64]]:
        if epoch not in self._epochs:
            rng = np.random.default_rng((self._seed, epoch))
            lengths = self._recording.starts.diff().numpy()
            order = rng.permutation(len(lengths))
            batches = list[NDArray[np.int64]]()
            for first in range(0, len(order), _ROWS_ALIKE):
                some = order[first : first + _ROWS_ALIKE]
                batches += self._cut(some[np.argsort(lengths[some], kind="stable")], lengths)
            self._epochs[epoch] = [batches[index] for index in rng.permutation(len(batches))]
        return self._epochs[epoch]

    def _cut(
        self, rows: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> Iterator[NDArray[np.int64]]:
        """Rows from the shortest to the longest, in batches of at most `tokens` with their pads."""
        begin = 0
        for end in range(1, len(rows) + 1):
            if end == len(rows) or (end + 1 - begin) * lengths[rows[end]] > self._tokens:
                yield rows[begin:end]
                begin = end


def padded(
    recording: Recording, sequences: Sequence[int], *, answers_alone: bool = False
) -> tuple[Tensor, Tensor]:
    """As of `AnswerBatches.at`, for these sequences; without labels in prompts if asked."""
    spans = [(int(recording.starts[i]), int(recording.starts[i + 1])) for i in sequences]
    longest = max(end - start - 1 for start, end in spans)
    length = -(-longest // _PAD_TO) * _PAD_TO
    inputs = torch.zeros(len(spans), length, dtype=torch.int64)
    labels = torch.full_like(inputs, UNRECORDED)
    for row, (start, end) in enumerate(spans):
        inputs[row, : end - start - 1] = recording.token_ids[start : end - 1]
        skipped = int(recording.prompt_lengths[sequences[row]]) - 1 if answers_alone else 0
        labels[row, skipped : end - start - 1] = recording.records[start + 1 + skipped : end]
    return inputs, labels
