"""What every engine promises, whatever computes the logits."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tandem.core.errors import InvalidArgument
from tandem.engine.base import Engine, ForwardCancelled, Segment, Session
from tandem.engine.paced import PacedEngine
from tandem.engine.scripted import ScriptedEngine, scripted_law
from tandem.engine.translated import TranslatedEngine
from tests.unit.engine.reference_models import VOCABULARY, pair, tokens
from tests.unit.engine.test_translated import translated_engine

CONTEXT = 640
Row = NDArray[np.float32]


def scripted() -> Engine:
    law = scripted_law(3, VOCABULARY, order=50)
    return ScriptedEngine(VOCABULARY, law, context_length=CONTEXT)


MAKERS: dict[str, Callable[[], Engine]] = {
    "scripted": scripted,
    "translated": translated_engine,
    "paced": lambda: PacedEngine(scripted(), 0.0, 0.0),
    "lean": lambda: pair("mistral").engine,
    "general": lambda: pair("gemma2", lean=False).engine,
}


@pytest.fixture(params=MAKERS)
def engine(request: pytest.FixtureRequest) -> Engine:
    return MAKERS[request.param]()


def feed(engine: Engine, session: Session, token_ids: list[int]) -> Row:
    """Logits after the last of the tokens."""
    (logits,) = engine.forward([Segment(session, tuple(token_ids), 1)])
    assert logits.dtype == np.float32
    assert logits.shape == (1, engine.vocabulary_size)
    last: Row = logits[0]
    return last


def fresh(engine: Engine, token_ids: list[int]) -> Row:
    """Logits after a sequence fed at once to a session of its own."""
    session = engine.open(CONTEXT)
    logits = feed(engine, session, token_ids)
    session.close()
    return logits


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("token_ids", {"token_ids": ()}),
        ("token_ids", {"token_ids": (1, VOCABULARY)}),
        ("token_ids", {"token_ids": (-1,)}),
        ("token_ids", {"token_ids": tuple(range(9))}),
        ("wanted", {"wanted": 4}),
        ("wanted", {"wanted": -1}),
        ("parents", {"parents": (-1, 0)}),
        ("parents", {"parents": (-1, 1, 0)}),
    ],
)
def test_a_bad_segment_is_refused_before_anything_changes(
    engine: Engine, field: str, change: dict[str, Any]
) -> None:
    good, session = engine.open(20), engine.open(10)
    feed(engine, good, [7])
    feed(engine, session, [5, 6])
    bad = replace(Segment(session, (1, 2, 3), 1), **change)
    with pytest.raises(InvalidArgument) as caught:
        engine.forward([Segment(good, (8, 9), 1), bad])
    assert caught.value.field == field
    assert (good.length, session.length) == (1, 2)
    assert np.allclose(feed(engine, session, [4]), fresh(engine, [5, 6, 4]), atol=1e-5)
    good.close()
    session.close()


def test_a_session_appears_once_in_a_batch(engine: Engine) -> None:
    session = engine.open(10)
    with pytest.raises(InvalidArgument, match="twice"):
        engine.forward([Segment(session, (1,), 1), Segment(session, (2,), 1)])
    assert session.length == 0
    session.close()


def test_closed_and_foreign_sessions_are_refused(engine: Engine) -> None:
    session, foreign = engine.open(10), scripted().open(10)
    session.close()
    session.close()
    for wrong in (session, foreign):
        with pytest.raises(InvalidArgument, match="session"):
            engine.forward([Segment(wrong, (1,), 1)])
        with pytest.raises(InvalidArgument, match="session"):
            engine.fork(wrong, 0, 10)
    with pytest.raises(InvalidArgument, match="session"):
        session.rollback(0)
    with pytest.raises(InvalidArgument, match="session"):
        session.keep_path([])


def test_capacities_are_bounded_by_the_context_length(engine: Engine) -> None:
    for capacity in (0, -1, engine.context_length + 1):
        with pytest.raises(InvalidArgument, match="capacity"):
            engine.open(capacity)
    parent = engine.open(10)
    feed(engine, parent, [1, 2, 3])
    for length, capacity, field in ((4, 9, "length"), (-1, 9, "length"), (3, 2, "capacity")):
        with pytest.raises(InvalidArgument, match=field):
            engine.fork(parent, length, capacity)
    assert engine.sessions_open == 1
    parent.close()


def test_rollback_stays_within_the_session(engine: Engine) -> None:
    session = engine.open(10)
    feed(engine, session, [1, 2, 3])
    for length in (4, -1):
        with pytest.raises(InvalidArgument, match="length"):
            session.rollback(length)
    assert session.length == 3
    session.close()


def test_bytes_and_sessions_return_to_zero(engine: Engine) -> None:
    assert (engine.kv_bytes_in_use, engine.sessions_open) == (0, 0)
    parent = engine.open(30)
    feed(engine, parent, tokens(20, seed=1))
    child = engine.fork(parent, 15, 40)
    if not isinstance(engine, TranslatedEngine):  # its tokens are several of another engine
        assert engine.kv_bytes_in_use == (30 + 25) * engine.kv_bytes_per_token
    assert engine.sessions_open == 2
    parent.close()
    child.close()
    assert (engine.kv_bytes_in_use, engine.sessions_open) == (0, 0)


def test_an_empty_batch_is_answered(engine: Engine) -> None:
    assert engine.forward([]) == []


def test_nothing_wanted_is_an_empty_answer(engine: Engine) -> None:
    session = engine.open(10)
    (logits,) = engine.forward([Segment(session, (1, 2), 0)])
    assert logits.shape == (0, engine.vocabulary_size)
    assert session.length == 2
    session.close()


def test_a_tree_is_pending_until_a_path_is_kept(engine: Engine) -> None:
    session = engine.open(20)
    feed(engine, session, [5, 6])
    engine.forward([Segment(session, (7, 8, 9, 10), 4, (-1, 0, 0, 2))])
    assert session.length == 2
    with pytest.raises(InvalidArgument, match="indices"):
        session.keep_path([0, 3])
    session.keep_path([0, 2, 3])
    assert session.length == 5
    with pytest.raises(InvalidArgument, match="no tree"):
        session.keep_path([0])
    assert np.allclose(feed(engine, session, [11]), fresh(engine, [5, 6, 7, 9, 10, 11]), atol=1e-5)
    session.close()


def state_of(session: Session) -> tuple[int, tuple[int, ...] | None]:
    return session.length, session.tree


def test_a_tree_grows_layer_by_layer(engine: Engine) -> None:
    """Each node's logits are those of its own path; a kept path needs no further pass."""
    session = engine.open(20)
    feed(engine, session, [5, 6])
    engine.forward([Segment(session, (7, 8), 0, (-1, -1))])
    assert state_of(session) == (2, (-1, -1))
    (second,) = engine.forward([Segment(session, (9, 10, 11), 3, (1, 0, 0), grows=True)])
    (third,) = engine.forward([Segment(session, (12,), 1, (2,), grows=True)])
    assert state_of(session) == (2, (-1, -1, 1, 0, 0, 2))
    paths = [[8, 9], [7, 10], [7, 11], [8, 9, 12]]
    for row, path in zip([*second, *third], paths, strict=True):
        assert np.allclose(row, fresh(engine, [5, 6, *path]), atol=1e-5)
    session.keep_path([1, 2, 5])
    assert state_of(session) == (5, None)
    assert np.allclose(feed(engine, session, [13]), fresh(engine, [5, 6, 8, 9, 12, 13]), atol=1e-5)
    session.close()


