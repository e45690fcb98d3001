"""A cloud that drafts from what it remembers: in which sessions, how far, and with what result."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from tandem.core.errors import ProtocolError
from tandem.core.probs import SamplingParams
from tandem.core.tokens import PrefixedTokens
from tandem.specdec.checks import check_committed
from tandem.specdec.choices import Acceptance, CloudDrafts
from tandem.specdec.cloud import CloudMachine
from tandem.specdec.cloud_drafting import may_recall
from tandem.specdec.events import NO_PROBS, Drafted, DraftTask
from tandem.specdec.messages import Committed, Open, Work
from tandem.specdec.presets import Preset
from tests.virtual_time.cases import TokenIds, model_pair, preset
from tests.virtual_time.cloud_frames import committed_of, opening, pass_of, prefilled, work_of
from tests.virtual_time.lockstep import model_for, request_for, texts_for

VOCABULARY = 30
MODELS = model_pair(VOCABULARY, sharpness=5.0, noise=0.3)
GREEDY = SamplingParams(temperature=0.0)
PROMPT = (3, 1, 4, 11, 5, 9)
LENGTH = 24
LOOKUP = preset("cloud-draft", 4, cloud_drafts=CloudDrafts.LOOKUP)
BY_MODEL = preset("cloud-draft", 3)
ANY_KIND = preset("auto", cloud_draft_length=3)
REJECTION = preset("cloud-draft", 3, acceptance=Acceptance.REJECTION)


def opened(chosen: Preset, answered: TokenIds = (), **changes: Any) -> Open:
    text = PrefixedTokens((*PROMPT, *answered))
    asked = {
        "prompt_ids": PROMPT,
        "committed_ids": answered,
        "base": len(text),
        "prefix_hash": text.prefix,
        "vocabulary_size": VOCABULARY,
        "max_tokens": LENGTH,
        "allows_memory": True,
    }
    return opening(chosen, **(asked | changes))


def cloud_of(
    asked: Open,
    *texts: Sequence[int],
    ends: frozenset[int] = frozenset(),
    max_draft_length: int = 64,
) -> CloudMachine:
    """A cloud that remembers these texts, which were always right so far."""
    model = replace(model_for(MODELS, ends), max_draft_length=max_draft_length)
    memory = texts_for(PROMPT, VOCABULARY, [tuple(text) for text in texts])
    return CloudMachine(asked, model, memory=memory)


def text_of(cloud: CloudMachine) -> TokenIds:
    """What it answers without an edge. A draft model that it may have drafts nothing right."""
    while not cloud.finished:
        if (task := cloud.draft_task()) is not None:
            wrong = (int(MODELS.target_probs(cloud.committed.since(0)).argmin()),)
            drafts = [Drafted(token_id, NO_PROBS) for token_id in wrong[: task.count]]
            cloud.drafted(task, drafts, len(cloud.committed) - 1)
        pass_of(cloud, MODELS)
    return cloud.committed.since(len(PROMPT))


ANSWER = text_of(cloud_of(opened(preset("ar"))))


def other(token_id: int) -> int:
    return (token_id + 1) % VOCABULARY


@pytest.mark.parametrize("chosen", [LOOKUP, BY_MODEL, ANY_KIND])
def test_what_was_answered_before_is_judged_in_few_passes(chosen: Preset) -> None:
    again = cloud_of(opened(chosen), (*PROMPT, *ANSWER))
    assert text_of(again) == ANSWER
    assert again.accepted_memory_tokens > LENGTH / 2
    assert again.target_passes <= LENGTH / 3
    first = cloud_of(opened(chosen))
    assert text_of(first) == ANSWER
    assert first.target_passes > 2 * again.target_passes


def test_where_the_memory_is_sure_the_draft_model_does_nothing() -> None:
    cloud = prefilled(cloud_of(opened(BY_MODEL), (*PROMPT, *ANSWER[:6])))
    pass_of(cloud, MODELS)
    assert cloud.draft_task() is None
    work = work_of(cloud)
    assert work.by_cloud
    assert work.token_ids[-work.drafts :] == ANSWER[1:6]


def test_where_nothing_is_remembered_the_draft_model_drafts() -> None:
    cloud = prefilled(cloud_of(opened(BY_MODEL), (*PROMPT[2:], other(ANSWER[0]), *ANSWER)))
    pass_of(cloud, MODELS)
    task = cloud.draft_task()
    assert isinstance(task, DraftTask)
    assert (task.position, task.count) == (len(PROMPT) + 1, 3)


def test_remembered_drafts_that_are_wrong_change_no_token_and_are_counted() -> None:
    wrong = (*PROMPT, ANSWER[0], other(ANSWER[1]), *ANSWER[2:6])
    cloud = cloud_of(opened(LOOKUP), wrong)
    pass_of(cloud, MODELS)
    tokens = committed_of(pass_of(cloud, MODELS))
    assert (tokens.token_ids, tokens.cloud_accepted) == (ANSWER[1:2], 0)
    assert cloud.proposed_memory_tokens == tokens.work.cloud_drafts > 0
    assert cloud.accepted_memory_tokens == 0


def test_no_more_is_drafted_at_once_than_the_verifier_takes() -> None:
    cloud = cloud_of(opened(LOOKUP), (*PROMPT, *ANSWER), max_draft_length=3)
    pass_of(cloud, MODELS)
    assert committed_of(pass_of(cloud, MODELS)).work.cloud_drafts == 3


def test_nothing_is_drafted_after_the_end_of_a_text() -> None:
    last = next(index for index in range(2, LENGTH) if ANSWER[index] not in ANSWER[:index])
    ends = frozenset({ANSWER[last]})
    cloud = cloud_of(opened(LOOKUP), (*PROMPT, *ANSWER), ends=ends)
    pass_of(cloud, MODELS)
    tokens = committed_of(pass_of(cloud, MODELS))
    assert (tokens.token_ids, tokens.work.cloud_drafts) == (ANSWER[1 : last + 1], last)


def test_a_resumed_text_is_drafted_from_earlier_ones_where_it_is() -> None:
    cloud = cloud_of(opened(LOOKUP, ANSWER[:5]), (*PROMPT, *ANSWER))
    pass_of(cloud, MODELS)
    assert committed_of(pass_of(cloud, MODELS)).token_ids[:5] == ANSWER[6:11]


@pytest.mark.parametrize(
    ("chosen", "changes", "recalls"),
    [
        (LOOKUP, {}, True),
        (BY_MODEL, {}, True),
        (LOOKUP, {"allows_memory": False}, False),
        (preset("ar"), {}, False),
        (REJECTION, {}, False),
        (REJECTION, {"sampling": GREEDY}, True),
        (replace(REJECTION, recalls=True), {}, True),
    ],
)
def test_a_memory_is_used_where_the_caller_lets_it_and_a_seed_gives_the_same_text(
    chosen: Preset, changes: dict[str, Any], recalls: bool
) -> None:
    assert may_recall(opened(chosen, **changes)) is recalls


def test_a_memory_that_the_caller_forbids_is_not_used() -> None:
    cloud = cloud_of(opened(LOOKUP, allows_memory=False), (*PROMPT, *ANSWER))
    assert text_of(cloud) == ANSWER
    assert cloud.proposed_memory_tokens == 0


@pytest.mark.parametrize(
    ("allows_memory", "drafts", "refused"), [(True, 64, False), (False, 64, True), (True, 65, True)]
)
def test_an_edge_takes_longer_drafts_of_a_cloud_that_may_remember(
    allows_memory: bool, drafts: int, refused: bool
) -> None:
    request = replace(request_for(LOOKUP, MODELS, prompt_ids=PROMPT), allows_memory=allows_memory)
    committed = PrefixedTokens(PROMPT)
    prefix_hash = PrefixedTokens((*PROMPT, *ANSWER[:1])).prefix
    tokens = Committed(7, len(PROMPT), prefix_hash, 0, ANSWER[:1], Work(cloud_drafts=drafts))
    with pytest.raises(ProtocolError) if refused else nullcontext():
        check_committed(tokens, request, committed, sent=())
