"""What every engine promises, whatever computes the logits."""

import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tandem.backends.cross_vocabulary.engine import TranslatedEngine
from tandem.backends.factory import LOADERS, load_model
from tandem.backends.interface import (
    Capabilities,
    Engine,
    ForwardCancelled,
    ForwardRequest,
    Session,
)
from tandem.backends.model_source import ModelChoice
from tandem.backends.remote.dialects import Vllm
from tandem.backends.remote.engine import RemoteEngine
from tandem.backends.remote.server import RemoteServer
from tandem.core.errors import FailedPrecondition, InvalidArgument
from tandem.demo import demo_folder
from tandem.runtime.chunked_prefill import CHUNK_ROWS
from tandem.testing.paced import PacedEngine
from tandem.testing.remote_server import FakeServer, serving
from tandem.testing.scripted import ScriptedEngine, load, scripted_probs
from tests.howto.bigram_backend import BigramEngine

VOCABULARY = 211
CONTEXT = 640
BEYOND = 2**20
"""An id that no model of these tests has."""
Row = NDArray[np.float32]


def scripted() -> Engine:
    probs = scripted_probs(3, VOCABULARY, order=50)
    return ScriptedEngine(VOCABULARY, probs, context_length=CONTEXT)


# Imported when they are needed: a back end without torch is tested without it.
def translated() -> Engine:
    from tests.unit.backends.test_cross_vocabulary import translated_engine

    return translated_engine()


def hugging_face(name: str, fast_path: bool = True) -> Engine:
    from tests.unit.backends.reference_models import pair

    return pair(name, fast_path=fast_path).engine


def narrow(name: str, dtype: str) -> Callable[[], Engine]:
    """A demo model's weights in fewer bits."""
    return lambda: load_model(ModelChoice(str(demo_folder(name)), dtype=dtype)).engine


SOURCES = {
    "torch": "TINY",
    "llamacpp": "GGUF",
    "lookup": str(demo_folder("demo-target")),
    "remote": "a fake server",
}
"""A small model for each back end of the factory; TINY and GGUF are written for the test."""

VARIANTS: dict[str, Callable[[], Engine]] = {
    "scripted": lambda: load(ModelChoice("3")).engine,
    "scripted-long-memory": scripted,
    "translated": translated,
    "paced": lambda: PacedEngine(scripted(), 0.0, 0.0),
    "fast-path": lambda: hugging_face("mistral"),
    "generic": lambda: hugging_face("gemma2", fast_path=False),
    "bfloat16": narrow("demo-draft", "bfloat16"),
    "int8": narrow("demo-draft", "int8"),
    "int4": narrow("demo-draft", "int4"),
    "toy": lambda: BigramEngine(1, VOCABULARY),
}
INVARIANT = "llamacpp-batch-invariant"


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.unit.backends.tiny_folders import write_model

    return write_model(tmp_path_factory.mktemp("tiny"), "llama", size=VOCABULARY)


@pytest.fixture(scope="session")
def remote() -> Iterator[Engine]:
    """A server that tells of every token of a position."""
    fake = FakeServer(scripted_probs(3, VOCABULARY, order=50), VOCABULARY, max_logprobs=VOCABULARY)
    with serving(fake):
        engine = RemoteEngine(
            RemoteServer(fake.url),
            Vllm(),
            served_name=fake.model,
            model_name="fake",
            vocabulary_size=VOCABULARY,
            vocabulary_hash="hash",
            context_length=CONTEXT,
            known_tokens=VOCABULARY,
        )
        yield engine
        engine.close()


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.unit.backends.gguf_files import draft_gguf

    return draft_gguf(tmp_path_factory.mktemp("gguf"))


@pytest.fixture(scope="module", params=[*LOADERS, *VARIANTS, INVARIANT])
def engine(request: pytest.FixtureRequest) -> Engine:
    """One for all tests, as in a service for all requests."""
    if request.param in VARIANTS:
        return VARIANTS[request.param]()
    if request.param == "remote":
        found: Engine = request.getfixturevalue("remote")
        return found
    if request.param == INVARIANT:
        path = str(request.getfixturevalue("gguf_file"))
        return load_model(ModelChoice(path, engine="llamacpp", batch_invariant=True)).engine
    source = SOURCES[request.param]
    if source == "TINY":
        source = str(request.getfixturevalue("tiny_folder"))
    if source == "GGUF":
        source = str(request.getfixturevalue("gguf_file"))
    drafts = request.param == "lookup"  # no target
    return load_model(ModelChoice(source, engine=request.param, drafts=drafts)).engine


