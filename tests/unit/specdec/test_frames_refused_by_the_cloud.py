"""What an edge could get wrong: each fault has its exception, and changes nothing."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tandem.core.errors import FailedPrecondition, InvalidArgument
from tandem.core.probs import SamplingParams
from tandem.core.tokens import PrefixMismatch
from tandem.core.tree import children
from tandem.specdec.choices import Schedule, Uplink
from tandem.specdec.cloud import CloudMachine, State
from tandem.specdec.messages import Drafts, EdgeMessage
from tandem.specdec.presets import Preset
from tandem.specdec.rounds.messages import NeedFullDistribution, Recovered
from tests.virtual_time.cases import model_pair, preset, scheduled, tree
from tests.virtual_time.cloud_frames import (
    MODELS,
    V,
    check_refused,
    draft_after,
    opened_cloud,
    opening,
    own_tokens,
)
from tests.virtual_time.lockstep import CONTEXT_LENGTH, Lockstep
from tests.virtual_time.machine_state import state_of

HUGE = 2**32 - 1


def with_probs(draft: Drafts, change: Callable[[Any], Any]) -> Drafts:
    """The draft with its first distribution changed, as a copy."""
    assert draft.distributions is not None
    distributions = draft.distributions.copy()
    distributions[0] = change(distributions[0])
    return replace(draft, distributions=distributions)


def with_ids(draft: Drafts, first: int) -> Drafts:
    return replace(draft, token_ids=(first, *draft.token_ids[1:]))


def with_probability(draft: Drafts, first: float) -> Drafts:
    assert draft.probabilities is not None
    return replace(draft, probabilities=(first, *draft.probabilities[1:]))


def repeated(draft: Drafts, times: int) -> Drafts:
    assert draft.probabilities is not None
    return replace(
        draft, token_ids=draft.token_ids * times, probabilities=draft.probabilities * times
    )


def zero_at_token(draft: Drafts) -> Drafts:
    probs = np.zeros(V, dtype=np.float32)
    probs[(draft.token_ids[0] + 1) % V] = 1
    return with_probs(draft, lambda _: probs)


BadDraft = tuple[Callable[[Drafts], EdgeMessage], type[Exception], str]


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
    "distributions unasked": (
        lambda d: replace(d, distributions=np.full((len(d.token_ids), V), 1 / V)),
        InvalidArgument,
        "distributions",
    ),
    "no tokens": (lambda d: repeated(d, 0), InvalidArgument, "draft_length"),
    "too many tokens": (lambda d: repeated(d, 9), InvalidArgument, "draft_length"),
    "another session": (lambda d: replace(d, session=d.session + 1), InvalidArgument, "session"),
    "recovered unasked": (
        lambda d: Recovered(d.session, d.base, d.prefix_hash, token_id=0),
        InvalidArgument,
        "recovered",
    ),
    "a distribution unasked": (
        lambda d: NeedFullDistribution(d.session, d.base, d.prefix_hash),
        InvalidArgument,
        "need_full_distribution",
    ),
}
BAD_FULL_DRAFTS: dict[str, BadDraft] = {
    "one distribution short": (
        lambda d: replace(
            d, distributions=None if d.distributions is None else d.distributions[:-1]
        ),
        InvalidArgument,
        "distributions",
    ),
    "a distribution too long": (
        lambda d: replace(
            d,
            distributions=None
            if d.distributions is None
            else np.pad(d.distributions, ((0, 0), (0, 1))),
        ),
        InvalidArgument,
        "distributions",
    ),
    "no distributions": (
        lambda d: replace(d, distributions=None),
        InvalidArgument,
        "distributions",
    ),
    "not normalised": (
        lambda d: with_probs(d, lambda probs: probs * 1.01),
        InvalidArgument,
        "distributions",
    ),
    "NaN": (
        lambda d: with_probs(d, lambda probs: probs * math.nan),
        InvalidArgument,
        "distributions",
    ),
    "negative": (
        lambda d: with_probs(d, lambda probs: np.array([-0.5, 0.75, 0.75], dtype=np.float32)),
        InvalidArgument,
        "distributions",
    ),
    "zero at the token": (zero_at_token, InvalidArgument, "distributions"),
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
        if isinstance(message, Drafts) and cloud.state in (State.IDLE, State.PASS):
            check_refused(cloud, change(message), error, field)
            tried += 1

    calm = Lockstep(chosen, MODELS).run()
    assert Lockstep(chosen, MODELS, to_cloud=disturb).run() == calm, name
    assert tried > 3


SPLIT = preset("dssd", 2, payload_top=1, payload_tail_draws=0)


@pytest.mark.parametrize("name", BAD_SPLIT_DRAFTS)
def test_bad_drafts(name: str) -> None:
    check_bad_drafts(SPLIT, name, BAD_SPLIT_DRAFTS[name])


@pytest.mark.parametrize("name", BAD_SPLIT_DRAFTS)
def test_bad_drafts_in_a_pipeline(name: str) -> None:
    window_of_four = replace(SPLIT, schedule=Schedule(4, 2, bonus=False))
    check_bad_drafts(window_of_four, name, BAD_SPLIT_DRAFTS[name])


@pytest.mark.parametrize("name", BAD_FULL_DRAFTS)
def test_bad_distributions(name: str) -> None:
    check_bad_drafts(preset("dsd", 2), name, BAD_FULL_DRAFTS[name])


def test_a_method_without_drafts_takes_none() -> None:
    cloud = opened_cloud(preset("ar"))
    check_refused(cloud, draft_after(cloud, (1,)), InvalidArgument, "draft_length")


VOID_DRAFTS: dict[str, Callable[[Drafts], Drafts]] = {
    "a gap": lambda d: replace(d, base=d.base + 1),
    "far beyond the text": lambda d: replace(d, base=HUGE),
    "before its text": lambda d: replace(d, base=d.base - 1),
    "another text": lambda d: replace(d, prefix_hash=d.prefix_hash ^ 1),
}


@pytest.mark.parametrize("name", VOID_DRAFTS)
@pytest.mark.parametrize(
    "chosen",
    [SPLIT, replace(SPLIT, schedule=Schedule(4, 2, bonus=False)), preset("dsd", 2), tree((2, 1))],
    ids=["split", "pipelined", "full", "tree"],
)
def test_drafts_that_follow_no_text_of_the_cloud_change_nothing(chosen: Preset, name: str) -> None:
    tried = 0

    def disturb(cloud: CloudMachine, message: EdgeMessage) -> None:
        nonlocal tried
        if isinstance(message, Drafts):
            check_dropped(cloud, VOID_DRAFTS[name](message))
            tried += 1

    calm = Lockstep(chosen, MODELS).run()
    assert Lockstep(chosen, MODELS, to_cloud=disturb).run() == calm
    assert tried > 3


def check_dropped(cloud: CloudMachine, message: EdgeMessage) -> None:
    before = state_of(cloud)
    assert cloud.receive(message) == []
    assert state_of(cloud) == before


@pytest.mark.parametrize(
    "chosen",
    [
        preset("dsd", 2),
        preset("coupled", 2),
        scheduled("coupled", Schedule(4, 2)),
        scheduled("dsd", Schedule(4, 2, bonus=False)),
        tree((2, 1)),
    ],
    ids=["dsd", "coupled", "coupled, pipelined", "dsd, pipelined", "tree"],
)
def test_every_draft_that_was_ever_sent_may_come_again(chosen: Preset) -> None:
    """Whether it was judged, waits, or follows a text that is gone."""
    sent: list[Drafts] = []
    tried = 0

    def disturb(cloud: CloudMachine, message: EdgeMessage) -> None:
        nonlocal tried
        before = cloud.committed.since(0)
        for old in sent:
            assert cloud.receive(old) == []
            tried += 1
        assert cloud.committed.since(0) == before
        if isinstance(message, Drafts):
            sent.append(message)

    close = model_pair(V, noise=0.3)
    calm = Lockstep(chosen, close, max_tokens=30).run()
    assert Lockstep(chosen, close, max_tokens=30, to_cloud=disturb).run() == calm
    assert tried > 20


def test_where_a_draft_differs_from_what_waits_the_rest_of_it_is_void() -> None:
    chosen = scheduled("coupled", Schedule(4, 2))
    right = own_tokens(chosen, 5)
    other = (right[1] + 1) % V
    cloud = opened_cloud(chosen)
    cloud.receive(draft_after(cloud, right[:2]))
    for void in (
        draft_after(cloud, (right[0], other, right[2])),
        draft_after(cloud, (other, right[2]), pending=right[:1]),
    ):
        assert cloud.receive(void) == []
    assert cloud.receive(draft_after(cloud, right[1:4], pending=right[:1])) == []
    work = cloud.work()
    assert work is not None
    assert (work.token_ids, work.drafts) == ((1, 2, *right[:4]), 4)


BAD_RECOVERED: dict[str, tuple[Callable[[Recovered], EdgeMessage], type[Exception], str]] = {
    "before the rejection": (lambda r: replace(r, base=r.base - 1), InvalidArgument, "base"),
    "after the rejection": (lambda r: replace(r, base=r.base + 1), InvalidArgument, "base"),
    "token -1": (lambda r: replace(r, token_id=-1), InvalidArgument, "token_id"),
    "token V": (lambda r: replace(r, token_id=V), InvalidArgument, "token_id"),
    "token of 32 bits": (lambda r: replace(r, token_id=HUGE), InvalidArgument, "token_id"),
    "another session": (lambda r: replace(r, session=r.session + 1), InvalidArgument, "session"),
    "another text": (lambda r: replace(r, prefix_hash=r.prefix_hash ^ 1), PrefixMismatch, ""),
    "the distribution elsewhere": (
        lambda r: NeedFullDistribution(r.session, r.base + 1, r.prefix_hash),
        InvalidArgument,
        "need_full_distribution",
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


def test_a_token_the_target_distribution_excludes_cannot_be_recovered() -> None:
    models = model_pair(6, noise=1.0, sampling=SamplingParams(top_k=2))
    chosen = preset("dssd-full", 2)
    tried = 0

    def disturb(cloud: CloudMachine, message: EdgeMessage) -> None:
        nonlocal tried
        if isinstance(message, Recovered):
            probs = models.target_probs(cloud.committed.since(0))
            for token in np.flatnonzero(probs == 0):
                impossible = replace(message, token_id=int(token))
                check_refused(cloud, impossible, InvalidArgument, "token_id")
                tried += 1

    calm = Lockstep(chosen, models).run()
    assert Lockstep(chosen, models, to_cloud=disturb).run() == calm
    assert tried > 4


BIASED = preset("dsd", uplink=Uplink.IDS).verify_settings
BAD_OPENINGS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "another vocabulary": ({"vocabulary_hash": "other"}, FailedPrecondition, ""),
    "another vocabulary size": ({"vocabulary_size": V + 1}, FailedPrecondition, ""),
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
    "a bad temperature": ({"sampling": SamplingParams(math.nan)}, InvalidArgument, "temperature"),
    "a bad top-k": ({"sampling": SamplingParams(top_k=V + 1)}, InvalidArgument, "top_k"),
    "a bad top-p": ({"sampling": SamplingParams(top_p=0.0)}, InvalidArgument, "top_p"),
    "a biased method": ({"settings": BIASED}, InvalidArgument, "uplink"),
    "another base": ({"base": 3}, InvalidArgument, "base"),
    "another text": ({"prefix_hash": 1}, PrefixMismatch, ""),
    "a text that was not sent": ({"committed_ids": (1,)}, InvalidArgument, "base"),
}


@pytest.mark.parametrize("name", BAD_OPENINGS)
def test_bad_openings(name: str) -> None:
    changes, error, field = BAD_OPENINGS[name]
    with pytest.raises(error) as caught:
        opened_cloud(preset("dsd"), **changes)
    assert type(caught.value) is error
    if isinstance(caught.value, InvalidArgument):
        assert caught.value.field == field


def test_the_longest_answer_the_context_holds() -> None:
    cloud = opened_cloud(preset("ar"), max_tokens=CONTEXT_LENGTH - 2)
    assert not cloud.finished


def test_a_second_opening() -> None:
    cloud = opened_cloud(preset("dsd"))
    check_refused(cloud, opening(preset("dsd")), InvalidArgument, "open")


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


def test_a_draft_may_be_certain() -> None:
    cloud = opened_cloud(SPLIT)
    assert cloud.receive(draft_after(cloud, (0, 1), probabilities=(1.0, 0.5))) == []


def tree_after(cloud: CloudMachine, tokens: tuple[int, ...], parents: tuple[int, ...]) -> Drafts:
    expanded = len(children(parents))
    return draft_after(
        cloud,
        tokens,
        parents=parents,
        distributions=np.full((expanded, V), 1 / V, dtype=np.float32),
    )


@pytest.mark.parametrize(
    ("tokens", "parents", "field"),
    [
        ((0, 1, 2), (-1, 0, 1), "parents"),  # a third layer
        ((0, 1, 2), (-1, -1, -1), "parents"),  # a third candidate first
        ((0, 1, 2), (-1, 0, 0), "parents"),  # a second candidate in the second layer
        ((0, 1, 2), (-1, -1, 1), None),
        ((0, 1, 2), (-1, -1, 0), None),
        ((0, 1, 2, 2), (-1, -1, 0, 1), None),  # the same token after two nodes
        ((1, 1), (-1, -1), "token_ids"),
        ((0, 1), (0, -1), "parents"),
    ],
)
def test_trees_fit_the_expansion(
    tokens: tuple[int, ...], parents: tuple[int, ...], field: str | None
) -> None:
    cloud = opened_cloud(tree((2, 1)))
    message = tree_after(cloud, tokens, parents)
    if field is None:
        assert cloud.receive(message) == []
    else:
        check_refused(cloud, message, InvalidArgument, field)


def test_candidates_with_replacement_may_repeat() -> None:
    cloud = opened_cloud(tree((2, 1), with_replacement=True))
    assert cloud.receive(tree_after(cloud, (1, 1), (-1, -1))) == []


@pytest.mark.parametrize(("max_tokens", "fits"), [(1, False), (2, True), (3, True)])
def test_a_tree_beyond_the_answer(max_tokens: int, fits: bool) -> None:
    cloud = opened_cloud(tree((2, 1)), max_tokens=max_tokens)
    message = tree_after(cloud, (0, 1), (-1, 0))
    if fits:
        assert cloud.receive(message) == []
    else:
        check_refused(cloud, message, InvalidArgument, "token_ids")


def test_one_tree_waits_at_a_time_and_starts_where_the_text_ends() -> None:
    cloud = opened_cloud(tree((2, 1)))
    first = tree_after(cloud, (0, 1), (-1, -1))
    text = cloud.committed
    check_dropped(cloud, replace(first, base=1, prefix_hash=text.prefix_at(1)))
    assert cloud.receive(first) == []
    check_dropped(cloud, first)
    check_dropped(cloud, tree_after(cloud, (1, 2), (-1, -1)))


def test_drafts_have_the_shape_that_was_opened() -> None:
    cloud = opened_cloud(tree((2, 1)))
    whole = tree_after(cloud, (0, 1), (-1, -1))
    check_refused(cloud, replace(whole, parents=None), InvalidArgument, "parents")
    chain = opened_cloud(preset("coupled", 2))
    check_refused(chain, draft_after(chain, (0, 1), parents=(-1, 0)), InvalidArgument, "parents")


@pytest.mark.parametrize(
    ("parents", "fits"),
    [((-1, -1, 0, 1), True), ((-1, 0, 0), False), ((-1, 0, 1, 1), True), ((-1, 0, 1, 1, 1), False)],
)
def test_each_layer_has_its_own_number_of_candidates(parents: tuple[int, ...], fits: bool) -> None:
    """Two, then one, then two."""
    cloud = opened_cloud(tree((2, 1, 2)))
    message = tree_after(cloud, (0, 1, 2, 0, 1)[: len(parents)], parents)
    if fits:
        assert cloud.receive(message) == []
    else:
        check_refused(cloud, message, InvalidArgument, "parents")
