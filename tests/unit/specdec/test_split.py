"""Split inference in the two machines: whose turn it is, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tandem.core.errors import InvalidArgument
from tandem.core.probs import Array
from tandem.core.tokens import PrefixedTokens, PrefixMismatch
from tandem.specdec.cloud import CloudMachine
from tandem.specdec.cloud_checks import CloudModel, check_open
from tandem.specdec.events import Reconnect
from tandem.specdec.messages import Open
from tandem.specdec.overrides import with_overrides
from tandem.specdec.presets import PRESETS
from tandem.specdec.rounds.messages import HiddenStates
from tandem.specdec.rounds.split import TASK_TOKENS, SplitUplink
from tests.virtual_time.cases import preset
from tests.virtual_time.cloud_frames import (
    MODELS,
    check_refused,
    committed_of,
    opened_cloud,
    opening,
    pass_of,
    work_of,
)
from tests.virtual_time.edge_frames import connected, edge_of, sent, tokens_of
from tests.virtual_time.lockstep import VOCABULARY_HASH, Lockstep

SPLIT = preset("split")


def states(*token_ids: int) -> Array:
    return np.array(token_ids, dtype=np.float32)[:, None]


def hidden(cloud: CloudMachine, *token_ids: int, **changes: Any) -> HiddenStates:
    """Of the tokens at the end of the committed text."""
    base = len(cloud.committed) - len(token_ids)
    frame = HiddenStates(7, base, cloud.committed.prefix_at(base), states(*token_ids))
    return replace(frame, **changes)


def test_the_edge_sends_the_prompt_s_states_and_then_each_token_s() -> None:
    edge = edge_of(SPLIT)
    assert edge.layers_work() is None, "there is no stream yet"
    (first,) = sent(edge.connect(0.0))
    assert isinstance(first, Open)
    task = edge.layers_work()
    assert task is not None
    assert (task.first, task.token_ids) == (0, (1, 2))
    assert edge.layers_work() is None, "one at a time"
    (frame,) = sent(edge.layers_done(task, states(1, 2), 0.0))
    assert (frame.base, frame.states.shape) == (0, (2, 1))
    assert edge.layers_work() is None, "the next token is the cloud's"
    edge.receive(tokens_of(edge, 0), 0.0)
    task = edge.layers_work()
    assert task is not None
    assert (task.first, task.token_ids) == (2, (0,))
    (frame,) = sent(edge.layers_done(task, states(0), 0.0))
    assert (frame.base, frame.prefix_hash) == (2, edge.committed.prefix_at(2))
    assert edge.work(0.0) is None, "nothing is drafted"


def test_a_fresh_stream_is_sent_everything_again() -> None:
    edge = connected(SPLIT)
    task = edge.layers_work()
    assert task is not None
    assert edge.lost(0.0) == [Reconnect(lost=True)]
    assert edge.layers_done(task, states(1, 2), 0.0) == []
    edge.connect(0.0)
    again = edge.layers_work()
    assert again is not None
    assert again is not task
    assert edge.layers_done(task, states(1, 2), 0.0) == [], "it is of the stream that is gone"
    (frame,) = sent(edge.layers_done(again, states(1, 2), 0.0))
    assert frame.base == 0


def test_a_long_prompt_goes_up_in_parts() -> None:
    uplink = SplitUplink(on=True, committed=PrefixedTokens((1,) * (TASK_TOKENS + 3)))
    sizes = []
    while (task := uplink.due()) is not None:
        sizes.append(len(task.token_ids))
        assert uplink.take(task)
    assert sizes == [TASK_TOKENS, 3]


def test_a_session_that_is_not_split_has_no_layers_to_run() -> None:
    edge = connected(preset("ar"))
    assert edge.layers_work() is None


def test_the_cloud_computes_a_token_once_all_states_before_it_are_there() -> None:
    cloud = opened_cloud(SPLIT)
    assert cloud.work() is None
    assert cloud.receive(hidden(cloud, 1, 2, states=states(1))) == []
    assert cloud.work() is None
    rest = HiddenStates(7, 1, cloud.committed.prefix_at(1), states(2))
    assert cloud.receive(rest) == []
    tokens = committed_of(pass_of(cloud))
    assert cloud.work() is None
    cloud.receive(hidden(cloud, *tokens.token_ids))
    work = work_of(cloud)
    assert work.hidden is not None
    assert (work.keep, work.token_ids, work.first_layer) == (2, tokens.token_ids, 3)
    assert work.hidden.tolist() == [[tokens.token_ids[0]]]


def test_what_no_honest_edge_sends_changes_nothing() -> None:
    cloud = opened_cloud(SPLIT)
    for bad, field in (
        ({"states": states(1, 2, 3)}, "hidden_states"),
        ({"states": np.zeros((2, 2), dtype=np.float32)}, "hidden_states"),
        ({"states": np.zeros((0, 1), dtype=np.float32)}, "hidden_states"),
        ({"states": states(1, 2) * np.float32(np.nan)}, "hidden_states"),
        ({"states": states(1, 2) * np.float32(np.inf)}, "hidden_states"),
        ({"base": 1}, "base"),
    ):
        check_refused(cloud, hidden(cloud, 1, 2, **bad), InvalidArgument, field)
    check_refused(cloud, hidden(cloud, 1, 2, prefix_hash=3), PrefixMismatch)
    cloud.receive(hidden(cloud, 1, 2))
    again = HiddenStates(7, 0, cloud.committed.prefix_at(0), states(1, 2))
    check_refused(cloud, again, InvalidArgument, "base")


def test_a_session_that_is_not_split_takes_no_states() -> None:
    cloud = opened_cloud(preset("ar"))
    check_refused(cloud, hidden(cloud, 1, 2), InvalidArgument, "hidden_states")


def test_a_target_is_split_within_its_layers() -> None:
    model = CloudModel("m", VOCABULARY_HASH, opening(SPLIT).vocabulary_size, 64, frozenset())
    check_open(opening(SPLIT), replace(model, layer_count=4, hidden_size=1))
    with pytest.raises(InvalidArgument, match="split_layers"):
        check_open(opening(SPLIT), replace(model, layer_count=3, hidden_size=1))
    with pytest.raises(InvalidArgument, match="images"):
        check_open(opening(SPLIT, images=(b"png",)), replace(model, layer_count=4, hidden_size=1))


def test_the_text_is_the_cloud_s_own() -> None:
    for seed in range(5):
        alone = Lockstep(preset("ar"), MODELS, seed=seed).run()
        assert Lockstep(SPLIT, MODELS, seed=seed).run() == alone


def test_only_half_precision_is_lossy() -> None:
    half = with_overrides(PRESETS["split"], ("uplink_precision=float16",))
    half.validate()
    assert [one.lossy for one in (PRESETS["split"], half)] == [False, True]
    assert PRESETS["split"].drafter_invariant