def test_only_a_pending_tree_grows(engine: Engine) -> None:
    session = engine.open(20)
    feed(engine, session, [5, 6])
    for parents in ((-1,), None):
        with pytest.raises(InvalidArgument, match="grows"):
            engine.forward([Segment(session, (7,), 1, parents, grows=True)])
    engine.forward([Segment(session, (7, 8), 0, (-1, -1))])
    with pytest.raises(InvalidArgument, match="parents"):
        engine.forward([Segment(session, (9,), 1, (2,), grows=True)])
    assert session.tree == (-1, -1)
    session.close()


def test_branches_may_outnumber_the_capacity_but_not_outgrow_it(engine: Engine) -> None:
    session = engine.open(4, spare=6)
    assert (session.capacity, session.slots) == (4, 10)
    feed(engine, session, [5, 6])
    engine.forward([Segment(session, tuple(range(5, 13)), 1, (-1,) * 4 + (0,) * 4)])
    session.keep_path([0, 4])
    assert session.length == session.capacity
    session.rollback(2)
    for nodes, parents in ((9, (-1,) * 9), (3, (-1, 0, 1))):
        with pytest.raises(InvalidArgument, match="token_ids"):
            engine.forward([Segment(session, (7,) * nodes, 1, parents)])
    with pytest.raises(InvalidArgument, match="token_ids"):
        engine.forward([Segment(session, (7, 8, 9), 1)])
    engine.forward([Segment(session, (7,) * 6, 1, (-1,) * 6)])
    with pytest.raises(InvalidArgument, match="token_ids"):
        engine.forward([Segment(session, (7,) * 3, 1, (0,) * 3, grows=True)])
    session.close()


