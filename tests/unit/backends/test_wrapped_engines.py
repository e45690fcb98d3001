"""Engines around engines, in the stacks that services make of them: any history of a session leaves
the logits of a plain engine that is fed the whole text anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest

from tandem.backends import request_checks
from tandem.backends.cross_vocabulary.engine import TranslatedEngine
from tandem.backends.interface import (
    Engine,
    EngineFailed,
    ForwardCancelled,
    ForwardRequest,
    Logits,
    Session,
    never,
)
from tandem.backends.sliding_window import SlidingWindowEngine, window_start
from tandem.testing.scripted import ScriptedEngine, scripted_probs
from tandem.text.translation import Translation
from tandem.text.vocabulary import Vocabulary, intersect
from tests.unit.backends.test_contract import path_to

LETTERS = 20
BOS = LETTERS
DRAFT_SIZE = LETTERS + 1
TARGET_SIZE = 60
ORDER = 400
"""Tokens that a distribution depends on: all there are."""
WINDOW = 40
SPARE = 8
LONG = 150
SHORT = 24
LEAST_READ = 10
"""Tokens of a text that are read in any case."""
CHOICES = range(5, 50)
"""Tokens of either vocabulary that texts are made of."""


class Flaky(ScriptedEngine):
    """Fails a pass on request, after a part of it ran, as an engine that makes several of one."""

    def __init__(self, vocabulary_size: int, context_length: int) -> None:
        probs = scripted_probs(3, vocabulary_size, order=ORDER)
        super().__init__(vocabulary_size, probs, context_length=context_length)
        self.passes_before_failure: int | None = None
        self.runs_of_failing = 0
        self.fed = 0

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        if self.passes_before_failure is not None:
            self.passes_before_failure -= 1
            if self.passes_before_failure < 0:
                self.passes_before_failure = None
                super().forward(batch[: self.runs_of_failing])
                raise EngineFailed("after a part of the pass")
        self.fed += sum(len(request.token_ids) for request in batch)
        return super().forward(batch, cancelled)


def translation() -> Translation:
    """Most target tokens are a letter, every fifth is a word of two: a text never outgrows the room
    of two letters a token."""
    draft = Vocabulary(
        DRAFT_SIZE, {i: bytes([i]) for i in range(LETTERS)}, specials={BOS: "<s>"}, bos=BOS
    )
    pieces = {
        i: bytes([(i * 7) % LETTERS, i % LETTERS][: 1 + (i % 5 == 0)]) for i in range(TARGET_SIZE)
    }
    target = Vocabulary(TARGET_SIZE, pieces)
    return Translation(draft, target, intersect(draft, target), starts_with_bos=True)


def translated(engine: Engine) -> TranslatedEngine:
    return TranslatedEngine(
        engine, translation(), vocabulary_hash="target", eos_token_ids=frozenset()
    )


@dataclass
class Stack:
    """Engines around `plain`, and what these make of a text: which tokens are read, and how."""

    engine: Engine
    plain: Flaky
    translates: bool
    window: int | None = None
    """Tokens of a long session that are read; None where no session is longer than the engine's
    context."""
    forgets: bool = False
    """Whether a text may outgrow its room, so that the plain engine reads its end: how much of it
    follows from the history."""
    fresh: ScriptedEngine = field(init=False)

    def __post_init__(self) -> None:
        probs = scripted_probs(3, self.plain.vocabulary_size, order=ORDER)
        self.fresh = ScriptedEngine(self.plain.vocabulary_size, probs, context_length=1024)

    def after(self, text: list[int], capacity: int, decides: int) -> Logits:
        """The logits after a text, of a plain engine fed anew. `decides`: the length by which a
        long session chooses where reading begins."""
        if self.window is not None and capacity > WINDOW:
            text = text[window_start(decides, self.window) :]
        if not self.translates:
            return self._row(text)
        told = translation()
        first, *later = text
        ids = [*told.first(first), *(i for token in later for i in told.draft_ids(token))]
        restricted: Logits = told.intersection.restricted(self._row(ids)[None])[0]
        return restricted

    def _row(self, token_ids: Sequence[int]) -> Logits:
        session = self.fresh.open(len(token_ids))
        (logits,) = self.fresh.forward([ForwardRequest(session, tuple(token_ids), 1)])
        session.close()
        row: Logits = logits[0]
        return row


def windowed() -> Stack:
    plain = Flaky(TARGET_SIZE, WINDOW)
    return Stack(SlidingWindowEngine(plain), plain, translates=False, window=WINDOW - SPARE)


def of_another_vocabulary() -> Stack:
    plain = Flaky(DRAFT_SIZE, 1024)
    return Stack(translated(plain), plain, translates=True)


def forgetting() -> Stack:
    """The room is the plain engine's context, of as many letters as 32 words have."""
    plain = Flaky(DRAFT_SIZE, 64)
    return Stack(translated(plain), plain, translates=True, forgets=True)


