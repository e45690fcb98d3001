"""The one door for drafts that are taken from texts, without a draft model: what the caller
predicts, else what is remembered (`predicted_text`, `recalled_text`). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tandem.core.probs import one_hot
from tandem.specdec.predicted_text import Alignment, PredictedText
from tandem.specdec.recalled_text import Recall, Recollection


@dataclass(frozen=True, slots=True)
class TextDraft:
    """A token that a text proposes. `is_last`: nothing is proposed after it before it is confirmed.
    `remembered`: it is from the memory, not from the caller's prediction. `chance`: that it is
    right."""

    token_id: int
    vocabulary_size: int
    is_last: bool = False
    remembered: bool = False
    chance: float = 1.0

    @property
    def probs(self) -> NDArray[np.float32]:
        """The distribution [V] from which it is proposed: certain of it."""
        return one_hot(self.vocabulary_size, self.token_id)


@dataclass(frozen=True, slots=True)
class TextDrafts:
    """What texts propose at one place of an answer. Either text may be missing."""

    prediction: Alignment | None = None
    recall: Recall | None = None

    @property
    def proposed(self) -> TextDraft | None:
        """The next draft; None where the draft model, if there is one, is to say it."""
        prediction = self.prediction
        if prediction is not None and (token_id := prediction.proposed) is not None:
            size = prediction.text.vocabulary_size
            return TextDraft(token_id, size, is_last=prediction.is_last)
        recall = self.recall
        if recall is None or (token_id := recall.proposed) is None:
            return None
        size = recall.source.vocabulary_size
        return TextDraft(token_id, size, remembered=True, chance=recall.chance)

    @property
    def branches(self) -> tuple[TextDraft, ...]:
        """The next drafts for a tree, likeliest first: several where what is remembered goes on in
        several ways."""
        proposed = self.proposed
        if proposed is not None and not proposed.remembered:
            return (proposed,)
        if (recall := self.recall) is None:
            return ()
        size = recall.source.vocabulary_size
        return tuple(
            TextDraft(token_id, size, remembered=True, chance=chance)
            for token_id, chance in recall.branches
        )

    def after(self, token_ids: Iterable[int], *, confirmed: bool) -> TextDrafts:
        """Return what is proposed once these tokens follow. `confirmed`: they are the answer's, and
        are said once; drafts of it else."""
        ids = tuple(token_ids)
        if not ids:
            return self
        prediction = self.prediction
        recall = self.recall
        return TextDrafts(
            None if prediction is None else prediction.after(ids, confirmed=confirmed),
            None if recall is None else recall.after(ids, confirmed=confirmed),
        )

    def surer_than(self, acceptance_rate: float) -> TextDrafts:
        """Return the same, with nothing from the memory that is less sure than a draft model's
        tokens, which are accepted at this rate."""
        if self.recall is None:
            return self
        return replace(self, recall=self.recall.surer_than(acceptance_rate))

    def count(self, most: int) -> int:
        """Return how many tokens in a row are proposed, `most` at most."""
        texts = self
        count = 0
        while count < most and (draft := texts.proposed) is not None:
            count += 1
            if draft.is_last:
                break
            texts = texts.after((draft.token_id,), confirmed=False)
        return count


NO_TEXTS = TextDrafts()
"""Nothing to draft from."""


class AnswerTexts:
    """What texts propose for one answer as it grows. Drafts in flight are followed once each."""

    def __init__(self, predicted: PredictedText | None, memory: Recollection | None) -> None:
        self.on = predicted is not None or memory is not None
        """Whether there is a text to draft from."""
        self._committed = TextDrafts(
            None if predicted is None else Alignment(predicted),
            None if memory is None else memory.begin(),
        )
        self._forget_ahead()

    def _forget_ahead(self) -> None:
        self._in_flight: tuple[int, ...] = ()
        self._ahead = self._committed
        self._counted = (0, 0)  # how many were looked for, and found

    def commit(self, token_ids: Sequence[int]) -> None:
        """Note tokens of the answer."""
        if not self.on:
            return
        self._committed = self._committed.after(token_ids, confirmed=True)
        self._forget_ahead()

    def after(self, in_flight: tuple[int, ...], acceptance_rate: float) -> TextDrafts:
        """Return what is proposed after the committed text and these drafts. `acceptance_rate`: of
        the draft model's tokens."""
        known = len(self._in_flight)
        if in_flight[:known] != self._in_flight:
            self._forget_ahead()
            known = 0
        if known < len(in_flight):
            self._ahead = self._ahead.after(in_flight[known:], confirmed=False)
            self._in_flight = in_flight
            self._counted = (0, 0)
        return self._ahead.surer_than(acceptance_rate)

    def count(self, in_flight: tuple[int, ...], acceptance_rate: float, most: int) -> int:
        """Return how many tokens in a row are proposed after them, `most` at most."""
        texts = self.after(in_flight, acceptance_rate)
        looked_for, count = self._counted
        if most > looked_for == count:
            count = texts.count(most)
            self._counted = most, count
        return min(count, most)