@pytest.fixture(autouse=True)
def no_session_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "engine" in request.fixturenames:
        engine: Engine = request.getfixturevalue("engine")
        assert (engine.sessions_open, engine.kv_bytes_in_use) == (0, 0)


@pytest.fixture
def growing(engine: Engine) -> Engine:
    """An engine with trees and forks."""
    if not (engine.capabilities.trees and engine.capabilities.forks):
        pytest.skip("this back end declares that it has no trees or no forks")
    return engine


def feed(engine: Engine, session: Session, token_ids: list[int]) -> Row:
    """Logits after the last of the tokens."""
    (logits,) = engine.forward([ForwardRequest(session, tuple(token_ids), 1)])
    assert logits.dtype == np.float32
    assert logits.shape == (1, engine.vocabulary_size)
    last: Row = logits[0]
    return last


def near(engine: Engine, found: Row, wanted: Row) -> bool:
    """Equal, but for what an engine may round differently when a sequence is cut differently."""
    if engine.capabilities.same_bits:
        return np.allclose(found, wanted, atol=1e-5)
    return bool(np.linalg.norm(found - wanted) <= 0.03 * np.linalg.norm(wanted))


def fresh(engine: Engine, token_ids: list[int]) -> Row:
    """Logits after a sequence fed at once to a session of its own."""
    session = engine.open(len(token_ids))
    logits = feed(engine, session, token_ids)
    session.close()
    return logits


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("token_ids", {"token_ids": ()}),
        ("token_ids", {"token_ids": (1, BEYOND)}),
        ("token_ids", {"token_ids": (-1,)}),
        ("token_ids", {"token_ids": tuple(range(9))}),
        ("logits_to_keep", {"logits_to_keep": 4}),
        ("logits_to_keep", {"logits_to_keep": -1}),
        ("parents", {"parents": (-1, 0)}),
        ("parents", {"parents": (-1, 1, 0)}),
    ],
)
def test_a_bad_request_is_refused_before_anything_changes(
    engine: Engine, field: str, change: dict[str, Any]
) -> None:
    good, session = engine.open(20), engine.open(10)
    feed(engine, good, [7])
    feed(engine, session, [5, 6])
    bad = replace(ForwardRequest(session, (1, 2, 3), 1), **change)
    with pytest.raises(InvalidArgument) as caught:
        engine.forward([ForwardRequest(good, (8, 9), 1), bad])
    assert caught.value.field == field
    assert (good.length, session.length) == (1, 2)
    assert near(engine, feed(engine, session, [4]), fresh(engine, [5, 6, 4]))
    good.close()
    session.close()


def test_a_long_prompt_has_logits_of_all_its_tokens_chunk_by_chunk(engine: Engine) -> None:
    """As they are read for its log-probabilities."""
    length = min(CHUNK_ROWS + 20, engine.context_length)
    token_ids = [5 + 7 * place % (engine.vocabulary_size - 5) for place in range(length)]
    session = engine.open(length)
    rows: list[Row] = []
    for begin in range(0, length, CHUNK_ROWS):
        part = tuple(token_ids[begin : begin + CHUNK_ROWS])
        (logits,) = engine.forward([ForwardRequest(session, part, len(part))])
        assert logits.shape == (len(part), engine.vocabulary_size)
        rows += [np.array(row) for row in logits]
    session.close()
    for end in (1, 2, 100, CHUNK_ROWS, CHUNK_ROWS + 1, length):
        if end <= length:
            assert near(engine, rows[end - 1], fresh(engine, token_ids[:end])), end


def test_a_session_appears_once_in_a_batch(engine: Engine) -> None:
    session = engine.open(10)
    with pytest.raises(InvalidArgument, match="twice"):
        engine.forward([ForwardRequest(session, (1,), 1), ForwardRequest(session, (2,), 1)])
    assert session.length == 0
    session.close()


def test_closed_and_foreign_sessions_are_refused(engine: Engine) -> None:
    session, foreign = engine.open(10), scripted().open(10)
    session.close()
    session.close()
    for wrong in (session, foreign):
        with pytest.raises(InvalidArgument, match="session"):
            engine.forward([ForwardRequest(wrong, (1,), 1)])
        if engine.capabilities.forks:
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
    assert engine.sessions_open == 0


def test_forks_lie_within_their_parent_and_the_context(growing: Engine) -> None:
    parent = growing.open(10)
    feed(growing, parent, [1, 2, 3])
    for length, capacity, field in ((4, 9, "length"), (-1, 9, "length"), (3, 2, "capacity")):
        with pytest.raises(InvalidArgument, match=field):
            growing.fork(parent, length, capacity)
    assert growing.sessions_open == 1
    parent.close()


