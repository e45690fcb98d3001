"""What the draft model learns from one tenant's texts: these, the adapter in use, and the one in
training.

Methods say where they run. On the worker they read and write files, one at a time; `work` runs on
the engine thread, one training step or one judged text at a time, and ends early when it is
cancelled. Invariant: a step that is cancelled, or killed with the process, changes nothing."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from tandem.backends.adaptation import (
    Adaptation,
    AdapterTrainer,
    JudgedText,
    Overlap,
    Weights,
)
from tandem.core.randomness import Purpose, SeededRandom
from tandem.learning.adoption import (
    Judgement,
    Outcome,
    enough_to_judge,
    falls_behind,
    judge,
)
from tandem.learning.held_back import is_held_back
from tandem.learning.replay import ReplayStore
from tandem.learning.schedule import TrainingSchedule
from tandem.learning.versions import TEXTS, AdapterVersions, LearningState, Version
from tandem.learning.windows import drawn_index, drawn_part, judged_part
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

MOST_HELD_BACK = 48
"""Texts: the newest ones judge."""
MOST_TEXTS = 2000
"""That are trained on; the newest ones."""
PART_TOKENS = 128
"""Of a text, at once."""
MOST_RECENT = 8
"""Texts: the newest ones say whether the adapter in use serves what is asked now."""
LEAST_TEXTS = 4
_SCHEDULE = "schedule"


@dataclass(frozen=True, slots=True)
class LearningSetup:
    """What all tenants share: the draft model's `adaptation`, its vocabulary, a hash of its
    weights, and the most bytes of texts that are kept for each tenant."""

    adaptation: Adaptation
    vocabulary_hash: str
    vocabulary_size: int
    model_hash: str
    most_bytes: int

    @property
    def model(self) -> str:
        """What adapters belong to."""
        text = f"{self.model_hash}\n{self.adaptation.layout}"
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class UsedAdapter:
    """An adapter as sessions use it, and its weights; `identity` is a digest of these."""

    placed: object
    weights: Weights
    identity: bytes
    _broken: threading.Event = field(default_factory=threading.Event)

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


@dataclass(slots=True)
class _Judging:
    """A new adapter while it is judged: held-back texts, the parts of them that judge, and what is
    known of these so far, by the name of the adapter and the index of the part."""

    texts: list[JudgedText]
    parts: list[JudgedText]
    weights: Weights
    adapters: dict[str, object | None]
    overlaps: dict[tuple[str, int], Overlap] = field(default_factory=dict)

    def next(self) -> tuple[str, int] | None:
        """Return an adapter and a part that are still to be scored."""
        keys = ((name, index) for name in self.adapters for index in range(len(self.parts)))
        return next((key for key in keys if key not in self.overlaps), None)

    def of(self, name: str) -> list[Overlap]:
        """Return the scores of an adapter; where none is in use, those without any."""
        name = name if name in self.adapters else _FROZEN
        return [self.overlaps[name, index] for index in range(len(self.parts))]


@dataclass(slots=True)
class _RecentText:
    """The part of a new text that judges, and its scores by the identity of an adapter."""

    part: JudgedText
    overlaps: dict[bytes, Overlap] = field(default_factory=dict)


_FROZEN = "frozen"
_USED = "used"
_NEW = "new"


class TenantLearning:
    """One tenant's learning, in its folder."""

    def __init__(self, folder: Path, setup: LearningSetup) -> None:
        self._setup = setup
        self._part = min(PART_TOKENS, setup.adaptation.most_tokens)
        self._versions = AdapterVersions(folder, setup.model)
        self._store = ReplayStore(
            folder / TEXTS, setup.most_bytes, setup.vocabulary_hash, setup.vocabulary_size
        )
        self._texts: deque[JudgedText] = deque(maxlen=MOST_TEXTS)
        self._held_back: deque[JudgedText] = deque(maxlen=MOST_HELD_BACK)
        self._judging_tokens = 0
        self._recent: tuple[_RecentText, ...] = ()
        """Those that came while an adapter was in use; replaced as a whole, since other threads
        read it."""
        self._state: LearningState | None = None
        self.used: UsedAdapter | None = None
        """The adapter of the version in use."""
        self.schedule = TrainingSchedule()
        self._random = SeededRandom(_seed(folder.name))
        self._steps = 0
        """Taken so far, which is the position of what is random in the next one."""
        self._trainer: AdapterTrainer | None = None
        self._judging: _Judging | None = None
        self._scores: dict[tuple[bytes, int], Overlap] = {}
        """Of held-back texts, by the digest of an adapter and the identity of the text."""
        self._scored: list[JudgedText] = []
        """Those texts, which live as long as their identities are used."""
        self._trained_tokens = 0
        self.seconds = self.cpu_seconds = 0.0
        """Of training and judging, since the last version."""
        self.unsaved = False
        """True if steps were taken since the training was kept on disk."""

    # On the event loop.

    @property
    def outdated(self) -> bool:
        """True if the files must be read before an answer begins."""
        return self._state is None or self._versions.changed

    @property
    def chosen(self) -> UsedAdapter | None:
        """What sessions that begin now use: the adapter in use, unless the newest texts are of a
        kind that it harms."""
        return None if self.used is None or self.set_aside or not self.used.works else self.used

    @property
    def set_aside(self) -> bool:
        """True if the adapter in use harms what is asked now."""
        if self.used is None:
            return False
        identity = self.used.identity
        known = [each.overlaps for each in self._recent if each.overlaps.keys() >= {b"", identity}]
        frozen = [overlaps[b""] for overlaps in known]
        return falls_behind(frozen, [overlaps[identity] for overlaps in known])

    @property
    def due(self) -> bool:
        """True if there is something to train or to judge."""
        if self._judging is not None or self._unscored() is not None:
            return True
        judges = enough_to_judge(len(self._held_back), self._judging_tokens)
        trains = self.schedule.backlog > 0 or self.schedule.judges
        return trains and judges and len(self._texts) >= LEAST_TEXTS

    @property
    def judgement(self) -> Judgement | None:
        """The outcome of a judgement that has ended; None while there is none."""
        judging = self._judging
        if judging is None or judging.next() is not None:
            return None
        return judge(judging.of(_FROZEN), judging.of(_USED), judging.of(_NEW))

    @property
    def stored_bytes(self) -> int:
        return self._store.size_bytes

    # On the worker.

    def read(self) -> None:
        """Read what is on disk, and drop what is in memory of another state. Raises OSError."""
        state = self._versions.read()
        before = self._state
        if before is None or state.generation != before.generation:
            self._forget()
            for text in self._store.read():
                self._take(text)
        elif state.used != before.used:  # somebody rolled back: new texts are to say more
            self._drop_training()
            self.schedule = TrainingSchedule()
        self._state = state
        self.used = self._placed(state.used)
        if before is None:
            self._resume(state)

    def record(self, text: JudgedText) -> None:
        """Keep a text to learn from. Raises OSError."""
        if self.outdated:
            self.read()
        self._store.add(text)
        if self.used is not None:
            new = _RecentText(judged_part(text, self._part))
            self._recent = (*self._recent, new)[-MOST_RECENT:]
        if not self._take(text):
            self.schedule.recorded(text.judged)

    def keep_training(self) -> None:
        """Keep what is in training on disk. Raises OSError."""
        if self._trainer is None or self._state is None or not self.unsaved:
            return
        schedule = self.schedule
        numbers = [
            *(schedule.backlog, schedule.unjudged, schedule.failures),
            *(self._trained_tokens, self._steps),
        ]
        tensors = {**self._trainer.state(), _SCHEDULE: np.array(numbers, dtype=np.int64)}
        self.unsaved = False
        self._versions.keep_training(self._state, tensors)

    def conclude(self, judgement: Judgement) -> Outcome:
        """Do what a judgement says, once it has ended; returns what was done. Raises OSError, with
        the adapter in use unchanged."""
        judging, self._judging = self._judging, None
        assert judging is not None, "nothing was judged"
        assert self._state is not None, "it was read"
        if judgement.outcome is Outcome.ADOPTED:
            version = Version(
                number=0,
                frozen=judgement.frozen,
                before=judgement.before,
                after=judgement.after,
                held_back_tokens=sum(part.judged for part in judging.parts),
                trained_tokens=self._trained_tokens,
                seconds=self.seconds,
                cpu_seconds=self.cpu_seconds,
                made_at=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            state = self._versions.add(self._state, judging.weights, version)
            if state is None:  # reset or rolled back meanwhile
                self.read()
                return Outcome.REJECTED
            self._state = state
            self.used = _used(judging.adapters[_NEW], judging.weights)
            self._setup.adaptation.merge(self.used.placed)
            self._trained_tokens = 0
            self.seconds = self.cpu_seconds = 0.0
            self.unsaved = True
        elif judgement.outcome is Outcome.ROLLED_BACK:
            self._versions.roll_back()
            self._state = self._versions.read()
            self.used = self._placed(self._state.used)
            self._drop_training()
        if self.schedule.judged(gained=judgement.after > judgement.before):
            self._drop_training()
        return judgement.outcome

    # On the engine thread.

    def work(self, cancelled: Callable[[], bool]) -> bool:
        """Take one training step, or judge one text; returns whether it was a step. Raises
        ForwardCancelled."""
        if (recent := self._unscored()) is not None:
            self._score(*recent, cancelled)
            return False
        if self._judging is None and self.schedule.judges and self._trainer is not None:
            self._begin_judging(self._trainer.weights())
        if (judging := self._judging) is not None:
            if (key := judging.next()) is not None:
                name, index = key
                judging.overlaps[key] = overlap = self._setup.adaptation.overlap(
                    judging.adapters[name], judging.parts[index], cancelled
                )
                if name != _NEW:
                    self._scores[self._identity_of(name), id(judging.texts[index])] = overlap
            return False
        self._step(cancelled)
        return True

    def _unscored(self) -> tuple[_RecentText, bytes] | None:
        """Return a new text, and the identity of the adapter in use, or b"" for the draft model
        without any, which is still to be scored on it: before anything is learned from the text."""
        if self.used is None:
            return None
        pairs = (
            (text, identity) for text in self._recent for identity in (b"", self.used.identity)
        )
        return next(((text, key) for text, key in pairs if key not in text.overlaps), None)

    def _score(self, text: _RecentText, identity: bytes, cancelled: Callable[[], bool]) -> None:
        adapter = self.used.placed if identity and self.used is not None else None
        before = self.set_aside
        text.overlaps[identity] = self._setup.adaptation.overlap(adapter, text.part, cancelled)
        if self.set_aside != before:
            log.info("an adapter was looked at", harms_what_is_asked=not before)

    def _step(self, cancelled: Callable[[], bool]) -> None:
        if self._trainer is None:
            weights = None if self.used is None else self.used.weights
            self._trainer = self._setup.adaptation.trainer(weights, {})
        chances = [
            self._random.uniform(self._steps, purpose)
            for purpose in (Purpose.LEARNED_TEXT, Purpose.LEARNED_PART)
        ]
        text = self._texts[drawn_index(len(self._texts), chances[0])]
        part = drawn_part(text, self._part, chances[1])
        self._trainer.step(part, cancelled)
        self._steps += 1
        self.schedule.trained(part.judged)
        self._trained_tokens += len(part)
        self.unsaved = True

    def _begin_judging(self, weights: Weights) -> None:
        adapters: dict[str, object | None] = {_FROZEN: None}
        if self.used is not None:
            adapters[_USED] = self.used.placed
        adapters[_NEW] = self._setup.adaptation.place(weights)
        texts = list(self._held_back)
        parts = [judged_part(text, self._part) for text in texts]
        self._judging = judging = _Judging(texts, parts, weights, adapters)
        before, self._scores = self._scores, {}
        self._scored = texts
        for name in (_FROZEN, _USED):
            for index, text in enumerate(texts):
                key = self._identity_of(name), id(text)
                if name in adapters and key in before:
                    self._scores[key] = judging.overlaps[name, index] = before[key]

    def _identity_of(self, name: str) -> bytes:
        """Return the digest of the adapter that has this name in a judgement; b"" of none."""
        return self.used.identity if name == _USED and self.used is not None else b""

    def _take(self, text: JudgedText) -> bool:
        """Take a text into memory; returns whether it is held back."""
        if not is_held_back(text):
            self._texts.append(text)
            return False
        self._held_back.append(text)
        parts = (judged_part(each, self._part) for each in self._held_back)
        self._judging_tokens = sum(part.judged for part in parts)
        return True

    def _placed(self, number: int) -> UsedAdapter | None:
        weights = self._versions.weights(number) if number else None
        if weights is None:
            return None
        try:
            placed = self._setup.adaptation.place(weights)
            self._setup.adaptation.merge(placed)
        except Exception as error:  # whatever the file had, answers go on
            log.warning("an adapter is left out", version=number, reason=str(error) or repr(error))
            return None
        return _used(placed, weights)

    def _resume(self, state: LearningState) -> None:
        """Go on with the training that an earlier process kept; without any, learn from the texts
        that are there."""
        kept = self._versions.training(state)
        numbers = kept.pop(_SCHEDULE, None)
        if kept and numbers is not None and numbers.shape == (5,):
            try:
                backlog, unjudged, failures, *counts = map(int, numbers)
                self._trainer = self._setup.adaptation.trainer(None, kept)
            except Exception as error:  # likewise
                log.warning("training is begun anew", reason=str(error) or repr(error))
            else:
                self._trained_tokens, self._steps = counts
                self.schedule = TrainingSchedule(backlog, unjudged, failures)
                return
        if not state.newest:
            self.schedule.recorded(sum(text.judged for text in self._texts))

    def _forget(self) -> None:
        self._texts.clear()
        self._held_back.clear()
        self._scores.clear()
        self._recent = ()
        self._judging_tokens = 0
        self.schedule = TrainingSchedule()
        self._drop_training()

    def _drop_training(self) -> None:
        self._trainer = None
        self._judging = None
        self._trained_tokens = 0
        self.unsaved = False


def _used(placed: object, weights: Weights) -> UsedAdapter:
    return UsedAdapter(placed, weights, hashlib.sha256(weights.tobytes()).digest()[:8])


def _seed(name: str) -> int:
    """Return what is random in the learning of the tenant whose folder has this name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
