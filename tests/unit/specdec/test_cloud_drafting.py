"""A cloud that drafts where it would decode alone: what is drafted, judged and said, and what gives
way to an edge's drafts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tandem.control.cloud_draft_budget import CloudDraftBudget
from tandem.control.pass_budget import PassBudget
from tandem.core.errors import ProtocolError
from tandem.core.tokens import PrefixedTokens
from tandem.specdec.choices import Acceptance, CloudDrafts, Schedule
from tandem.specdec.cloud import CloudMachine
from tandem.specdec.cloud_drafting import PROBE_INTERVAL, PROBE_LENGTH
from tandem.specdec.events import NO_PROBS, Drafted
from tandem.specdec.messages import Cancel, Committed, Work
from tandem.specdec.presets import Preset
from tests.virtual_time.cases import preset, scheduled
from tests.virtual_time.cloud_frames import (
    MODELS,
    V,
    committed_of,
    draft_after,
    draft_in_cloud,
    draft_task_of,
    opened_cloud,
    opening,
    own_tokens,
    pass_of,
    prefilled,
    ready_cloud,
    work_of,
)
from tests.virtual_time.lockstep import judgement_for, model_for

ALONE = preset("cloud-draft", 3)
BOTH = scheduled(
    "coupled",
    Schedule(8, 2, verify_on_arrival=True, decode_when_idle=True),
    cloud_drafts=CloudDrafts.MODEL,
    cloud_draft_length=3,
)
REJECTION = preset("cloud-draft", 3, acceptance=Acceptance.REJECTION)
RIGHT = own_tokens(preset("ar"), 12)


def begun(chosen: Preset = ALONE, **changes: Any) -> CloudMachine:
    """A cloud after its first pass, which brought a token, and the prefill of its draft model."""
    cloud = prefilled(opened_cloud(chosen, **changes))
    pass_of(cloud)
    return cloud


def wrong(token_id: int) -> int:
    return (token_id + 1) % V


def test_the_first_token_comes_of_the_prompt_alone() -> None:
    cloud = prefilled(opened_cloud(ALONE))
    assert cloud.draft_task() is None
    tokens = committed_of(pass_of(cloud))
    assert (tokens.token_ids, tokens.cloud_accepted, tokens.work.cloud_drafts) == (RIGHT[:1], 0, 0)


@pytest.mark.parametrize("right", range(4))
def test_drafts_that_stand_come_with_the_token_after_them(right: int) -> None:
    cloud = begun()
    assert cloud.work() is None, "drafts are on their way"
    task = draft_task_of(cloud)
    assert (task.position, task.count, task.keep, task.token_ids) == (3, 3, 1, (2, RIGHT[0]))
    drafts = tuple(t if n < right else wrong(t) for n, t in enumerate(RIGHT[1:4]))
    draft_in_cloud(cloud, *drafts)
    work = work_of(cloud)
    assert (work.token_ids, work.drafts) == ((RIGHT[0], *drafts), 3)
    tokens = committed_of(cloud.complete(judgement_for(MODELS, cloud, work), Work()))
    assert tokens.token_ids == RIGHT[1 : right + 2]
    assert (tokens.cloud_accepted, tokens.base) == (right, 3)
    told = tokens.work
    assert (told.cloud_drafts, told.target_passes) == (3, 2)
    assert cloud.kv_length == 3 + right, "what was rejected is rolled back"


def test_both_caches_are_rolled_back_to_what_stands() -> None:
    cloud = begun()
    draft_in_cloud(cloud, RIGHT[1], wrong(RIGHT[2]), 0)
    pass_of(cloud)
    assert cloud.committed.since(2) == RIGHT[:3]
    task = draft_task_of(cloud)
    assert (task.keep, task.token_ids) == (4, RIGHT[2:3]), "the first draft stays in the draft KV"
    draft_in_cloud(cloud, *RIGHT[3:6])
    pass_of(cloud)
    assert cloud.committed.since(2) == RIGHT[:7]
    task = draft_task_of(cloud)
    assert (task.keep, task.token_ids) == (7, RIGHT[5:7]), "the last draft was not fed"


def test_no_draft_is_made_for_the_last_token() -> None:
    cloud = begun(max_tokens=3)
    assert draft_task_of(cloud).count == 1
    draft_in_cloud(cloud, RIGHT[1])
    assert committed_of(pass_of(cloud)).token_ids == RIGHT[1:3]
    assert cloud.finished
    assert cloud.draft_task() is None
    last = begun(max_tokens=2)
    assert last.draft_task() is None
    assert committed_of(pass_of(last)).token_ids == RIGHT[1:2]


def test_a_draft_that_ends_the_text_is_the_last() -> None:
    last = next(index for index in range(1, 12) if RIGHT[index] not in RIGHT[:index])
    cloud = begun(preset("cloud-draft", 12), ends=frozenset({RIGHT[last]}))
    assert draft_task_of(cloud).ends == {RIGHT[last]}
    draft_in_cloud(cloud, *RIGHT[1 : last + 1])
    tokens = committed_of(pass_of(cloud))
    assert (tokens.token_ids, tokens.cloud_accepted) == (RIGHT[1 : last + 1], last)
    assert cloud.finished


def test_what_followed_the_end_of_the_text_before_is_looked_up() -> None:
    prompt = (1, 2, *RIGHT[:8], 1, 2)
    text = PrefixedTokens(prompt)
    length = len(prompt)
    asked: dict[str, Any] = {"prompt_ids": prompt, "base": length, "prefix_hash": text.prefix}
    cloud = opened_cloud(preset("cloud-draft", 4, cloud_drafts=CloudDrafts.LOOKUP), **asked)
    while (work := cloud.work()) is not None and not work.by_cloud:
        assert cloud.draft_task() is None, "which takes no model"
        cloud.complete(judgement_for(MODELS, cloud, work), Work())
    assert work is not None
    said = cloud.committed.since(0)
    drafts = work.token_ids[-work.drafts :]
    assert 1 <= len(drafts) <= 4
    known = "".join(map(chr, said))
    assert known.count("".join(map(chr, (*said[-3:], drafts[0])))) >= 1, "it followed there before"
    alone = opened_cloud(preset("ar"), **asked)
    tokens = committed_of(cloud.complete(judgement_for(MODELS, cloud, work), Work()))
    while len(alone.committed) < len(cloud.committed):
        pass_of(alone)
    assert alone.committed.since(length)[: len(cloud.committed) - length] == (
        cloud.committed.since(length)
    )
    assert tokens.work.cloud_drafts == work.drafts


@pytest.mark.parametrize("chosen", [ALONE, REJECTION])
def test_while_its_draft_model_computes_the_prompt_a_text_that_its_drafts_do_not_decide_goes_on(
    chosen: Preset,
) -> None:
    cloud = opened_cloud(chosen)
    task = draft_task_of(cloud)
    pass_of(cloud)
    assert cloud.draft_task() is task
    assert (cloud.work() is None) == (chosen is REJECTION)


def test_the_draft_model_feeds_what_was_said_while_it_computed_the_prompt() -> None:
    cloud = opened_cloud(ALONE)
    task = draft_task_of(cloud)
    for _ in range(3):
        pass_of(cloud)
    cloud.drafted(task, [], 1)
    assert (draft_task_of(cloud).keep, draft_task_of(cloud).token_ids) == (1, (2, *RIGHT[:3]))


def test_a_resumed_text_that_drafts_decide_has_them_where_it_had_them() -> None:
    cloud = begun(REJECTION)
    assert draft_task_of(cloud).position == 3
    text = cloud.committed
    resumed = prefilled(
        opened_cloud(REJECTION, committed_ids=text.since(2), base=3, prefix_hash=text.prefix)
    )
    assert resumed.target_passes == 0
    assert resumed.work() is None
    assert draft_task_of(resumed).position == 3


def test_an_edge_s_draft_makes_a_task_of_the_cloud_void() -> None:
    cloud = begun(BOTH)
    task = draft_task_of(cloud)
    cloud.receive(draft_after(cloud, RIGHT[1:4]))
    assert cloud.draft_task() is None
    cloud.drafted(task, [Drafted(wrong(RIGHT[1]), NO_PROBS)], 3)
    verdict = committed_of(pass_of(cloud))
    assert (verdict.accepted, verdict.token_ids) == (3, (RIGHT[4],))


@pytest.mark.parametrize("waits", [False, True])
def test_what_a_void_task_brings_takes_no_place_of_an_edge_s_drafts(waits: bool) -> None:
    """Whether the cloud had begun to wait for it or not."""
    cloud = begun(BOTH)
    task = draft_task_of(cloud)
    assert not waits or cloud.work() is None
    cloud.receive(replace(draft_after(cloud, RIGHT[1:2]), end_of_chunk=False))
    work = cloud.work()
    cloud.drafted(task, [Drafted(wrong(RIGHT[1]), NO_PROBS)], 3)
    assert work is not None
    assert (work.drafts, work.by_cloud) == (1, False)
    verdict = committed_of(cloud.complete(judgement_for(MODELS, cloud, work), Work()))
    assert (verdict.accepted, verdict.token_ids) == (1, (RIGHT[2],))
    assert draft_task_of(cloud).position == 5


def test_drafts_of_the_cloud_wait_where_an_edge_s_come_and_are_void_then() -> None:
    cloud = begun(BOTH)
    draft_in_cloud(cloud, *RIGHT[1:4])
    cloud.receive(draft_after(cloud, RIGHT[1:5]))
    committed_of(pass_of(cloud))
    assert cloud.committed.since(2) == RIGHT[:6]
    assert draft_task_of(cloud).position == 8
    assert draft_task_of(cloud).keep == 5, "what the draft KV holds of the text stays in it"


def test_an_edge_s_drafts_that_agree_with_the_cloud_s_stay_valid() -> None:
    cloud = begun(BOTH)
    draft_in_cloud(cloud, *RIGHT[1:4])
    work = work_of(cloud)
    cloud.receive(draft_after(cloud, RIGHT[1:6]))
    tokens, *more = cloud.complete(judgement_for(MODELS, cloud, work), Work())
    assert isinstance(tokens, Committed)
    assert (tokens.token_ids, tokens.cloud_accepted) == (RIGHT[1:4], 3)
    assert more == [], "the next draft is judged with those after it"
    verdict = committed_of(pass_of(cloud))
    assert (verdict.base, verdict.accepted, verdict.token_ids) == (6, 2, (RIGHT[6],))


def test_an_edge_s_draft_that_differs_is_void_with_all_after_it() -> None:
    cloud = begun(BOTH)
    draft_in_cloud(cloud, *RIGHT[1:4])
    work = work_of(cloud)
    stale = draft_after(cloud, (RIGHT[1], wrong(RIGHT[2])))
    late = draft_after(cloud, (RIGHT[3],), pending=stale.token_ids)
    cloud.receive(stale)
    tokens = committed_of(cloud.complete(judgement_for(MODELS, cloud, work), Work()))
    assert tokens.token_ids == RIGHT[1:5]
    assert cloud.receive(late) == []
    (verdict, *_) = cloud.receive(draft_after(cloud, RIGHT[5:6])) or pass_of(cloud)
    assert isinstance(verdict, Committed)
    assert verdict.accepted == 1


def test_without_its_draft_model_the_cloud_goes_on_alone() -> None:
    cloud = begun()
    assert cloud.work() is None
    cloud.go_without_cloud_drafts()
    assert cloud.draft_task() is None
    assert committed_of(pass_of(cloud)).token_ids == RIGHT[1:2]
    failed = ready_cloud(REJECTION)
    failed.go_without_cloud_drafts()
    assert failed.work() is not None


def test_a_draft_model_that_reads_no_further_drafts_no_further() -> None:
    cloud = prefilled(opened_cloud(ALONE))
    cloud.limit_cloud_drafts(5)
    pass_of(cloud)
    assert draft_task_of(cloud).count == 1
    draft_in_cloud(cloud, RIGHT[1])
    pass_of(cloud)
    assert cloud.draft_task() is None
    assert committed_of(pass_of(cloud)).token_ids == RIGHT[3:4]


def test_a_cancelled_session_drafts_nothing() -> None:
    cloud = begun()
    assert cloud.draft_task() is not None
    cloud.receive(Cancel(7, len(cloud.committed), cloud.committed.prefix))
    assert cloud.draft_task() is None


def test_more_drafts_than_were_asked_for_are_refused() -> None:
    cloud = begun()
    with pytest.raises(ProtocolError):
        draft_in_cloud(cloud, *RIGHT[1:6])


def test_a_cloud_whose_drafts_do_not_pay_tries_a_few_now_and_then() -> None:
    passes = PassBudget()
    budget = CloudDraftBudget(passes)
    for number in range(20):
        passes.passed(0.01, 1 + number % 2, 1)
        budget.drafted(0.02, 1, 1)
    model = replace(model_for(MODELS), context_length=1000)
    cloud = CloudMachine(opening(ALONE, max_tokens=600), model, draft_budget=budget)
    pass_of(prefilled(cloud))
    after = budget.texts_before_try(PROBE_LENGTH, PROBE_INTERVAL, made=False)
    assert after > 10 * PROBE_INTERVAL, "a try takes as long as four passes, and is rare"
    tried = []
    for _ in range(int(after) + 3):
        if task := cloud.draft_task():
            tried.append(task.count)
            draft_in_cloud(cloud, *(0,) * task.count)
        pass_of(cloud)
    assert tried == [PROBE_LENGTH]


def test_where_the_text_depends_on_drafts_their_number_does_not_depend_on_time() -> None:
    passes = PassBudget()
    budget = CloudDraftBudget(passes)
    for _ in range(20):
        passes.passed(0.01, 1, 1)
        budget.drafted(0.05, 1, 1)
    cloud = CloudMachine(opening(REJECTION), model_for(MODELS), draft_budget=budget)
    pass_of(prefilled(cloud))
    assert draft_task_of(cloud).count == 3
