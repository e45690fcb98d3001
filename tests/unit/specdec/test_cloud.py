"""The cloud's machine on its own: what it does when, and what its KV holds."""

import copy

import numpy as np
import pytest

from tandem.control.pass_budget import PassBudget
from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.core.sparse_payload import FullPayload, SparsePayload
from tandem.core.tokens import PrefixedTokens
from tandem.specdec.choices import Schedule
from tandem.specdec.cloud import CloudMachine
from tandem.specdec.judge import Verification
from tandem.specdec.messages import (
    Cancel,
    CloudMessage,
    Committed,
    EdgeMessage,
    Ping,
    Pong,
    Work,
)
from tandem.specdec.presets import PRESETS
from tandem.specdec.rounds.messages import FullDistribution, NeedFullDistribution
from tandem.specdec.rules import Replacement
from tests.virtual_time.cases import preset, scheduled, tree
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
from tests.virtual_time.lockstep import Lockstep, judgement_for, model_for

SPLIT = preset("dssd", 2, payload_top=1, payload_tail_draws=0)


def test_a_full_distribution_is_sent_once_for_a_rejection() -> None:
    """It is large, and the question is not. The next rejection's may be asked for again."""
    asked = 0

    def ask_twice(cloud: CloudMachine, message: EdgeMessage) -> None:
        nonlocal asked
        if isinstance(message, NeedFullDistribution):
            twin = copy.deepcopy(cloud)
            (answer,) = twin.receive(message)
            with pytest.raises(InvalidArgument, match="was already sent for this rejection"):
                twin.receive(message)
            assert isinstance(answer, FullDistribution)
            expected = MODELS.target_probs(cloud.committed.since(0))
            np.testing.assert_array_equal(answer.target_probs, expected)
            asked += 1

    calm = Lockstep(SPLIT, MODELS).run()
    assert Lockstep(SPLIT, MODELS, to_cloud=ask_twice).run() == calm
    assert asked > 1


def test_a_ping_is_answered_at_any_time() -> None:
    cloud = opened_cloud(preset("dsd"))
    assert cloud.work() is not None
    ping = Ping(7, 2, cloud.committed.prefix, nonce=5)
    assert cloud.receive(ping) == [Pong(7, 2, cloud.committed.prefix, nonce=5)]


def test_cancel_ends_everything() -> None:
    cloud = opened_cloud(preset("ar"))
    work = work_of(cloud)
    assert cloud.receive(Cancel(7, 2, cloud.committed.prefix)) == []
    assert cloud.ended
    assert cloud.complete(judgement_for(MODELS, cloud, work), Work()) == []
    assert cloud.work() is None
    assert cloud.receive(Ping(7, 2, 0, nonce=1)) == []


def test_the_shells_mistakes_are_protocol_errors() -> None:
    cloud = opened_cloud(preset("dsd"))
    with pytest.raises(ProtocolError, match="no work in flight"):
        cloud.complete(Verification((), (), ()), Work())


def test_one_work_at_a_time() -> None:
    cloud = opened_cloud(preset("ar"))
    work = work_of(cloud)
    assert cloud.work() is None
    cloud.complete(judgement_for(MODELS, cloud, work), Work())
    assert cloud.work() is not None


def test_the_prompt_is_computed_before_any_draft_comes() -> None:
    cloud = opened_cloud(preset("coupled", 2))
    work = work_of(cloud)
    assert (work.keep, work.token_ids, work.logits_to_keep, work.drafts) == (0, (1, 2), 1, 0)
    assert cloud.complete(judgement_for(MODELS, cloud, work), Work()) == []
    assert cloud.kv_length == 2
    assert cloud.work() is None


def test_a_wrong_first_draft_is_rejected_without_a_pass() -> None:
    """The distribution after the prompt is there already."""
    chosen = preset("coupled", 2)
    (right,) = own_tokens(chosen, 1)
    cloud = ready_cloud(chosen)
    verdict = committed_of(cloud.receive(draft_after(cloud, ((right + 1) % V, 0))))
    assert (verdict.accepted, verdict.refuses, verdict.token_ids) == (0, True, (right,))
    assert cloud.target_passes == 1
    assert cloud.kv_length == 2