def windowed_over_translated() -> Stack:
    """What a drafter makes of a draft model with another tokenizer."""
    plain = Flaky(DRAFT_SIZE, 1024)
    inner = translated(plain)
    inner.context_length = WINDOW  # sessions of that have room for as many words
    return Stack(SlidingWindowEngine(inner), plain, translates=True, window=WINDOW - SPARE)


def translated_over_windowed() -> Stack:
    plain = Flaky(DRAFT_SIZE, 1024)
    return Stack(translated(SlidingWindowEngine(plain)), plain, translates=True)


def three_deep() -> Stack:
    plain = Flaky(DRAFT_SIZE, 1024)
    inner = translated(SlidingWindowEngine(plain))
    inner.context_length = WINDOW
    return Stack(SlidingWindowEngine(inner), plain, translates=True, window=WINDOW - SPARE)


STACKS = (
    windowed,
    of_another_vocabulary,
    forgetting,
    windowed_over_translated,
    translated_over_windowed,
    three_deep,
)


OPERATIONS = ("feed", "feed", "feed", "tree", "tree", "rollback", "fork", "open", "close")


@dataclass(eq=False)
class Mirror:
    """A session and the text it should hold."""

    session: Session
    capacity: int
    spare: int
    text: list[int] = field(default_factory=list)