@pytest.mark.parametrize("forget", ["forward", "rollback", "cancel"])
def test_a_tree_that_is_not_kept_is_forgotten(engine: Engine, forget: str) -> None:
    session = engine.open(20)
    feed(engine, session, [5, 6])
    engine.forward([Segment(session, (7, 8), 1, (-1, -1))])
    if forget == "forward":
        feed(engine, session, [9])
        session.rollback(2)
    elif forget == "rollback":
        session.rollback(2)
    else:
        with pytest.raises(ForwardCancelled):
            engine.forward([Segment(session, (7,), 1)], lambda: True)
    with pytest.raises(InvalidArgument, match="no tree"):
        session.keep_path([0])
    assert np.allclose(feed(engine, session, [10]), fresh(engine, [5, 6, 10]), atol=1e-5)
    session.close()


def test_random_histories_leave_what_a_fresh_session_has(engine: Engine) -> None:
    """Feeds, trees, rollbacks, forks and closings in any order; a list of tokens is the model."""
    random = np.random.default_rng(11)
    live: list[tuple[Session, list[int]]] = [(engine.open(80), [])]
    for _ in range(120):
        session, mirror = live[random.integers(len(live))]
        action = random.choice(["feed", "feed", "tree", "rollback", "fork", "close"])
        new = random.integers(3, VOCABULARY, random.integers(1, 7)).tolist()
        if action == "feed" and len(mirror) + len(new) <= 80:
            engine.forward([Segment(session, tuple(new), 0)])
            mirror += new
        elif action == "tree" and len(mirror) + len(new) <= 80:
            parents = tuple(int(random.integers(-1, node)) for node in range(len(new)))
            first = int(random.integers(1, len(new) + 1))
            engine.forward([Segment(session, tuple(new[:first]), 0, parents[:first])])
            if first < len(new):
                more = Segment(session, tuple(new[first:]), 0, parents[first:], grows=True)
                engine.forward([more])
            path = path_to(parents, int(random.integers(len(new))))
            session.keep_path(path)
            mirror += [new[node] for node in path]
        elif action == "rollback":
            length = int(random.integers(len(mirror) + 1))
            session.rollback(length)
            del mirror[length:]
        elif action == "fork" and len(live) < 6:
            length = int(random.integers(len(mirror) + 1))
            live.append((engine.fork(session, length, 80), mirror[:length]))
        elif action == "close" and len(live) > 1:
            live.remove((session, mirror))
            session.close()
        assert [one.length for one, _ in live] == [len(tokens_fed) for _, tokens_fed in live]
    room = [(session, mirror) for session, mirror in live if len(mirror) < 80]
    answers = engine.forward([Segment(session, (9,), 1) for session, _ in room])
    for logits, (_, mirror) in zip(answers, room, strict=True):
        assert np.allclose(logits[0], fresh(engine, [*mirror, 9]), atol=1e-5)
    for session, _ in live:
        session.close()
    assert (engine.kv_bytes_in_use, engine.sessions_open) == (0, 0)


def path_to(parents: tuple[int, ...], node: int) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.insert(0, node)
        node = parents[node]
    return path
