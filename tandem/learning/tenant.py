"""What the draft model learns from one tenant's texts: these, the adapter in use, and the one in
training.

Methods say where they run. On the worker they read and write files, one at a time; `work` runs on
the engine thread, one training step or one scored text at a time, and ends early when it is
cancelled. Invariant: a step that is cancelled, or killed with the process, changes nothing."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from tandem.learning.adaptation import Adaptation, AdapterTrainer, Weights
from tandem.learning.evaluation import (
    Evaluation,
    Outcome,
    Score,
    enough_to_evaluate,
    evaluate,
    falls_behind,
)
from tandem.learning.examples import Example, recent_index
from tandem.learning.replay_buffer import ReplayBuffer
from tandem.learning.schedule import TrainingSchedule
from tandem.learning.store import TEXTS, AdapterStore, LearningState, Version
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

MAX_VALIDATION_TEXTS = 48
"""The newest ones."""
MAX_TRAINING_TEXTS = 2000
"""The newest ones."""
WINDOW_TOKENS = 128
"""Of a text, at once."""
MAX_RECENT_TEXTS = 8
"""The newest ones, which say whether the adapter in use serves what is asked now."""
MIN_TRAINING_TEXTS = 4
_SCHEDULE = "schedule"
_BASE = b""
"""The digest of no adapter."""


@dataclass(frozen=True, slots=True)
class LearningSetup:
    """What all tenants share: the draft model's `adaptation`, its vocabulary, a hash of its
    weights, and the most bytes of texts that are kept for each tenant."""

    adaptation: Adaptation
    vocabulary_hash: str
    vocabulary_size: int
    model_hash: str
    max_bytes: int

    @property
    def model(self) -> str:
        """What adapters belong to."""
        text = f"{self.model_hash}\n{self.adaptation.layout}"
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter as sessions use it, and its weights."""

    placed: object
    weights: Weights
    digest: bytes
    _broken: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def of(cls, weights: Weights, adaptation: Adaptation) -> Adapter:
        """Place weights. Raises InvalidArgument("adapter")."""
        digest = hashlib.sha256(weights.tobytes()).digest()[:8]
        return cls(adaptation.place(weights), weights, digest)

    @property
    def works(self) -> bool:
        """False once it was set aside."""
        return not self._broken.is_set()

    def set_aside(self) -> None:
        """Begin no further answer with it: the logits that it gives are no numbers. Called on any
        thread."""
        if self.works:
            self._broken.set()
            log.warning("an adapter is set aside", reason="its logits are not finite")


@dataclass(slots=True, eq=False)
class _Scored:
    """The part of a text that scores adapters, and the scores by an adapter's digest."""

    window: Example
    scores: dict[bytes, Score] = field(default_factory=dict)