def test_an_accepted_chunk_brings_a_bonus_and_its_kv() -> None:
    chosen = preset("coupled", 2)
    first, second, third = own_tokens(chosen, 3)
    cloud = ready_cloud(chosen)
    assert cloud.receive(draft_after(cloud, (first, second))) == []
    work = work_of(cloud)
    assert (work.keep, work.token_ids, work.logits_to_keep, work.drafts) == (
        2,
        (first, second),
        2,
        2,
    )
    verdict = committed_of(cloud.complete(judgement_for(MODELS, cloud, work), Work()))
    assert (verdict.accepted, verdict.refuses, verdict.token_ids) == (2, False, (third,))
    assert verdict.prefix_hash == cloud.committed.prefix
    assert cloud.kv_length == 4, "the bonus token has not been fed"


def test_a_rejected_token_leaves_the_kv_of_the_accepted() -> None:
    chosen = preset("coupled", 3)
    first, second = own_tokens(chosen, 2)
    cloud = ready_cloud(chosen)
    cloud.receive(draft_after(cloud, (first, (second + 1) % V, 0)))
    verdict = committed_of(pass_of(cloud))
    assert (verdict.accepted, verdict.refuses, verdict.token_ids) == (1, True, (second,))
    assert cloud.kv_length == 3
    assert len(cloud.committed) == 4


def test_drafts_wait_for_their_chunk_unless_verified_on_arrival() -> None:
    for on_arrival in (False, True):
        chosen = scheduled("coupled", Schedule(4, 4, verify_on_arrival=on_arrival))
        right = own_tokens(chosen, 4)
        cloud = ready_cloud(chosen)
        assert cloud.receive(draft_after(cloud, right[:2], end_of_chunk=False)) == []
        assert (cloud.work() is not None) == on_arrival
        if not on_arrival:
            cloud.receive(draft_after(cloud, right[2:], pending=right[:2]))
            work = work_of(cloud)
            assert work.drafts == 4


def test_drafts_that_come_during_a_pass_wait_for_the_next() -> None:
    """A whole chunk gets one verdict, whenever it came."""
    chosen = scheduled("coupled", Schedule(4, 2, bonus=False))
    right = own_tokens(chosen, 4)
    cloud = ready_cloud(chosen)
    cloud.receive(draft_after(cloud, right[:2]))
    work = work_of(cloud)
    cloud.receive(draft_after(cloud, right[2:], pending=right[:2]))
    verdict = committed_of(cloud.complete(judgement_for(MODELS, cloud, work), Work()))
    assert (verdict.accepted, verdict.token_ids) == (2, ())
    following = work_of(cloud)
    assert (following.drafts, following.logits_to_keep) == (2, 2), (
        "the distribution before them was kept"
    )


PREPARED = scheduled("coupled", Schedule(4, 4, bonus=False, prepare_on_arrival=True))


def test_drafts_of_a_chunk_under_way_are_fed_ahead_once_and_judged_with_it() -> None:
    right = own_tokens(PREPARED, 4)
    cloud = ready_cloud(PREPARED)
    cloud.receive(draft_after(cloud, right[:1], end_of_chunk=False))
    work = work_of(cloud)
    assert (work.keep, work.token_ids, work.drafts, work.logits_to_keep) == (2, right[:1], 1, 1)
    assert cloud.complete(judgement_for(MODELS, cloud, work), Work()) == []
    assert (cloud.committed.since(2), cloud.kv_length) == ((), 2)
    cloud.receive(draft_after(cloud, right[1:2], pending=right[:1], end_of_chunk=False))
    assert cloud.work() is None
    assert cloud.receive(draft_after(cloud, right[2:], pending=right[:2])) == []
    work = work_of(cloud)
    assert (work.keep, work.prepared, work.token_ids) == (3, right[:1], right[1:])
    assert work.logits_to_keep == 3, "what follows the fed draft is known"
    verdict = committed_of(cloud.complete(judgement_for(MODELS, cloud, work), Work()))
    assert (verdict.accepted, verdict.token_ids, verdict.refuses) == (4, (), False)
    assert (verdict.work.target_passes, verdict.work.drafts) == (3, 4)
    assert cloud.committed.since(2) == right


