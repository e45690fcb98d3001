"""A model cut after a layer: its first layers alone, and passes that begin behind them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tandem.backends.factory import load_model
from tandem.backends.interface import Engine, ForwardRequest, Logits
from tandem.backends.model_source import ModelChoice
from tandem.core.errors import InvalidArgument
from tandem.runtime.chunked_prefill import CHUNK_ROWS, ChunkedPrefill
from tests.unit.backends.tiny_folders import write_model

TEXT = tuple(step * 7 % 211 for step in range(1, 20))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("split"), "qwen3")


@pytest.fixture(scope="module")
def whole(folder: Path) -> Engine:
    return load_model(ModelChoice(str(folder), engine="torch")).engine


@pytest.fixture(scope="module")
def first(folder: Path) -> Engine:
    return load_model(ModelChoice(str(folder), engine="torch", first_layers=2)).engine


def states_of(first: Engine, parts: list[tuple[int, ...]]) -> list[Logits]:
    session = first.open(64)
    found = []
    for part in parts:
        (states,) = first.forward([ForwardRequest(session, part, logits_to_keep=len(part))])
        found.append(np.array(states))
    session.close()
    return found


def test_the_layers_behind_find_what_they_would_compute_themselves(
    whole: Engine, first: Engine
) -> None:
    parts = [TEXT[:12], *((token,) for token in TEXT[12:])]
    alone, split = whole.open(64), whole.open(64)
    for part, states in zip(parts, states_of(first, parts), strict=True):
        assert states.shape == (len(part), whole.hidden_size)
        (want,) = whole.forward([ForwardRequest(alone, part, logits_to_keep=1)])
        want = np.array(want)
        request = ForwardRequest(split, part, logits_to_keep=1, hidden=states, first_layer=2)
        (got,) = whole.forward([request])
        np.testing.assert_array_equal(got, want)
    for session in (alone, split):
        session.close()
    assert first.kv_bytes_per_token * 3 == whole.kv_bytes_per_token * 2


def test_sessions_that_are_split_and_others_share_a_call(whole: Engine, first: Engine) -> None:
    (states,) = states_of(first, [TEXT])
    alone, split, other = (whole.open(64) for _ in range(3))
    (want,) = whole.forward([ForwardRequest(alone, TEXT, logits_to_keep=2)])
    want = np.array(want)
    found = whole.forward(
        [
            ForwardRequest(split, TEXT, logits_to_keep=2, hidden=states, first_layer=2),
            ForwardRequest(other, TEXT, logits_to_keep=2),
        ]
    )
    for logits in found:
        np.testing.assert_array_equal(logits, want)
    for session in (alone, split, other):
        session.close()


def test_what_cannot_be_is_named(whole: Engine, first: Engine, folder: Path) -> None:
    (states,) = states_of(first, [TEXT])
    session, behind = whole.open(64), first.open(64)
    for hidden, layer, field in (
        (states, 0, "first_layer"),
        (states, 3, "first_layer"),
        (states[:-1], 2, "hidden"),
        (states[:, :-1], 2, "hidden"),
    ):
        with pytest.raises(InvalidArgument) as refused:
            whole.forward([ForwardRequest(session, TEXT, 1, hidden=hidden, first_layer=layer)])
        assert refused.value.field == field
    with pytest.raises(InvalidArgument, match="hidden"):
        first.forward([ForwardRequest(behind, TEXT, 1, hidden=states, first_layer=1)])
    session.close()
    behind.close()
    with pytest.raises(InvalidArgument, match="first 3 layers"):
        load_model(ModelChoice(str(folder), engine="torch", first_layers=3))
    with pytest.raises(InvalidArgument, match="llamacpp"):
        load_model(ModelChoice(str(folder), engine="llamacpp", first_layers=1))


def test_a_model_of_another_family_is_not_cut(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot run alone"):
        load_model(ModelChoice(str(write_model(tmp_path, "opt")), engine="torch", first_layers=1))


def test_a_long_prompt_s_states_go_with_its_chunks(whole: Engine) -> None:
    count = 2 * CHUNK_ROWS + 3
    states = np.arange(count, dtype=np.float32)[:, None].repeat(whole.hidden_size, axis=1)
    session = whole.open(count)
    request = ForwardRequest(session, (5,) * count, 1, hidden=states, first_layer=2)
    prefill = ChunkedPrefill([request])
    fed = []
    while not prefill.is_fed:
        (chunk,) = prefill.next_chunk()
        assert chunk.hidden is not None
        assert chunk.first_layer == 2
        fed += chunk.hidden[:, 0].tolist()
        prefill.done(whole.forward([chunk]))
    (rest,) = prefill.rest()
    assert rest.hidden is not None
    assert [*fed, *rest.hidden[:, 0].tolist()] == list(range(count))
    session.close()