class TenantLearning:
    """One tenant's learning, in its folder."""

    def __init__(self, folder: Path, setup: LearningSetup) -> None:
        self._adaptation = setup.adaptation
        self._window = min(WINDOW_TOKENS, setup.adaptation.max_tokens)
        self._store = AdapterStore(folder, setup.model)
        self._replay = ReplayBuffer(
            folder / TEXTS, setup.max_bytes, setup.vocabulary_hash, setup.vocabulary_size
        )
        self._texts: deque[Example] = deque(maxlen=MAX_TRAINING_TEXTS)
        # Replaced as a whole, since other threads read them.
        self._validation: tuple[_Scored, ...] = ()
        self._recent: tuple[_Scored, ...] = ()
        """Those that came while an adapter was in use."""
        self._state: LearningState | None = None
        self.adapter: Adapter | None = None
        """Of the version in use."""
        self.schedule = TrainingSchedule()
        self._seed = hashlib.sha256(folder.name.encode()).digest()
        self._steps = 0
        """Taken so far, which decides what is random in the next one."""
        self._trainer: AdapterTrainer | None = None
        self._candidate: Adapter | None = None
        """What was trained, while it is evaluated."""
        self._candidate_texts: tuple[_Scored, ...] = ()
        self._trained_tokens = 0
        self.seconds = 0.0
        """Of training and evaluating, since the last version."""
        self.cpu_seconds = 0.0
        self.unsaved = False
        """True if steps were taken since the training was kept on disk."""

    # On the event loop.

    @property
    def outdated(self) -> bool:
        """True if the files must be read before an answer begins."""
        return self._state is None or self._store.changed

    @property
    def chosen(self) -> Adapter | None:
        """What sessions that begin now use: the adapter in use, unless the newest texts are of a
        kind that it harms."""
        adapter = self.adapter
        return None if adapter is None or not adapter.works or self._harms(adapter) else adapter

    @property
    def due(self) -> bool:
        """True if there is something to train or to evaluate."""
        if self._candidate is not None or self._unscored() is not None:
            return True
        tokens = sum(each.window.target_tokens for each in self._validation)
        trains = self.schedule.backlog > 0 or self.schedule.evaluates
        evaluates = enough_to_evaluate(len(self._validation), tokens)
        return trains and evaluates and len(self._texts) >= MIN_TRAINING_TEXTS

    @property
    def evaluated(self) -> bool:
        """True if an evaluation is to be concluded."""
        return self._candidate is not None and self._unscored() is None

    @property
    def stored_bytes(self) -> int:
        return self._replay.size_bytes

    # On the worker.

    def read(self) -> None:
        """Read what is on disk, and drop what is in memory of another state. Raises OSError."""
        state = self._store.read()
        before = self._state
        if before is None or state.generation != before.generation:
            self._texts.clear()
            self._validation = self._recent = ()
            self._begin_anew()
            for text in self._replay.read():
                self._take(text)
        elif state.used != before.used:  # somebody rolled back: new texts are to say more
            self._begin_anew()
        self._state = state
        self.adapter = self._of_version(state.used)
        if before is None and not self._resumed(state) and not state.newest:
            self.schedule.recorded(sum(text.target_tokens for text in self._texts))

    def record(self, text: Example) -> None:
        """Keep a text to learn from. Raises OSError."""
        if self.outdated:
            self.read()
        self._replay.add(text)
        if self.adapter is not None:
            new = _Scored(text.validation_window(self._window))
            self._recent = (*self._recent, new)[-MAX_RECENT_TEXTS:]
        self._take(text)
        if not text.validates:
            self.schedule.recorded(text.target_tokens)

    def keep_training(self) -> None:
        """Keep what is in training on disk. Raises OSError."""
        if self._trainer is None or self._state is None or not self.unsaved:
            return
        schedule = self.schedule
        numbers = [
            *(schedule.backlog, schedule.unevaluated, schedule.failures),
            *(self._trained_tokens, self._steps),
        ]
        tensors = {**self._trainer.state(), _SCHEDULE: np.array(numbers, dtype=np.int64)}
        self.unsaved = False
        self._store.keep_training(self._state, tensors)

    def conclude(self) -> Evaluation:
        """Do what an evaluation says that has ended; returns what was done. Raises OSError, with
        the adapter in use unchanged."""
        candidate, texts = self._candidate, self._candidate_texts
        assert candidate is not None, "it is evaluated"
        assert self._state is not None, "it was read"
        self._candidate = None
        evaluation = evaluate(
            _scores(texts, None), _scores(texts, self.adapter), _scores(texts, candidate)
        )
        if evaluation.outcome is Outcome.ADOPTED:
            state = self._add(candidate, evaluation, self._state)
            if state is None:  # reset or rolled back meanwhile
                self.read()
                return replace(evaluation, outcome=Outcome.REJECTED)
            self._state = state
            self.adapter = candidate
            self._adaptation.merge(candidate.placed)
            self._trained_tokens = 0
            self.seconds = self.cpu_seconds = 0.0
            self.unsaved = True
        elif evaluation.outcome is Outcome.ROLLED_BACK:
            self._store.roll_back()
            self._state = self._store.read()
            self.adapter = self._of_version(self._state.used)
            self._drop_training()
        kept = {_digest(None), _digest(self.adapter)}
        for each in (*texts, *self._recent):
            each.scores = {key: score for key, score in each.scores.items() if key in kept}
        if self.schedule.evaluated(gained=evaluation.after > evaluation.before):
            self._drop_training()
        return evaluation

    # On the engine thread.

    def work(self, cancelled: Callable[[], bool]) -> bool:
        """Take one training step, or score one text; returns whether it was a step. Raises
        ForwardCancelled."""
        if self._candidate is None and self._unscored() is None:
            if not self.schedule.evaluates or self._trainer is None:
                self._step(cancelled)
                return True
            self._candidate = Adapter.of(self._trainer.weights(), self._adaptation)
            self._candidate_texts = self._validation
        if (unscored := self._unscored()) is not None:
            text, adapter = unscored
            placed = None if adapter is None else adapter.placed
            score = self._adaptation.score(placed, text.window, cancelled)
            text.scores[_digest(adapter)] = score
        return False

    def _unscored(self) -> tuple[_Scored, Adapter | None] | None:
        """Return a text that an adapter, or the draft model alone, is still to be scored on. First
        the new ones: before anything is learned from them."""
        if (adapter := self.adapter) is not None:
            for text in self._recent:
                for each in (None, adapter):
                    if _digest(each) not in text.scores:
                        return text, each
        if (candidate := self._candidate) is not None:
            for each in (None, adapter, candidate):
                for text in self._candidate_texts:
                    if _digest(each) not in text.scores:
                        return text, each
        return None

    def _harms(self, adapter: Adapter) -> bool:
        """Return whether the adapter in use harms what is asked now."""
        both = {_BASE, adapter.digest}
        known = [scores for each in self._recent if (scores := each.scores).keys() >= both]
        base = [scores[_BASE] for scores in known]
        return falls_behind(base, [scores[adapter.digest] for scores in known])

    def _step(self, cancelled: Callable[[], bool]) -> None:
        if self._trainer is None:
            weights = None if self.adapter is None else self.adapter.weights
            self._trainer = self._adaptation.trainer(weights, {})
        # A step that was cancelled is taken again, by this process or the next.
        random = np.random.default_rng([*self._seed, self._steps])
        chances = 1 - random.random(2)
        text = self._texts[recent_index(len(self._texts), chances[0])]
        window = text.training_window(self._window, chances[1])
        self._trainer.step(window, cancelled)
        self._steps += 1
        self.schedule.trained(window.target_tokens)
        self._trained_tokens += len(window)
        self.unsaved = True

    def _take(self, text: Example) -> None:
        """Take a text into memory."""
        if text.validates:
            new = _Scored(text.validation_window(self._window))
            self._validation = (*self._validation, new)[-MAX_VALIDATION_TEXTS:]
        else:
            self._texts.append(text)

    def _add(
        self, candidate: Adapter, evaluation: Evaluation, state: LearningState
    ) -> LearningState | None:
        version = Version(
            number=0,
            acceptance_without=evaluation.base,
            acceptance_before=evaluation.before,
            acceptance_after=evaluation.after,
            held_back_tokens=sum(each.window.target_tokens for each in self._candidate_texts),
            trained_tokens=self._trained_tokens,
            seconds=self.seconds,
            cpu_seconds=self.cpu_seconds,
            made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        return self._store.add(state, candidate.weights, version)

    def _of_version(self, number: int) -> Adapter | None:
        """Return the adapter of a version, as answers use it; None, with one warning, where it
        cannot be used."""
        weights = self._store.weights(number) if number else None
        if weights is None:
            return None
        try:
            adapter = Adapter.of(weights, self._adaptation)
            self._adaptation.merge(adapter.placed)
        except Exception as error:  # whatever the file had, answers go on
            log.warning("an adapter is left out", version=number, reason=str(error) or repr(error))
            return None
        return adapter

    def _resumed(self, state: LearningState) -> bool:
        """Go on with the training that an earlier process kept; returns whether there is one."""
        kept = self._store.training(state)
        numbers = kept.pop(_SCHEDULE, None)
        if not kept or numbers is None:
            return False
        try:
            backlog, unevaluated, failures, tokens, steps = map(int, numbers)
            self._trainer = self._adaptation.trainer(None, kept)
        except Exception as error:  # likewise
            log.warning("training is begun anew", reason=str(error) or repr(error))
            return False
        self._trained_tokens, self._steps = tokens, max(0, steps)
        self.schedule = TrainingSchedule(backlog, unevaluated, failures)
        return True

    def _begin_anew(self) -> None:
        self.schedule = TrainingSchedule()
        self._drop_training()

    def _drop_training(self) -> None:
        self._trainer = None
        self._candidate = None
        self._trained_tokens = 0
        self.unsaved = False


def _digest(adapter: Adapter | None) -> bytes:
    return _BASE if adapter is None else adapter.digest


def _scores(texts: Sequence[_Scored], adapter: Adapter | None) -> list[Score]:
    """Return the scores of an adapter, or of the draft model alone, on texts that have them."""
    return [each.scores[_digest(adapter)] for each in texts]