def test_a_wrong_draft_that_was_fed_ahead_is_rejected_without_a_further_pass() -> None:
    right = own_tokens(PREPARED, 2)
    wrong = (right[0], (right[1] + 1) % V, 0, 0)
    cloud = ready_cloud(PREPARED)
    cloud.receive(draft_after(cloud, wrong[:3], end_of_chunk=False))
    assert pass_of(cloud) == []
    assert cloud.committed.since(2) == (), "a chunk that is not whole has no verdict"
    verdict = committed_of(cloud.receive(draft_after(cloud, wrong[3:], pending=wrong[:3])))
    assert (verdict.accepted, verdict.refuses, verdict.token_ids) == (1, True, (right[1],))
    assert (cloud.committed.since(2), cloud.kv_length) == (right, 3)
    cloud.receive(draft_after(cloud, (0,), end_of_chunk=False))
    work = work_of(cloud)
    assert (work.keep, work.token_ids, work.prepared) == (3, (right[1], 0), ())


def test_a_chunk_that_is_whole_while_it_is_prepared_is_judged_next() -> None:
    right = own_tokens(PREPARED, 4)
    cloud = ready_cloud(PREPARED)
    cloud.receive(draft_after(cloud, right[:2], end_of_chunk=False))
    work = work_of(cloud)
    cloud.receive(draft_after(cloud, right[2:], pending=right[:2]))
    assert cloud.complete(judgement_for(MODELS, cloud, work), Work()) == []
    verdict = committed_of(pass_of(cloud))
    assert verdict.accepted == 4


def test_nothing_is_done_after_the_end() -> None:
    chosen = preset("coupled", 4)
    right = own_tokens(chosen, 4)
    cloud = ready_cloud(chosen, ends=frozenset({right[1]}))
    cloud.receive(draft_after(cloud, right))
    verdict = committed_of(pass_of(cloud))
    expected = right.index(right[1]) + 1
    assert (verdict.accepted, verdict.token_ids) == (expected, ())
    assert cloud.finished
    assert cloud.work() is None
    late = draft_after(cloud, (0,), prefix_hash=1)
    assert cloud.receive(late) == [], "drafts past the end mean nothing"


def test_a_resumed_session_decides_as_before() -> None:
    """Positions are absolute: the same seed gives the same tokens from any resume point."""
    chosen = preset("coupled", 2)
    right = own_tokens(chosen, 5)
    text = PrefixedTokens((1, 2, *right[:3]))
    cloud = ready_cloud(preset("ar"), committed_ids=right[:3], base=5, prefix_hash=text.prefix)
    pass_of(cloud)
    assert cloud.committed.since(2) == right


@pytest.mark.parametrize(
    ("name", "kind"), [("dsd", int), ("dssd-full", FullPayload), ("dssd", SparsePayload)]
)
def test_the_answer_follows_the_preset(name: str, kind: type) -> None:
    outcomes: list[Replacement] = []

    def listen(edge: object, message: CloudMessage) -> bool:
        if isinstance(message, Committed) and message.refuses:
            outcomes.append(message.draw_from or message.token_ids[0])
        return True

    Lockstep(preset(name, 2), MODELS, to_edge=listen).run()
    assert {type(outcome) for outcome in outcomes} == {kind}