def test_a_capability_is_there_or_refused(engine: Engine) -> None:
    own, session = engine.capabilities, engine.open(10)
    assert own.exits == bool(engine.exit_depths)
    assert (own.vision, own.kv_files) == (engine.vision is not None, engine.kv_files is not None)
    assert own.embeddings or not own.vision
    tree = ForwardRequest(session, (7, 8), 1, (-1, -1))
    if own.trees:
        engine.forward([tree])
    else:
        with pytest.raises(
            InvalidArgument, match="parents: this back end does not support token trees"
        ):
            engine.forward([tree])
    if own.forks:
        engine.fork(session, 0, 10).close()
    else:
        with pytest.raises(FailedPrecondition, match="fork"):
            engine.fork(session, 0, 10)
    if own.cancellation:
        with pytest.raises(ForwardCancelled):
            engine.forward([ForwardRequest(session, (7,), 1)], lambda: True)
        assert session.length == 0
    session.close()


@pytest.mark.parametrize(
    ("engine", "name"),
    [(name, name) for name in LOADERS],
    indirect=["engine"],
)
def test_the_docs_tell_what_it_can_do(engine: Engine, name: str) -> None:
    text = (Path(__file__).parents[3] / "docs/internals/engine.md").read_text("utf-8")
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    columns = [cell.strip(" `") for cell in rows[0]]
    told = set()
    for row in rows[2:]:
        names = re.findall(r"`(\w+)`", row[0])
        word = row[columns.index(name)].strip()
        assert word in ("yes", "no", "by model", "if asked")
        told.update(names)
        if word in ("yes", "no"):
            has = engine.capabilities.names
            assert all((each in has) is (word == "yes") for each in names), names
    assert told == {field.name for field in fields(Capabilities)}


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
    feed(engine, parent, [*range(3, 23)])
    forks = engine.capabilities.forks
    child = engine.fork(parent, 15, 40) if forks else engine.open(25)
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
    (logits,) = engine.forward([ForwardRequest(session, (1, 2), 0)])
    assert logits.shape == (0, engine.vocabulary_size)
    assert session.length == 2
    session.close()


def test_a_tree_is_pending_until_a_path_is_kept(growing: Engine) -> None:
    session = growing.open(20)
    feed(growing, session, [5, 6])
    growing.forward([ForwardRequest(session, (7, 8, 9, 10), 4, (-1, 0, 0, 2))])
    assert session.length == 2
    with pytest.raises(InvalidArgument, match="indices"):
        session.keep_path([0, 3])
    session.keep_path([0, 2, 3])
    assert session.length == 5
    with pytest.raises(InvalidArgument, match="no tree"):
        session.keep_path([0])
    assert near(growing, feed(growing, session, [11]), fresh(growing, [5, 6, 7, 9, 10, 11]))
    session.close()


def state_of(session: Session) -> tuple[int, tuple[int, ...] | None]:
    return session.length, session.tree


def test_a_tree_grows_layer_by_layer(growing: Engine) -> None:
    """Each node's logits are those of its own path; a kept path needs no further pass."""
    session = growing.open(20)
    feed(growing, session, [5, 6])
    growing.forward([ForwardRequest(session, (7, 8), 0, (-1, -1))])
    assert state_of(session) == (2, (-1, -1))
    (second,) = growing.forward(
        [ForwardRequest(session, (9, 10, 11), 3, (1, 0, 0), extends_tree=True)]
    )
    (third,) = growing.forward([ForwardRequest(session, (12,), 1, (2,), extends_tree=True)])
    assert state_of(session) == (2, (-1, -1, 1, 0, 0, 2))
    paths = [[8, 9], [7, 10], [7, 11], [8, 9, 12]]
    for row, path in zip([*second, *third], paths, strict=True):
        assert near(growing, row, fresh(growing, [5, 6, *path]))
    session.keep_path([1, 2, 5])
    assert state_of(session) == (5, None)
    assert near(growing, feed(growing, session, [13]), fresh(growing, [5, 6, 8, 9, 12, 13]))
    session.close()


def test_only_a_pending_tree_grows(growing: Engine) -> None:
    session = growing.open(20)
    feed(growing, session, [5, 6])
    for parents in ((-1,), None):
        with pytest.raises(InvalidArgument, match="extends_tree"):
            growing.forward([ForwardRequest(session, (7,), 1, parents, extends_tree=True)])
    growing.forward([ForwardRequest(session, (7, 8), 0, (-1, -1))])
    with pytest.raises(InvalidArgument, match="parents"):
        growing.forward([ForwardRequest(session, (9,), 1, (2,), extends_tree=True)])
    assert session.tree == (-1, -1)
    session.close()


