"""When a cloud goes on alone and when it waits for drafts, by what its passes brought."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest

from tandem.control.pass_budget import PassBudget
from tandem.specdec.choices import Schedule
from tandem.specdec.cloud import CloudMachine
from tandem.specdec.messages import Committed, Work
from tests.virtual_time.cases import preset, scheduled
from tests.virtual_time.cloud_frames import (
    MODELS,
    V,
    draft_after,
    opened_cloud,
    opening,
    own_tokens,
    pass_of,
)
from tests.virtual_time.lockstep import judgement_for, model_for

IDLE = replace(scheduled("coupled", Schedule(4, 2, decode_when_idle=True)), idle_weight=0.5)
"""Goes on alone as long as a pass over drafts brings two tokens, as is assumed at first."""


@pytest.mark.parametrize(("accepted", "waits"), [(0, False), (1, False), (2, True)])
def test_drafts_are_waited_for_where_they_bring_more_than_their_passes(
    accepted: int, waits: bool
) -> None:
    right = own_tokens(IDLE, 5)
    cloud = opened_cloud(IDLE)
    pass_of(cloud)
    assert cloud.work() is not None, "two tokens a pass are assumed"
    cloud = opened_cloud(IDLE)
    pass_of(cloud)
    drafts = tuple(t if n < accepted else (t + 1) % V for n, t in enumerate(right[1:3]))
    assert cloud.receive(draft_after(cloud, drafts)) == []
    (verdict,) = pass_of(cloud)
    assert isinstance(verdict, Committed)
    assert verdict.accepted == accepted
    assert (cloud.work() is None) == waits


def test_a_draft_that_comes_too_late_leaves_the_next_distribution_as_it_is() -> None:
    """A draft says that more come soon while a pass runs alone: that one's distribution is kept.
    The next draft contradicts a token that stands already: it is void, and the text goes on."""
    preset = scheduled(
        "coupled", Schedule(8, 2, verify_on_arrival=True, decode_when_idle=True, bonus=True)
    )
    right = own_tokens(preset, 4)
    cloud = opened_cloud(preset)
    before = draft_after(cloud, right[:1], hold=True)
    late = draft_after(cloud, ((right[1] + 1) % V,), right[:1], hold=True)
    pass_of(cloud)
    pass_of(cloud)
    work = cloud.work()
    assert work is not None
    assert cloud.receive(before) == []
    assert cloud.complete(judgement_for(MODELS, cloud, work), Work()) == []
    assert cloud.receive(late) == []
    assert cloud.receive(draft_after(cloud, right[2:4])) == []
    (verdict,) = pass_of(cloud)
    assert isinstance(verdict, Committed)
    assert verdict.accepted == 2
    assert cloud.committed.since(2)[:4] == right


@pytest.mark.parametrize(
    "last", ["repeats what stands", "contradicts it", "after a text that is gone"]
)
def test_the_last_draft_lets_a_cloud_that_waits_go_on_alone(last: str) -> None:
    """The edge drafts no more and says so with its last draft. That one comes too late to be
    judged: the cloud waited for the next draft, and the edge for a token, for ever."""
    preset = scheduled(
        "coupled", Schedule(8, 2, verify_on_arrival=True, decode_when_idle=True, bonus=True)
    )
    right = own_tokens(preset, 4)
    wrong = ((right[1] + 1) % V,)
    cloud = opened_cloud(preset)
    before = draft_after(cloud, right[:1], hold=True)
    contradicts = draft_after(cloud, wrong, right[:1])
    repeats = draft_after(cloud, right[1:2], right[:1])
    pass_of(cloud)
    pass_of(cloud)
    work = cloud.work()
    assert work is not None
    assert cloud.receive(before) == []
    assert cloud.complete(judgement_for(MODELS, cloud, work), Work()) == []
    assert cloud.work() is None, "it waits for a draft"
    if last == "after another text":
        held = replace(contradicts, hold=True)
        assert cloud.receive(held) == []
    (tokens,) = cloud.receive(contradicts if last == "contradicts it" else repeats)
    assert isinstance(tokens, Committed)
    assert tokens.token_ids == (right[2],)
    assert tokens.work == Work(target_passes=3), "no pass was needed for it"
    assert cloud.work() is not None, "and goes on"


def test_one_good_pass_does_not_make_a_cloud_wait() -> None:
    """Time counts for 0.6: it waits from 2.5 tokens a pass on. Each pass brings three and moves the
    estimate by a fifth of the way: 2.2, 2.36, 2.488, 2.59."""
    chosen = replace(IDLE, idle_weight=0.6)
    right = own_tokens(chosen, 13)
    cloud = opened_cloud(chosen)
    pass_of(cloud)
    goes_on = []
    for begin in range(1, 13, 3):
        cloud.receive(draft_after(cloud, right[begin : begin + 2]))
        (verdict,) = pass_of(cloud)
        assert isinstance(verdict, Committed)
        assert (verdict.accepted, verdict.token_ids) == (2, (right[begin + 2],))
        goes_on.append(copy.deepcopy(cloud).work() is not None)
    assert goes_on == [True, True, True, False]


def test_a_cloud_that_shares_its_passes_and_is_asked_to_wait_judges_the_next_draft_at_once() -> (
    None
):
    """The distribution of its last pass is kept until a draft comes."""
    preset = scheduled(
        "coupled", Schedule(8, 2, verify_on_arrival=True, decode_when_idle=True, bonus=True)
    )
    right = own_tokens(preset, 3)
    cloud = CloudMachine(opening(preset), model_for(MODELS), budget=PassBudget())
    known = draft_after(cloud, right[:1], hold=True)
    pass_of(cloud)
    pass_of(cloud)
    work = cloud.work()
    assert work is not None
    assert cloud.receive(known) == []
    assert cloud.complete(judgement_for(MODELS, cloud, work), Work()) == []
    assert cloud.work() is None
    (verdict,) = cloud.receive(draft_after(cloud, right[2:]))
    assert isinstance(verdict, Committed)
    assert (verdict.accepted, verdict.refuses) == (1, False)
    assert verdict.work.target_passes == cloud.target_passes == 3, "what it has cost so far"
    assert cloud.committed.since(2) == right


def forced_from(cloud: CloudMachine, token_ids: tuple[int, ...]) -> Callable[[], int | None]:
    """A grammar of answers that begin so, after which everything may follow."""
    return lambda: dict(enumerate(token_ids)).get(len(cloud.committed) - 2)


def test_alone_the_cloud_takes_what_a_grammar_forces_without_a_pass() -> None:
    cloud = opened_cloud(preset("ar"), logprobs=True)
    first, *_ = own_tokens(preset("ar"), 1)
    pass_of(cloud)
    (tokens,) = cloud.commit_forced_tokens(forced_from(cloud, (first, 2, 0, 1)))
    assert isinstance(tokens, Committed)
    assert (tokens.base, tokens.token_ids) == (3, (2, 0, 1))
    assert tokens.prefix_hash == cloud.committed.prefix
    assert [told.logprob for told in tokens.logprobs] == [0.0, 0.0, 0.0]
    assert cloud.target_passes == tokens.work.target_passes == 1
    work = cloud.work()
    assert work is not None
    assert work.token_ids == (first, 2, 0, 1), "their keys and values come with the next pass"
    assert cloud.commit_forced_tokens(lambda: 0) == [], (
        "a pass is under way, whose row follows the text as it is"
    )


def test_what_is_forced_ends_with_the_text() -> None:
    cloud = opened_cloud(preset("ar"), ends=frozenset({0}))
    pass_of(cloud)
    (tokens,) = cloud.commit_forced_tokens(forced_from(cloud, (9, 2, 0, 1)))
    assert isinstance(tokens, Committed)
    assert tokens.token_ids == (2, 0)
    assert cloud.finished
    short = opened_cloud(preset("ar"), max_tokens=3)
    pass_of(short)
    (tokens,) = short.commit_forced_tokens(lambda: 1)
    assert isinstance(tokens, Committed)
    assert tokens.token_ids == (1, 1)


@pytest.mark.parametrize("name", ["coupled", "stream", "mc-dsd"])
def test_where_an_edge_drafts_it_drafts_what_is_forced(name: str) -> None:
    cloud = opened_cloud(preset(name))
    pass_of(cloud)
    assert cloud.commit_forced_tokens(lambda: 1) == []


def test_a_cloud_need_not_wait_any_more_though_the_draft_that_says_so_is_void() -> None:
    """It crossed the verdict that voids it. The edge has said all that it will: it may draft
    nothing more, and neither would wait for anything but the other."""
    preset = scheduled(
        "coupled", Schedule(8, 2, verify_on_arrival=True, decode_when_idle=True, bonus=True)
    )
    wrong = tuple((token + 1) % V for token in own_tokens(preset, 3)[1:])
    cloud = opened_cloud(preset)
    pass_of(cloud)
    asked = draft_after(cloud, wrong[:1], hold=True)
    released = draft_after(cloud, wrong[1:], wrong[:1])
    assert cloud.receive(asked) == []
    (verdict,) = pass_of(cloud)
    assert isinstance(verdict, Committed)
    assert verdict.refuses
    assert cloud.work() is None, "it was asked to wait"
    assert cloud.receive(released) == []
    assert cloud.work() is not None
