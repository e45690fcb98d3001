"""llama.cpp where it is batch-invariant: a token's logits have the same bits in every pass."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tandem.backends.factory import load_model
from tandem.backends.interface import Engine, ForwardRequest, Session
from tandem.backends.model_source import LoadedModel, ModelChoice
from tandem.core.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from tandem.core.probs import Array
from tandem.demo import demo_folder
from tests.long_runs import LONG as LONG_RUN
from tests.long_runs import with_long_cases
from tests.unit.backends.gguf_files import draft_gguf, q4_k_gguf

LONG = 290
"""Tokens: more than one block of attention's cells."""
AT_EACH_END = 20
"""Pieces."""


# F32: nothing hides how attention rounds. Q4_K: with Q6_K in it. Two kinds are for runs after a
# change of the engines (.ci/stages.toml).
@pytest.fixture(
    scope="module",
    params=["F32", "Q4_K", *(pytest.param(kind, marks=LONG_RUN) for kind in ("Q8_0", "Q4_0"))],
)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("gguf")
    kind = request.param
    path = q4_k_gguf(folder) if kind == "Q4_K" else draft_gguf(folder, kind)
    return load_model(ModelChoice(str(path), batch_invariant=True, kv_cells=4096))


@pytest.fixture
def engine(loaded: LoadedModel) -> Engine:
    return loaded.engine


def text(count: int, seed: int = 3) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(8, 4096, count).tolist())


def logits(engine: Engine, session: Session, token_ids: Sequence[int]) -> Array:
    """After each of the tokens."""
    request = ForwardRequest(session, tuple(token_ids), len(token_ids))
    (found,) = engine.forward([request])
    return found


def in_pieces(engine: Engine, session: Session, token_ids: Sequence[int], size: int) -> Array:
    """The text in pieces of a size, of which those in the middle are fed at once if they are many:
    what comes before a token differs most at both ends."""
    starts = [*range(0, len(token_ids), size), len(token_ids)]
    if len(starts) > 2 * AT_EACH_END:
        starts = [*starts[:AT_EACH_END], *starts[-AT_EACH_END:]]
    return np.concatenate(
        [logits(engine, session, token_ids[at:until]) for at, until in pairwise(starts)]
    )


@pytest.fixture(scope="module")
def whole(loaded: LoadedModel) -> Array:
    """The logits of a text that is fed at once, as far as llama.cpp does that."""
    engine = loaded.engine
    session = engine.open(LONG)
    found = logits(engine, session, text(LONG))
    session.close()
    return found


@pytest.mark.parametrize("size", with_long_cases([1, 2, 3, 4, 5, 8, 13, 64], (1, 2, 5, 64)))
def test_a_row_alone_has_the_bits_that_it_has_among_others(
    engine: Engine, whole: Array, size: int
) -> None:
    session = engine.open(LONG)
    assert np.array_equal(in_pieces(engine, session, text(LONG), size), whole)
    session.close()


def test_other_sessions_change_no_bit(engine: Engine, whole: Array) -> None:
    """Passes are shared with two sessions, of which one begins anew now and then."""
    session, other, third = (engine.open(LONG) for _ in range(3))
    found = []
    position = 0
    for number in range(30):
        count = 1 + number % 7
        beside = [
            ForwardRequest(other, text(1 + number % 5, seed=number), 1),
            ForwardRequest(third, text(3), 0),
        ]
        asked = ForwardRequest(session, text(LONG)[position : position + count], count)
        found.append(engine.forward([beside[0], asked, beside[1]])[1])
        position += count
        if number % 10 == 9:
            third.close()
            third = engine.open(LONG)
    assert np.array_equal(np.concatenate(found), whole[:position])
    for each in (session, other, third):
        each.close()


def test_rejected_drafts_leave_no_trace(engine: Engine, whole: Array) -> None:
    """Rolled back after each pass, and fed with what was right after all."""
    session = engine.open(LONG)
    found = []
    for position in range(0, 60, 3):
        logits(engine, session, text(position % 4 + 1, seed=position))
        session.rollback(position)
        found.append(logits(engine, session, text(LONG)[position : position + 3]))
    assert np.array_equal(np.concatenate(found), whole[:60])
    session.close()


def test_a_session_may_be_as_long_as_the_context(engine: Engine) -> None:
    session = engine.open(engine.context_length)
    tokens = text(engine.context_length)
    engine.forward([ForwardRequest(session, tokens[:-1], 0)])
    logits(engine, session, tokens[-1:])
    assert session.length == engine.context_length
    session.close()


def test_it_says_so_and_has_neither_trees_nor_forks(engine: Engine) -> None:
    assert engine.capabilities.names == ("cancellation", "same_bits", "batch_invariant")
    session = engine.open(4)
    with pytest.raises(FailedPrecondition, match="batch-invariant"):
        engine.fork(session, 0, 4)
    session.close()


def test_each_session_has_a_share_of_the_cells_and_more_are_refused(engine: Engine) -> None:
    """Of 4,096 cells four sessions have 1,024 each."""
    assert engine.context_length == 1024
    sessions = [engine.open(10) for _ in range(4)]
    with pytest.raises(ResourceExhausted, match="kv_cells"):
        engine.open(10)
    for session in sessions:
        session.close()
    assert engine.sessions_open == 0


def test_without_it_nothing_of_the_kind_is_promised(tmp_path: Path) -> None:
    engine = load_model(ModelChoice(str(draft_gguf(tmp_path, "Q8_0")), kv_cells=4096)).engine
    assert not engine.capabilities.batch_invariant
    assert engine.capabilities.trees


def test_an_engine_that_cannot_do_it_refuses() -> None:
    """Attention of torch rounds by the number of rows."""
    with pytest.raises(InvalidArgument, match="'torch' is not batch-invariant") as refused:
        load_model(ModelChoice(str(demo_folder("demo-draft")), batch_invariant=True))
    assert refused.value.field == "batch_invariant"