def test_branches_may_outnumber_the_capacity_but_not_outgrow_it(growing: Engine) -> None:
    session = growing.open(4, spare=6)
    assert (session.capacity, session.slots) == (4, 10)
    feed(growing, session, [5, 6])
    growing.forward([ForwardRequest(session, tuple(range(5, 13)), 1, (-1,) * 4 + (0,) * 4)])
    session.keep_path([0, 4])
    assert session.length == session.capacity
    session.rollback(2)
    for nodes, parents in ((9, (-1,) * 9), (3, (-1, 0, 1))):
        with pytest.raises(InvalidArgument, match="token_ids"):
            growing.forward([ForwardRequest(session, (7,) * nodes, 1, parents)])
    with pytest.raises(InvalidArgument, match="token_ids"):
        growing.forward([ForwardRequest(session, (7, 8, 9), 1)])
    growing.forward([ForwardRequest(session, (7,) * 6, 1, (-1,) * 6)])
    with pytest.raises(InvalidArgument, match="token_ids"):
        growing.forward([ForwardRequest(session, (7,) * 3, 1, (0,) * 3, extends_tree=True)])
    session.close()


@pytest.mark.parametrize("forget", ["forward", "rollback", "cancel"])
def test_a_tree_that_is_not_kept_is_forgotten(growing: Engine, forget: str) -> None:
    session = growing.open(20)
    feed(growing, session, [5, 6])
    growing.forward([ForwardRequest(session, (7, 8), 1, (-1, -1))])
    if forget == "forward":
        feed(growing, session, [9])
        session.rollback(2)
    elif forget == "rollback":
        session.rollback(2)
    else:
        with pytest.raises(ForwardCancelled):
            growing.forward([ForwardRequest(session, (7,), 1)], lambda: True)
    with pytest.raises(InvalidArgument, match="no tree"):
        session.keep_path([0])
    assert near(growing, feed(growing, session, [10]), fresh(growing, [5, 6, 10]))
    session.close()


def test_random_histories_leave_what_a_fresh_session_has(engine: Engine) -> None:
    """Feeds, trees, rollbacks, forks and closings in any order; a list of tokens is the model."""
    random, own = np.random.default_rng(11), engine.capabilities
    live: list[tuple[Session, list[int]]] = [(engine.open(80), [])]
    for _ in range(120):
        session, mirror = live[random.integers(len(live))]
        action = random.choice(["feed", "feed", "tree", "rollback", "fork", "close"])
        new = random.integers(3, engine.vocabulary_size, random.integers(1, 7)).tolist()
        if action == "feed" and len(mirror) + len(new) <= 80:
            engine.forward([ForwardRequest(session, tuple(new), 0)])
            mirror += new
        elif action == "tree" and own.trees and len(mirror) + len(new) <= 80:
            parents = tuple(int(random.integers(-1, node)) for node in range(len(new)))
            first = int(random.integers(1, len(new) + 1))
            engine.forward([ForwardRequest(session, tuple(new[:first]), 0, parents[:first])])
            if first < len(new):
                more = ForwardRequest(
                    session, tuple(new[first:]), 0, parents[first:], extends_tree=True
                )
                engine.forward([more])
            path = path_to(parents, int(random.integers(len(new))))
            session.keep_path(path)
            mirror += [new[node] for node in path]
        elif action == "rollback":
            length = int(random.integers(len(mirror) + 1))
            session.rollback(length)
            del mirror[length:]
        elif action == "fork" and own.forks and len(live) < 6:
            length = int(random.integers(len(mirror) + 1))
            live.append((engine.fork(session, length, 80), mirror[:length]))
        elif action == "close" and len(live) > 1:
            live.remove((session, mirror))
            session.close()
        assert [one.length for one, _ in live] == [len(tokens_fed) for _, tokens_fed in live]
    room = [(session, mirror) for session, mirror in live if len(mirror) < 80]
    answers = engine.forward([ForwardRequest(session, (9,), 1) for session, _ in room])
    for logits, (_, mirror) in zip(answers, room, strict=True):
        assert near(engine, logits[0], fresh(engine, [*mirror, 9]))
    for session, _ in live:
        session.close()
    assert (engine.kv_bytes_in_use, engine.sessions_open) == (0, 0)


def path_to(parents: tuple[int, ...], node: int) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.insert(0, node)
        node = parents[node]
    return path