class History:
    """Random operations on the sessions of a stack; each pass is checked row by row."""

    def __init__(self, stack: Stack, seed: int) -> None:
        self.stack = stack
        self.random = Random(seed)
        self.live: list[Mirror] = []
        self.done: set[str] = set()

    def run(self, steps: int) -> None:
        self.open()
        for _ in range(steps):
            name = self.random.choice(OPERATIONS)
            getattr(self, name)()
            self.done.add(name)
            for mirror in self.live:
                assert mirror.session.length == len(mirror.text)
                assert mirror.session.tree is None
        while self.live:
            self.live.pop().session.close()
        engine = self.stack.engine
        assert (engine.sessions_open, engine.kv_bytes_in_use) == (0, 0)
        assert self.stack.plain.sessions_open == 0

    def open(self) -> None:
        if len(self.live) < 5:
            longest = LONG if self.stack.window is not None else WINDOW
            capacity = self.random.choice([longest, longest, SHORT])
            session = self.stack.engine.open(capacity, SPARE)
            self.live.append(Mirror(session, capacity, SPARE))

    def close(self) -> None:
        if len(self.live) > 1:
            self.live.pop(self.random.randrange(len(self.live))).session.close()

    def fork(self) -> None:
        parent = self.random.choice(self.live)
        if len(self.live) < 5:
            length = self.random.randint(0, len(parent.text))
            session = self.stack.engine.fork(parent.session, length, parent.capacity)
            mirror = Mirror(session, parent.capacity, 0, parent.text[:length])
            self.live.append(mirror)

    def rollback(self) -> None:
        mirror = self.random.choice(self.live)
        least = self.random.choice([0, max(0, len(mirror.text) - 12)])
        length = self.random.randint(least, len(mirror.text))
        mirror.session.rollback(length)
        del mirror.text[length:]

    def feed(self) -> None:
        """A pass over several sessions at once."""
        some = [one for one in self.live if len(one.text) < one.capacity]
        some = self.random.sample(some, self.random.randint(min(1, len(some)), len(some)))
        chains = [self.chain(mirror) for mirror in some]
        self.committed(chains, self.passed(chains))

    def tree(self) -> None:
        """A tree in one or several layers, beside a chain of another session; then a path of it is
        kept, or none."""
        mirror = self.random.choice(self.live)
        room = mirror.capacity - len(mirror.text)
        if not mirror.spare or room < SPARE:
            return
        count = self.random.randint(1, SPARE)
        new = self.some_tokens(count)
        parents = tuple(self.random.randint(-1, node - 1) for node in range(count))
        decides = len(mirror.text) + SPARE
        begin = 0
        while begin < count:
            end = self.random.randint(begin + 1, count)
            layer = Layer(mirror.session, new, parents, begin, end)
            others = [one for one in self.live if len(one.text) < one.capacity]
            chains = [self.chain(one) for one in others[:1] if one is not mirror]
            rows, *answers = self.passed([layer, *chains])
            for node, row in zip(range(begin, end), rows, strict=True):
                path = [new[at] for at in path_to(parents, node)]
                self.check(mirror, row, [*mirror.text, *path], decides)
            self.committed(chains, answers)
            assert mirror.session.tree == parents[:end]
            begin = end
        path = path_to(parents, self.random.randrange(count)) if self.random.random() < 0.8 else []
        mirror.session.keep_path(path)
        mirror.text += [new[node] for node in path]

    def chain(self, mirror: Mirror) -> Chain:
        room = mirror.capacity - len(mirror.text)
        new = self.some_tokens(min(room, self.random.choice([1, 1, 1, 2, 5, 40])))
        return Chain(mirror, tuple(new), self.random.randint(0, min(len(new), 3)))

    def committed(self, chains: Sequence[Chain], answers: Sequence[Logits]) -> None:
        for chain, rows in zip(chains, answers, strict=True):
            mirror = chain.mirror
            mirror.text += chain.token_ids
            count = len(mirror.text)
            assert len(rows) == chain.logits_to_keep
            for length, row in enumerate(rows, start=count - len(rows) + 1):
                self.check(mirror, row, mirror.text[:length], decides=count)

    def passed(self, parts: Sequence[Chain | Layer]) -> list[Logits]:
        """A pass. Some end early at first, and are repeated as an engine thread does: after each
        request was made anew."""
        engine = self.stack.engine
        plain = self.stack.plain
        fault = self.random.random()

        def requests() -> list[ForwardRequest]:
            return [part.request() for part in parts]

        if fault < 0.15:
            answers = iter([False] * self.random.randint(0, 2))
            try:
                return engine.forward(requests(), lambda: next(answers, True))
            except ForwardCancelled:
                self.done.add("cancelled")
        elif fault < 0.35:
            plain.passes_before_failure = self.random.randint(0, 1)
            plain.runs_of_failing = self.random.randint(0, len(parts))
            try:
                return engine.forward(requests())
            except EngineFailed:
                self.done.add("failed")
            finally:
                plain.passes_before_failure = None
        return engine.forward(requests())

    def some_tokens(self, count: int) -> list[int]:
        return self.random.choices(CHOICES, k=count)

    def check(self, mirror: Mirror, row: Logits, text: list[int], decides: int) -> None:
        if not self.stack.forgets:
            want = self.stack.after(text, mirror.capacity, decides)
            np.testing.assert_array_equal(row, want)
            return
        ends = range(len(text), min(len(text), LEAST_READ) - 1, -1)
        whole = mirror.capacity, decides
        assert any(np.array_equal(row, self.stack.after(text[-end:], *whole)) for end in ends)


