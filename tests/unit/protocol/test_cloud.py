"""The cloud's machine on its own: what an edge could get wrong, and what it must not change."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.core.laws import Sampling
from tandem.core.sparse_answer import SparseAnswer
from tandem.policy.presets import Preset, Schedule, Uplink
from tandem.protocol.cloud import CloudMachine
from tandem.protocol.intake import VocabularyMismatch
from tandem.protocol.messages import (
    Cancel,
    CloudMessage,
    Draft,
    EdgeMessage,
    FullAnswer,
    FullLaw,
    NeedFullLaw,
    Open,
    Outcome,
    Ping,
    Pong,
    Recovered,
    Tokens,
    Verdict,
    Work,
)
from tandem.protocol.prefixes import PrefixedTokens, PrefixMismatch
from tests.protocol.cases import ModelPair, model_pair, opposed_pair, preset, scheduled
from tests.protocol.lockstep import (
    CONTEXT_LENGTH,
    VOCABULARY_HASH,
    Lockstep,
    laws_for,
    model_for,
)

MODELS = opposed_pair()
V = MODELS.vocabulary_size
HUGE = 2**32 - 1


def state_of(cloud: CloudMachine) -> tuple[Any, ...]:
    """Everything a frame could have changed."""
    return (
        cloud.epoch,
        cloud.committed.since(0),
        cloud.kv_length,
        cloud.target_passes,
        cloud.ended,
        [proposal.token_id for proposal in cloud._pending],
        cloud._ready,
        cloud._next_base,
        cloud._frontier_law is None,
        cloud._refused_law is None,
        cloud._in_flight,
    )


def check_refused(
    cloud: CloudMachine, message: EdgeMessage, error: type[Exception], field: str = ""
) -> None:
    """The machine raises just this, and is then as it was."""
    before = state_of(cloud)
    with pytest.raises(error) as caught:
        cloud.receive(message)
    assert type(caught.value) is error
    if isinstance(caught.value, InvalidArgument):
        assert caught.value.field == field
    assert state_of(cloud) == before


def with_law(draft: Draft, change: Callable[[Any], Any]) -> Draft:
    """The draft with its first law changed, as a copy."""
    assert draft.laws is not None
    laws = draft.laws.copy()
    laws[0] = change(laws[0])
    return replace(draft, laws=laws)


def with_ids(draft: Draft, first: int) -> Draft:
    return replace(draft, token_ids=(first, *draft.token_ids[1:]))


def with_probability(draft: Draft, first: float) -> Draft:
    assert draft.probabilities is not None
    return replace(draft, probabilities=(first, *draft.probabilities[1:]))


def repeated(draft: Draft, times: int) -> Draft:
    assert draft.probabilities is not None
    return replace(
        draft, token_ids=draft.token_ids * times, probabilities=draft.probabilities * times
    )


def zero_at_token(draft: Draft) -> Draft:
    law = np.zeros(V, dtype=np.float32)
    law[(draft.token_ids[0] + 1) % V] = 1
    return with_law(draft, lambda _: law)


BadDraft = tuple[Callable[[Draft], EdgeMessage], type[Exception], str]
BAD_SPLIT_DRAFTS: dict[str, BadDraft] = {
    "token -1": (lambda d: with_ids(d, -1), InvalidArgument, "token_ids"),
    "token V": (lambda d: with_ids(d, V), InvalidArgument, "token_ids"),
    "token of 32 bits": (lambda d: with_ids(d, HUGE), InvalidArgument, "token_ids"),
    "NaN": (lambda d: with_probability(d, math.nan), InvalidArgument, "probabilities"),
    "infinite": (lambda d: with_probability(d, math.inf), InvalidArgument, "probabilities"),
    "negative": (lambda d: with_probability(d, -0.25), InvalidArgument, "probabilities"),
    "zero": (lambda d: with_probability(d, 0.0), InvalidArgument, "probabilities"),
    "above one": (lambda d: with_probability(d, 1.0001), InvalidArgument, "probabilities"),
    "no probabilities": (
        lambda d: replace(d, probabilities=None),
        InvalidArgument,
        "probabilities",
    ),
    "too few": (
        lambda d: replace(d, probabilities=(d.probabilities or ())[1:]),
        InvalidArgument,
        "probabilities",
    ),
    "laws unasked": (
        lambda d: replace(d, laws=np.full((len(d.token_ids), V), 1 / V)),
        InvalidArgument,
        "laws",
    ),
    "no tokens": (lambda d: repeated(d, 0), InvalidArgument, "draft_length"),
    "too many tokens": (lambda d: repeated(d, 9), InvalidArgument, "draft_length"),
    "a later epoch": (lambda d: replace(d, epoch=d.epoch + 1), InvalidArgument, "epoch"),
    "a gap": (lambda d: replace(d, base=d.base + 1), InvalidArgument, "base"),
    "another session": (lambda d: replace(d, session=d.session + 1), InvalidArgument, "session"),
    "another text": (lambda d: replace(d, prefix=d.prefix ^ 1), PrefixMismatch, ""),
    "recovered unasked": (
        lambda d: Recovered(d.session, d.epoch, d.base, d.prefix, token_id=0),
        InvalidArgument,
        "recovered",
    ),
    "a law unasked": (
        lambda d: NeedFullLaw(d.session, d.epoch, d.base, d.prefix),
        InvalidArgument,
        "need_full_law",
    ),
}
BAD_FULL_DRAFTS: dict[str, BadDraft] = {
    "one law short": (
        lambda d: replace(d, laws=None if d.laws is None else d.laws[:-1]),
        InvalidArgument,
        "laws",
    ),
    "a law too long": (
        lambda d: replace(d, laws=None if d.laws is None else np.pad(d.laws, ((0, 0), (0, 1)))),
        InvalidArgument,
        "laws",
    ),
    "no laws": (lambda d: replace(d, laws=None), InvalidArgument, "laws"),
    "not normalised": (lambda d: with_law(d, lambda law: law * 1.01), InvalidArgument, "laws"),
    "NaN": (lambda d: with_law(d, lambda law: law * math.nan), InvalidArgument, "laws"),
    "negative": (
        lambda d: with_law(d, lambda law: np.array([-0.5, 0.75, 0.75], dtype=np.float32)),
        InvalidArgument,
        "laws",
    ),
    "zero at the token": (zero_at_token, InvalidArgument, "laws"),
    "probabilities unasked": (
        lambda d: replace(d, probabilities=(0.5,) * len(d.token_ids)),
        InvalidArgument,
        "probabilities",
    ),
}


def check_bad_drafts(chosen: Preset, name: str, bad: BadDraft) -> None:
    change, error, field = bad
    tried = 0

    def disturb(cloud: CloudMachine, message: EdgeMessage) -> None:
        nonlocal tried
        if cloud.finished or message.epoch != cloud.epoch:
            return  # what is void is not even looked at
        if isinstance(message, Draft):
            check_refused(cloud, change(message), error, field)
            tried += 1

    calm = Lockstep(chosen, MODELS).run()
    assert Lockstep(chosen, MODELS, to_cloud=disturb).run() == calm, name
    assert tried > 3


SPLIT = preset("dssd", 2, answer_top=1, answer_tail_draws=0)


@pytest.mark.parametrize("name", BAD_SPLIT_DRAFTS)
def test_bad_drafts(name: str) -> None:
    check_bad_drafts(SPLIT, name, BAD_SPLIT_DRAFTS[name])


@pytest.mark.parametrize("name", BAD_SPLIT_DRAFTS)
def test_bad_drafts_in_a_pipeline(name: str) -> None:
    window_of_four = replace(SPLIT, schedule=Schedule(4, 2, bonus=False))
    check_bad_drafts(window_of_four, name, BAD_SPLIT_DRAFTS[name])


@pytest.mark.parametrize("name", BAD_FULL_DRAFTS)
def test_bad_laws(name: str) -> None:
    check_bad_drafts(preset("dsd", 2), name, BAD_FULL_DRAFTS[name])


def test_a_method_without_drafts_takes_none() -> None:
    cloud = opened_cloud(preset("ar"))
    check_refused(cloud, draft_after(cloud, (1,)), InvalidArgument, "draft_length")


def test_replayed_and_stale_rounds() -> None:
    """A draft of this epoch again is an error; one of an older epoch is void, and dropped."""
    sent: list[Draft] = []
    replayed = stale = 0

    def disturb(cloud: CloudMachine, message: EdgeMessage) -> None:
        nonlocal replayed, stale
        for old in sent:
            if cloud.finished or isinstance(message, Recovered):
                continue
            if old.epoch == cloud.epoch:
                check_refused(cloud, old, InvalidArgument, "base")
                replayed += 1
            else:
                before = state_of(cloud)
                assert cloud.receive(old) == []
                assert state_of(cloud) == before
                stale += 1
        if isinstance(message, Draft):
            sent.append(message)

    close = model_pair(V, noise=0.3)
    calm = Lockstep(preset("dsd", 2), close, max_tokens=30).run()
    assert Lockstep(preset("dsd", 2), close, max_tokens=30, to_cloud=disturb).run() == calm
    assert replayed > 3
    assert stale > 3


BAD_RECOVERED: dict[str, tuple[Callable[[Recovered], EdgeMessage], type[Exception], str]] = {
    "a draft first": (
        lambda r: Draft(
            r.session, r.epoch, r.base + 1, r.prefix, (0,), end_of_chunk=True, probabilities=(0.5,)
        ),
        InvalidArgument,
        "draft",
    ),
    "before the refusal": (lambda r: replace(r, base=r.base - 1), InvalidArgument, "base"),
    "after the refusal": (lambda r: replace(r, base=r.base + 1), InvalidArgument, "base"),
    "token -1": (lambda r: replace(r, token_id=-1), InvalidArgument, "token_id"),
    "token V": (lambda r: replace(r, token_id=V), InvalidArgument, "token_id"),
    "token of 32 bits": (lambda r: replace(r, token_id=HUGE), InvalidArgument, "token_id"),
    "a later epoch": (lambda r: replace(r, epoch=r.epoch + 1), InvalidArgument, "epoch"),
    "another session": (lambda r: replace(r, session=r.session + 1), InvalidArgument, "session"),
    "another text": (lambda r: replace(r, prefix=r.prefix ^ 1), PrefixMismatch, ""),
    "the law elsewhere": (
        lambda r: NeedFullLaw(r.session, r.epoch, r.base + 1, r.prefix),
        InvalidArgument,
        "need_full_law",
    ),
}


@pytest.mark.parametrize("name", BAD_RECOVERED)
@pytest.mark.parametrize("chosen", [SPLIT, preset("dssd-full", 2)], ids=["sparse", "full"])
def test_bad_recovered_tokens(chosen: Preset, name: str) -> None:
    change, error, field = BAD_RECOVERED[name]
    tried = 0

    def disturb(cloud: CloudMachine, message: EdgeMessage) -> None:
        nonlocal tried
        if isinstance(message, Recovered):
            check_refused(cloud, change(message), error, field)
            tried += 1

    calm = Lockstep(chosen, MODELS).run()
    assert Lockstep(chosen, MODELS, to_cloud=disturb).run() == calm
    assert tried > 2


def test_a_token_the_target_law_excludes_cannot_be_recovered() -> None:
    models = model_pair(6, noise=1.0, sampling=Sampling(top_k=2))
    chosen = preset("dssd-full", 2)
    tried = 0

    def disturb(cloud: CloudMachine, message: EdgeMessage) -> None:
        nonlocal tried
        if isinstance(message, Recovered):
            law = models.target_law(cloud.committed.since(0))
            for token in np.flatnonzero(law == 0):
                impossible = replace(message, token_id=int(token))
                check_refused(cloud, impossible, InvalidArgument, "token_id")
                tried += 1

    calm = Lockstep(chosen, models).run()
    assert Lockstep(chosen, models, to_cloud=disturb).run() == calm
    assert tried > 4


def test_a_full_law_may_be_asked_for_again() -> None:
    asked = 0

    def ask_twice(cloud: CloudMachine, message: EdgeMessage) -> None:
        nonlocal asked
        if isinstance(message, NeedFullLaw):
            (answer,) = cloud.receive(message)
            assert isinstance(answer, FullLaw)
            expected = MODELS.target_law(cloud.committed.since(0))
            np.testing.assert_array_equal(answer.target_probs, expected)
            asked += 1

    calm = Lockstep(SPLIT, MODELS).run()
    assert Lockstep(SPLIT, MODELS, to_cloud=ask_twice).run() == calm
    assert asked > 0


def opening(chosen: Preset, **changes: Any) -> Open:
    committed = PrefixedTokens((1, 2))
    return replace(
        Open(
            session=7,
            epoch=0,
            base=2,
            prefix=committed.prefix,
            vocabulary_hash=VOCABULARY_HASH,
            vocabulary_size=V,
            prompt_ids=(1, 2),
            committed_ids=(),
            sampling=MODELS.sampling,
            seed=1,
            max_tokens=20,
            ignore_eos=False,
            preset=chosen,
        ),
        **changes,
    )


def opened_cloud(
    chosen: Preset, ends: frozenset[int] = frozenset(), **changes: Any
) -> CloudMachine:
    return CloudMachine(opening(chosen, **changes), model_for(MODELS, ends))


def pass_of(cloud: CloudMachine, models: ModelPair = MODELS) -> list[CloudMessage]:
    """Do the work that is due."""
    work = cloud.work()
    assert work is not None
    return cloud.complete(laws_for(models, cloud, work), Work())


def draft_after(
    cloud: CloudMachine, token_ids: tuple[int, ...], pending: tuple[int, ...] = (), **changes: Any
) -> Draft:
    """A draft that follows the committed text and what is pending."""
    base = len(cloud.committed) + len(pending)
    draft = Draft(
        7, cloud.epoch, base, cloud.committed.prefix_with(pending), token_ids, end_of_chunk=True
    )
    return replace(draft, **changes)


BAD_OPENINGS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "another vocabulary": ({"vocabulary_hash": "other"}, VocabularyMismatch, ""),
    "another vocabulary size": ({"vocabulary_size": V + 1}, VocabularyMismatch, ""),
    "no prompt": ({"prompt_ids": ()}, InvalidArgument, "prompt_ids"),
    "token -1": ({"prompt_ids": (1, -1)}, InvalidArgument, "prompt_ids"),
    "token V": ({"prompt_ids": (1, V)}, InvalidArgument, "prompt_ids"),
    "token of 32 bits": ({"prompt_ids": (HUGE, 1)}, InvalidArgument, "prompt_ids"),
    "a bad resume point": ({"committed_ids": (1, V)}, InvalidArgument, "committed_ids"),
    "nothing left to do": (
        {"committed_ids": (1, 2), "max_tokens": 2},
        InvalidArgument,
        "committed_ids",
    ),
    "a prompt as long as the context": (
        {"prompt_ids": (1,) * CONTEXT_LENGTH},
        InvalidArgument,
        "prompt_ids",
    ),
    "an answer beyond the context": (
        {"max_tokens": CONTEXT_LENGTH - 1},
        InvalidArgument,
        "max_tokens",
    ),
    "no tokens wanted": ({"max_tokens": 0}, InvalidArgument, "max_tokens"),
    "a bad temperature": ({"sampling": Sampling(math.nan)}, InvalidArgument, "temperature"),
    "a bad top-k": ({"sampling": Sampling(top_k=V + 1)}, InvalidArgument, "top_k"),
    "a bad top-p": ({"sampling": Sampling(top_p=0.0)}, InvalidArgument, "top_p"),
    "a biased method": ({"preset": preset("dsd", uplink=Uplink.IDS)}, InvalidArgument, "uplink"),
    "another base": ({"base": 3}, InvalidArgument, "base"),
    "another text": ({"prefix": 1}, PrefixMismatch, ""),
    "a text not told": ({"committed_ids": (1,)}, InvalidArgument, "base"),
}


@pytest.mark.parametrize("name", BAD_OPENINGS)
def test_bad_openings(name: str) -> None:
    changes, error, field = BAD_OPENINGS[name]
    with pytest.raises(error) as caught:
        opened_cloud(preset("dsd"), **{"preset": preset("dsd"), **changes})
    assert type(caught.value) is error
    if isinstance(caught.value, InvalidArgument):
        assert caught.value.field == field


def test_the_longest_answer_the_context_holds() -> None:
    cloud = opened_cloud(preset("ar"), max_tokens=CONTEXT_LENGTH - 2)
    assert not cloud.finished


def test_a_second_opening() -> None:
    cloud = opened_cloud(preset("dsd"))
    check_refused(cloud, opening(preset("dsd")), InvalidArgument, "open")


def test_opened_tells_the_servers_terms() -> None:
    opened = opened_cloud(preset("dsd"), frozenset({2})).opened()
    assert opened.eos_token_ids == {2}
    assert opened.max_draft_length == 8
    assert opened.context_length == CONTEXT_LENGTH
    assert (opened.session, opened.epoch, opened.base) == (7, 0, 2)


def test_a_ping_is_answered_at_any_time() -> None:
    cloud = opened_cloud(preset("dsd"))
    assert cloud.work() is not None
    ping = Ping(7, 0, 2, cloud.committed.prefix, nonce=5)
    assert cloud.receive(ping) == [Pong(7, 0, 2, cloud.committed.prefix, nonce=5)]


def test_cancel_ends_everything() -> None:
    cloud = opened_cloud(preset("ar"))
    work = cloud.work()
    assert work is not None
    assert cloud.receive(Cancel(7, 0, 2, cloud.committed.prefix)) == []
    assert cloud.ended
    assert cloud.complete(laws_for(MODELS, cloud, work), Work()) == []
    assert cloud.work() is None
    assert cloud.receive(Ping(7, 0, 2, 0, nonce=1)) == []


def test_the_shells_mistakes_are_protocol_errors() -> None:
    cloud = opened_cloud(preset("dsd"))
    with pytest.raises(ProtocolError, match="no work in flight"):
        cloud.complete(np.zeros((1, V)), Work())
    assert cloud.work() is not None
    with pytest.raises(ProtocolError, match="1 laws wanted"):
        cloud.complete(np.zeros((2, V)), Work())


def test_one_work_at_a_time() -> None:
    cloud = opened_cloud(preset("ar"))
    assert cloud.work() is not None
    assert cloud.work() is None
    cloud.complete(np.eye(V, dtype=np.float32)[:1], Work())
    assert cloud.work() is not None


def test_the_prompt_is_computed_before_any_draft_comes() -> None:
    cloud = opened_cloud(preset("coupled", 2))
    work = cloud.work()
    assert work is not None
    assert (work.keep, work.token_ids, work.wanted, work.drafts) == (0, (1, 2), 1, 0)
    assert cloud.complete(laws_for(MODELS, cloud, work), Work()) == []
    assert cloud.kv_length == 2
    assert cloud.work() is None


def own_tokens(chosen: Preset, count: int) -> tuple[int, ...]:
    """What the cloud would say alone under shared noise."""
    cloud = opened_cloud(replace(chosen, schedule=preset("ar").schedule))
    for _ in range(count):
        pass_of(cloud)
    return cloud.committed.since(2)


def test_a_wrong_first_draft_is_refused_without_a_pass() -> None:
    """The law after the prompt is there already."""
    chosen = preset("coupled", 2)
    (right,) = own_tokens(chosen, 1)
    cloud = opened_cloud(chosen)
    pass_of(cloud)
    (verdict,) = cloud.receive(draft_after(cloud, ((right + 1) % V, 0)))
    assert isinstance(verdict, Verdict)
    assert (verdict.accepted, verdict.rejected, verdict.outcome) == (0, True, right)
    assert verdict.epoch == cloud.epoch == 1
    assert cloud.target_passes == 1
    assert cloud.kv_length == 2


def test_an_accepted_chunk_brings_a_bonus_and_its_kv() -> None:
    chosen = preset("coupled", 2)
    first, second, third = own_tokens(chosen, 3)
    cloud = opened_cloud(chosen)
    pass_of(cloud)
    assert cloud.receive(draft_after(cloud, (first, second))) == []
    work = cloud.work()
    assert work is not None
    assert (work.keep, work.token_ids, work.wanted, work.drafts) == (2, (first, second), 2, 2)
    (verdict,) = cloud.complete(laws_for(MODELS, cloud, work), Work())
    assert isinstance(verdict, Verdict)
    assert (verdict.accepted, verdict.rejected, verdict.outcome) == (2, False, third)
    assert verdict.prefix == cloud.committed.prefix
    assert cloud.kv_length == 4, "the bonus token has not been fed"


def test_a_refused_token_leaves_the_kv_of_what_stands() -> None:
    chosen = preset("coupled", 3)
    first, second = own_tokens(chosen, 2)
    cloud = opened_cloud(chosen)
    pass_of(cloud)
    cloud.receive(draft_after(cloud, (first, (second + 1) % V, 0)))
    (verdict,) = pass_of(cloud)
    assert isinstance(verdict, Verdict)
    assert (verdict.accepted, verdict.rejected, verdict.outcome) == (1, True, second)
    assert cloud.kv_length == 3
    assert len(cloud.committed) == 4


def test_drafts_wait_for_their_chunk_unless_verified_on_arrival() -> None:
    for on_arrival in (False, True):
        chosen = scheduled("coupled", Schedule(4, 4, verify_on_arrival=on_arrival))
        right = own_tokens(chosen, 4)
        cloud = opened_cloud(chosen)
        pass_of(cloud)
        assert cloud.receive(draft_after(cloud, right[:2], end_of_chunk=False)) == []
        assert (cloud.work() is not None) == on_arrival
        if not on_arrival:
            cloud.receive(draft_after(cloud, right[2:], pending=right[:2]))
            work = cloud.work()
            assert work is not None
            assert work.drafts == 4


def test_more_drafts_than_the_window() -> None:
    chosen = scheduled("coupled", Schedule(4, 2))
    right = own_tokens(chosen, 6)
    cloud = opened_cloud(chosen)
    cloud.work()
    assert cloud.receive(draft_after(cloud, right[:2])) == []
    assert cloud.receive(draft_after(cloud, right[2:4], pending=right[:2])) == []
    beyond = draft_after(cloud, right[4:], pending=right[:4])
    check_refused(cloud, beyond, InvalidArgument, "draft_length")


def test_drafts_beyond_the_answer() -> None:
    cloud = opened_cloud(preset("coupled", 4), max_tokens=3)
    check_refused(cloud, draft_after(cloud, (0, 0, 0, 0)), InvalidArgument, "token_ids")


def test_drafts_that_come_during_a_pass_wait_for_the_next() -> None:
    """A whole chunk gets one verdict, whenever it came."""
    chosen = scheduled("coupled", Schedule(4, 2, bonus=False))
    right = own_tokens(chosen, 4)
    cloud = opened_cloud(chosen)
    pass_of(cloud)
    cloud.receive(draft_after(cloud, right[:2]))
    work = cloud.work()
    assert work is not None
    cloud.receive(draft_after(cloud, right[2:], pending=right[:2]))
    (verdict,) = cloud.complete(laws_for(MODELS, cloud, work), Work())
    assert isinstance(verdict, Verdict)
    assert (verdict.accepted, verdict.outcome) == (2, None)
    following = cloud.work()
    assert following is not None
    assert (following.drafts, following.wanted) == (2, 2), "the law before them was kept"


def test_an_idle_cloud_goes_on_until_a_draft_waits() -> None:
    chosen = scheduled("coupled", Schedule(2, 1, decode_when_idle=True))
    right = own_tokens(chosen, 3)
    cloud = opened_cloud(chosen)
    (tokens,) = pass_of(cloud)
    assert isinstance(tokens, Tokens)
    assert tokens.token_ids == right[:1]
    work = cloud.work()
    assert work is not None
    assert cloud.receive(draft_after(cloud, right[1:2])) == []
    assert cloud.complete(laws_for(MODELS, cloud, work), Work()) == []
    (verdict,) = pass_of(cloud)
    assert isinstance(verdict, Verdict)
    assert (verdict.accepted, verdict.outcome) == (1, right[2])


def test_a_late_draft_is_compared_with_what_the_cloud_decoded() -> None:
    chosen = scheduled("coupled", Schedule(4, 2, decode_when_idle=True))
    right = own_tokens(chosen, 3)
    for token, epoch in ((right[0], 0), ((right[0] + 1) % V, 1)):
        cloud = opened_cloud(chosen)
        late = draft_after(cloud, (token, right[1]))
        pass_of(cloud)
        assert cloud.receive(late) == []
        assert cloud.epoch == epoch
        work = cloud.work()
        assert work is not None
        assert work.drafts == (1 if epoch == 0 else 0), "what follows an equal token stays valid"


def test_nothing_is_done_after_the_end() -> None:
    chosen = preset("coupled", 4)
    right = own_tokens(chosen, 4)
    cloud = opened_cloud(chosen, ends=frozenset({right[1]}))
    pass_of(cloud)
    cloud.receive(draft_after(cloud, right))
    (verdict,) = pass_of(cloud)
    assert isinstance(verdict, Verdict)
    expected = right.index(right[1]) + 1
    assert (verdict.accepted, verdict.outcome) == (expected, None)
    assert cloud.finished
    assert cloud.work() is None
    late = draft_after(cloud, (0,), epoch=5, prefix=1)
    assert cloud.receive(late) == [], "drafts past the end mean nothing"


def test_a_resumed_session_decides_as_before() -> None:
    """Positions are absolute: the same seed gives the same tokens from any resume point."""
    chosen = preset("coupled", 2)
    right = own_tokens(chosen, 5)
    text = PrefixedTokens((1, 2, *right[:3]))
    cloud = opened_cloud(preset("ar"), committed_ids=right[:3], base=5, prefix=text.prefix, epoch=4)
    pass_of(cloud)
    pass_of(cloud)
    assert cloud.committed.since(2) == right
    assert cloud.epoch == 4


@pytest.mark.parametrize(
    ("name", "kind"), [("dsd", int), ("dssd-full", FullAnswer), ("dssd", SparseAnswer)]
)
def test_the_answer_follows_the_preset(name: str, kind: type) -> None:
    outcomes: list[Outcome] = []

    def listen(edge: object, message: CloudMessage) -> bool:
        if isinstance(message, Verdict) and message.rejected:
            outcomes.append(message.outcome)
        return True

    Lockstep(preset(name, 2), MODELS, to_edge=listen).run()
    assert {type(outcome) for outcome in outcomes} == {kind}
