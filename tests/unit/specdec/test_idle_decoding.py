"""A cloud that goes on alone, and drafts that come meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tandem.control.pass_budget import PassBudget
from tandem.specdec.choices import Schedule
from tandem.specdec.cloud import CloudMachine
from tandem.specdec.messages import Work
from tests.virtual_time.cases import preset, scheduled
from tests.virtual_time.cloud_frames import (
    MODELS,
    V,
    committed_of,
    draft_after,
    opened_cloud,
    opening,
    own_tokens,
    pass_of,
    ready_cloud,
    work_of,
)
from tests.virtual_time.lockstep import judgement_for, model_for

ON_ARRIVAL = scheduled("coupled", Schedule(8, 2, verify_on_arrival=True, decode_when_idle=True))


def test_a_draft_that_comes_too_late_leaves_the_next_distribution_as_it_is() -> None:
    """Drafts come while a pass runs alone: its distribution is kept for them. The next ones
    contradict a token that stands already, and one that waits: they are void, and the text goes
    on."""
    right = own_tokens(ON_ARRIVAL, 4)
    cloud = opened_cloud(ON_ARRIVAL)
    contradicts_text = draft_after(cloud, ((right[0] + 1) % V,))
    pass_of(cloud)
    contradicts_draft = draft_after(cloud, ((right[1] + 1) % V,))
    work = work_of(cloud)
    assert cloud.receive(draft_after(cloud, right[1:3])) == []
    assert cloud.complete(judgement_for(MODELS, cloud, work), Work()) == []
    assert cloud.receive(contradicts_text) == []
    assert cloud.receive(contradicts_draft) == []
    verdict = committed_of(pass_of(cloud))
    assert (verdict.accepted, verdict.token_ids) == (2, right[3:])
    assert cloud.committed.since(2) == right


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("is_right", [True, False])
def test_a_draft_that_came_while_a_pass_ran_alone_is_judged_by_what_that_found(
    shares: bool, is_right: bool
) -> None:
    """A wrong one at once. A right one too where passes may be cut short; else it waits for the
    pass over those after it."""
    right = own_tokens(ON_ARRIVAL, 2)
    budget = PassBudget() if shares else None
    cloud = CloudMachine(opening(ON_ARRIVAL), model_for(MODELS), budget=budget)
    pass_of(cloud)
    work = work_of(cloud)
    token_id = right[1] if is_right else (right[1] + 1) % V
    assert cloud.receive(draft_after(cloud, (token_id,))) == []
    verdicts = cloud.complete(judgement_for(MODELS, cloud, work), Work())
    if is_right and not shares:
        assert verdicts == []
        return
    verdict = committed_of(verdicts)
    assert (verdict.accepted, verdict.refuses) == (is_right, not is_right)
    assert verdict.work == Work(target_passes=2, drafts=1), "no pass was needed for it"
    assert cloud.committed.since(2) == right


def test_a_wrong_first_draft_is_judged_once_its_chunk_is_whole_by_what_a_pass_alone_found() -> None:
    """It came while that pass ran, and the rest of its chunk after it: no further pass is
    needed."""
    chosen = scheduled("coupled", Schedule(8, 2, decode_when_idle=True))
    right = own_tokens(chosen, 3)
    wrong = ((right[1] + 1) % V,)
    cloud = ready_cloud(chosen)
    work = work_of(cloud)
    assert cloud.receive(draft_after(cloud, wrong, end_of_chunk=False)) == []
    assert cloud.complete(judgement_for(MODELS, cloud, work), Work()) == []
    assert cloud.work() is None, "the rest of the chunk is on its way"
    verdict = committed_of(cloud.receive(draft_after(cloud, right[2:], wrong)))
    assert (verdict.accepted, verdict.refuses) == (0, True)
    assert verdict.work == Work(target_passes=2, drafts=1)
    assert cloud.committed.since(2) == right[:2]


def forced_from(cloud: CloudMachine, token_ids: tuple[int, ...]) -> Callable[[], int | None]:
    """A grammar of answers that begin so, after which everything may follow."""
    return lambda: dict(enumerate(token_ids)).get(len(cloud.committed) - 2)


def test_alone_the_cloud_takes_what_a_grammar_forces_without_a_pass() -> None:
    cloud = opened_cloud(preset("ar"), logprobs=True)
    first, *_ = own_tokens(preset("ar"), 1)
    pass_of(cloud)
    tokens = committed_of(cloud.commit_forced_tokens(forced_from(cloud, (first, 2, 0, 1))))
    assert (tokens.base, tokens.token_ids) == (3, (2, 0, 1))
    assert tokens.prefix_hash == cloud.committed.prefix
    assert [told.logprob for told in tokens.logprobs] == [0.0, 0.0, 0.0]
    assert cloud.target_passes == tokens.work.target_passes == 1
    work = work_of(cloud)
    assert work.token_ids == (first, 2, 0, 1), "their keys and values come with the next pass"
    assert cloud.commit_forced_tokens(lambda: 0) == [], (
        "a pass is under way, whose row follows the text as it is"
    )


def test_what_is_forced_ends_with_the_text() -> None:
    cloud = ready_cloud(preset("ar"), ends=frozenset({0}))
    tokens = committed_of(cloud.commit_forced_tokens(forced_from(cloud, (9, 2, 0, 1))))
    assert tokens.token_ids == (2, 0)
    assert cloud.finished
    short = ready_cloud(preset("ar"), max_tokens=3)
    tokens = committed_of(short.commit_forced_tokens(lambda: 1))
    assert tokens.token_ids == (1, 1)


@pytest.mark.parametrize("name", ["coupled", "stream", "mc-dsd"])
def test_where_an_edge_drafts_it_drafts_what_is_forced(name: str) -> None:
    cloud = ready_cloud(preset(name))
    assert cloud.commit_forced_tokens(lambda: 1) == []