@dataclass
class Chain:
    """Tokens for a session; its request goes back to where they begin, as a job's does."""

    mirror: Mirror
    token_ids: tuple[int, ...]
    logits_to_keep: int

    def request(self) -> ForwardRequest:
        session = self.mirror.session
        if session.length > len(self.mirror.text):
            session.rollback(len(self.mirror.text))
        return ForwardRequest(session, self.token_ids, self.logits_to_keep)


@dataclass
class Layer:
    """Nodes `begin`..`end` - 1 of a tree; the request feeds all of them anew if the session has
    others than those before, as a tree's job does."""

    session: Session
    token_ids: list[int]
    parents: tuple[int, ...]
    begin: int
    end: int

    def request(self) -> ForwardRequest:
        held = len(self.session.tree or ())
        first = held if held == self.begin else 0
        return ForwardRequest(
            self.session,
            tuple(self.token_ids[first : self.end]),
            self.end - self.begin,
            self.parents[first : self.end],
            extends_tree=first > 0,
        )


@pytest.mark.parametrize("make", STACKS)
def test_any_history_leaves_what_the_whole_text_has(make: Callable[[], Stack]) -> None:
    done = set[str]()
    for seed in range(6):
        history = History(make(), seed)
        history.run(120)
        done |= history.done
    assert done == {*OPERATIONS, "cancelled", "failed"}


@pytest.mark.parametrize("make", STACKS)
def test_what_is_held_is_not_fed_again(make: Callable[[], Stack]) -> None:
    """A kept path, a prefix that a fork shares, and what is left after a rollback; 6 is a letter,
    and 5 a word of two."""
    stack = make()
    session = stack.engine.open(LONG if stack.window is not None else WINDOW, SPARE)
    words = 1 + stack.translates
    stack.engine.forward([ForwardRequest(session, (6,) * 20, 0)])
    assert fed(stack, ForwardRequest(session, (5, 6, 5), 0, (-1, -1, 0))) == 1 + 2 * words
    beside = stack.engine.fork(session, 20, WINDOW)
    assert beside.tree is None
    assert session.tree == (-1, -1, 0)
    session.keep_path([0, 2])
    assert fed(stack, ForwardRequest(session, (6,), 1)) == 1
    fork = stack.engine.fork(session, 22, WINDOW)
    assert fed(stack, ForwardRequest(fork, (5,), 1)) == words
    session.rollback(21)
    assert fed(stack, ForwardRequest(session, (6, 6), 1)) == 2


def fed(stack: Stack, request: ForwardRequest) -> int:
    """How many tokens the plain engine is fed for a request."""
    before = stack.plain.fed
    stack.engine.forward([request])
    return stack.plain.fed - before


def test_a_text_that_ends_before_what_is_held_is_read_from_its_beginning() -> None:
    """A room of 64 letters forgets the first 18 of 33 words."""
    stack = forgetting()
    session = stack.engine.open(WINDOW)
    stack.engine.forward([ForwardRequest(session, (5,) * 33, 0)])
    for length in (10, 17, 18):
        fork = stack.engine.fork(session, length, WINDOW)
        (logits,) = stack.engine.forward([ForwardRequest(fork, (6,), 1)])
        whole = [*[5] * length, 6]
        np.testing.assert_array_equal(logits[0], stack.after(whole, WINDOW, len(whole)))
        fork.close()


def test_a_chain_is_checked_once_by_the_engine_that_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked = list[tuple[Engine, tuple[int, ...]]]()
    check = request_checks._check_request

    def noted(request: ForwardRequest, engine: Engine) -> None:
        checked.append((engine, request.token_ids))
        check(request, engine)

    monkeypatch.setattr(request_checks, "_check_request", noted)
    stack = three_deep()
    session = stack.engine.open(LONG, SPARE)
    stack.engine.forward([ForwardRequest(session, (5, 6), 1)])
    assert checked == [(stack.engine, (5, 6))]