def test_verdicts_tell_the_likeliest_tokens_that_were_asked_for() -> None:
    cloud = opened_cloud(preset("ar"), logprobs=True, top_logprobs=2)
    tokens = committed_of(pass_of(cloud))
    (noted,) = tokens.logprobs
    probs = MODELS.target_probs((1, 2))
    assert [token_id for token_id, _ in noted.top] == list(np.argsort(-probs)[:2])


def test_a_text_that_is_not_fed_yet_is_fed_before_its_tree() -> None:
    """A pass under a tree's mask takes one token before it at most."""
    cloud = opened_cloud(tree((2,), "coupled"))
    cloud.receive(draft_after(cloud, (0, 1), parents=(-1, -1)))
    first = work_of(cloud)
    assert (first.token_ids, first.drafts, first.parents) == ((1, 2), 0, None)
    assert cloud.complete(judgement_for(MODELS, cloud, first), Work()) == []
    second = work_of(cloud)
    assert (second.token_ids, second.drafts) == ((0, 1), 2)


@pytest.mark.parametrize("wrong", [False, True])
def test_a_verdict_tells_what_it_cost_and_how_likely_its_tokens_were(wrong: bool) -> None:
    chosen = preset("coupled", 2)
    right = own_tokens(chosen, 3)
    cloud = ready_cloud(chosen, logprobs=True)
    cloud.receive(draft_after(cloud, (right[0], (right[1] + wrong) % V)))
    verdict = committed_of(pass_of(cloud))
    assert (verdict.refuses, verdict.work.target_passes, verdict.work.drafts) == (wrong, 2, 2)
    text = (1, 2, *right)
    probs = [MODELS.target_probs(text[:end])[text[end]] for end in range(2, 4 if wrong else 5)]
    assert [noted.logprob for noted in verdict.logprobs] == pytest.approx(np.log(probs))


def test_a_prompt_that_ends_as_answers_do_is_answered() -> None:
    """Chat templates close every turn with the token that ends an answer."""
    cloud = opened_cloud(preset("ar"), ends=frozenset({2}))
    assert not cloud.finished
    committed_of(pass_of(cloud))


def shared_cloud(budget: PassBudget) -> CloudMachine:
    """A session that shares the passes of a verifier with others."""
    return CloudMachine(opening(PRESETS["stream"]), model_for(MODELS), budget=budget)


@pytest.mark.parametrize("right", [True, False])
def test_a_draft_that_is_judged_without_a_pass_is_one_of_those_all_sessions_learn_from(
    right: bool,
) -> None:
    """Of four drafts 2.8 are guessed to be right; each that is seen takes 0.002 of that away."""
    (own,) = own_tokens(PRESETS["stream"], 1)
    budget = PassBudget()
    cloud = shared_cloud(budget)
    work = work_of(cloud)
    assert cloud.receive(draft_after(cloud, (own if right else (own + 1) % V,))) == []
    verdict = committed_of(cloud.complete(judgement_for(MODELS, cloud, work), Work()))
    assert (verdict.accepted, verdict.refuses) == (right, not right)
    assert cloud.committed.since(2) == (own,)
    assert budget.acceptance.rate == pytest.approx((0.998 * 2.8 + right) / (0.998 * 4 + 1))


def test_a_pass_that_takes_part_of_the_drafts_judges_one_more_than_it_feeds() -> None:
    """At this price one of four is worth feeding. The row after it judges the second, and nothing
    follows from that one's: it was not fed."""
    right = own_tokens(PRESETS["stream"], 5)
    budget = PassBudget()
    cloud = shared_cloud(budget)
    pass_of(cloud)
    budget.price = 0.5
    cloud.receive(draft_after(cloud, right[1:]))
    work = work_of(cloud)
    assert (work.token_ids, work.drafts, work.logits_to_keep) == (right[:2], 1, 2)
    verdict = committed_of(cloud.complete(judgement_for(MODELS, cloud, work), Work()))
    assert (verdict.accepted, verdict.token_ids) == (2, ())
    assert cloud.committed.since(2) == right[:3]
    assert cloud.kv_length == 4
