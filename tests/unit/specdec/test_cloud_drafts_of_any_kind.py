"""A cloud that may have drafts of any kind: in each place those that bring tokens fastest, and an
edge's drafts before its own where these are faster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tandem.control.cloud_draft_budget import CloudDraftBudget
from tandem.control.pass_budget import PassBudget
from tandem.core.tokens import PrefixedTokens
from tandem.specdec.choices import CloudDrafts
from tandem.specdec.cloud import CloudMachine
from tandem.specdec.events import NO_PROBS, Drafted
from tandem.specdec.messages import Work
from tests.virtual_time.cases import preset
from tests.virtual_time.cloud_frames import (
    MODELS,
    committed_of,
    draft_after,
    draft_in_cloud,
    draft_task_of,
    opening,
    own_tokens,
    pass_of,
)
from tests.virtual_time.lockstep import judgement_for, model_for

ANY = preset("auto", cloud_draft_length=4)
RIGHT = own_tokens(preset("ar"), 16)


class Verifier:
    """Its budgets, after passes of 10 ms with rows of `row_s`, draft steps of `step_s`, and some
    drafts, most of them right."""

    def __init__(
        self,
        step_s: float = 0.0002,
        row_s: float = 0.0001,
        sessions: int = 1,
    ) -> None:
        self.passes = PassBudget()
        self.model = CloudDraftBudget(self.passes)
        self.model.acceptance.add(32, 8)
        for number in range(20):
            tokens = sessions * (1 + number % 2)
            self.passes.passed(0.01 + row_s * tokens, tokens, sessions)
            self.model.drafted(step_s, sessions, sessions)

    def open(self, *, has_model: bool = True, **changes: Any) -> CloudMachine:
        return CloudMachine(
            opening(ANY, **changes),
            replace(model_for(MODELS), context_length=1000),
            budget=self.passes,
            draft_budget=self.model,
            has_draft_model=has_model,
        )

    def begun(self, **changes: Any) -> CloudMachine:
        """A cloud whose draft model has computed the prompt, after its first pass."""
        cloud = self.open(**changes)
        task = cloud.draft_task()
        if task is not None:
            assert task.count == 0
            cloud.drafted(task, [], len(cloud.committed) - 1)
        pass_of(cloud)
        return cloud


@pytest.mark.parametrize(
    ("has_model", "says"), [(True, CloudDrafts.MODEL), (False, CloudDrafts.LOOKUP)]
)
def test_it_says_what_it_has_when_the_session_opens(has_model: bool, says: CloudDrafts) -> None:
    assert Verifier().open(has_model=has_model).opened().cloud_drafts is says


def test_with_a_draft_model_it_drafts_as_many_as_pay() -> None:
    cloud = Verifier().begun()
    assert draft_task_of(cloud).count == 4
    draft_in_cloud(cloud, *RIGHT[1:5])
    tokens = committed_of(pass_of(cloud))
    assert (tokens.token_ids, tokens.cloud_accepted) == (RIGHT[1:6], 4)


def repeating(length: int = 12) -> dict[str, Any]:
    """A prompt that repeats what the target says after it."""
    prompt = (1, 2, *RIGHT[:length], 1, 2)
    text = PrefixedTokens(prompt)
    return {"prompt_ids": prompt, "base": len(prompt), "prefix_hash": text.prefix, "max_tokens": 40}


@pytest.mark.parametrize("has_model", [True, False])
def test_what_was_said_before_is_looked_up_without_a_step_of_the_draft_model(
    has_model: bool,
) -> None:
    cloud = Verifier().begun(has_model=has_model, **repeating())
    looked_up = 0
    for _ in range(12):
        if (task := cloud.draft_task()) is not None:
            cloud.drafted(
                task,
                [Drafted(0, NO_PROBS) for _ in range(task.count)],
                task.position + task.count - 1,
            )
            pass_of(cloud)
            continue
        work = cloud.work()
        if work is None:
            break
        looked_up += work.by_cloud
        cloud.complete(judgement_for(MODELS, cloud, work), Work())
    assert looked_up > 0
    text = cloud.committed.since(cloud.committed.start)
    alone = CloudMachine(opening(preset("ar"), **repeating()), model_for(MODELS))
    while len(alone.committed) < len(cloud.committed):
        pass_of(alone)
    assert alone.committed.since(alone.committed.start)[: len(text)] == text


def test_drafts_of_an_edge_go_before_those_that_are_being_made() -> None:
    cloud = Verifier().begun()
    task = draft_task_of(cloud)
    cloud.receive(draft_after(cloud, RIGHT[1:4]))
    assert cloud.draft_task() is None
    verdict = committed_of(pass_of(cloud))
    assert verdict.accepted == 3
    assert 0 < task.count <= 4


def test_what_a_pass_waits_for_is_drafted() -> None:
    """What a draft costs may change between the two questions: another thread counts passes."""
    verifier = Verifier()
    cloud = verifier.begun()
    assert cloud.work() is None
    verifier.model.knows(step_s=1.0, reading_row_s=0.0)
    assert draft_task_of(cloud) is draft_task_of(cloud)
