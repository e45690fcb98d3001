"""A cloud machine by hand: opened, fed, and looked at."""

from dataclasses import fields, replace
from typing import Any

import pytest

from tandem.core.errors import InvalidArgument
from tandem.core.tokens import PrefixedTokens
from tandem.specdec.cloud import CloudMachine
from tandem.specdec.events import NO_PROBS, Drafted, DraftTask
from tandem.specdec.messages import (
    CloudMessage,
    Committed,
    Drafts,
    EdgeMessage,
    GenerationParams,
    Open,
    Work,
)
from tandem.specdec.presets import Preset
from tandem.specdec.verify_task import VerifyTask
from tests.virtual_time.cases import ModelPair, opposed_pair, preset
from tests.virtual_time.lockstep import VOCABULARY_HASH, judgement_for, model_for
from tests.virtual_time.machine_state import state_of

MODELS = opposed_pair()
V = MODELS.vocabulary_size


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


def opening(chosen: Preset, **changes: Any) -> Open:
    committed = PrefixedTokens((1, 2))
    names = {field.name for field in fields(GenerationParams)} & changes.keys()
    params = {name: changes.pop(name) for name in names}
    return replace(
        Open(
            session=7,
            base=2,
            prefix_hash=committed.prefix,
            vocabulary_hash=VOCABULARY_HASH,
            vocabulary_size=V,
            prompt_ids=(1, 2),
            committed_ids=(),
            params=replace(
                GenerationParams(sampling=MODELS.sampling, seed=1, max_tokens=20), **params
            ),
            settings=chosen.verify_settings,
        ),
        **changes,
    )


def opened_cloud(
    chosen: Preset, ends: frozenset[int] = frozenset(), **changes: Any
) -> CloudMachine:
    return CloudMachine(opening(chosen, **changes), model_for(MODELS, ends))


def pass_of(cloud: CloudMachine, models: ModelPair = MODELS) -> list[CloudMessage]:
    """Do the work that is due."""
    return cloud.complete(judgement_for(models, cloud, work_of(cloud)), Work())


def ready_cloud(chosen: Preset, ends: frozenset[int] = frozenset(), **changes: Any) -> CloudMachine:
    """An opened cloud after its first pass, over the prompt."""
    cloud = opened_cloud(chosen, ends, **changes)
    pass_of(cloud)
    return cloud


def work_of(cloud: CloudMachine) -> VerifyTask:
    """The pass that is due."""
    work = cloud.work()
    assert work is not None
    return work


def committed_of(messages: list[CloudMessage]) -> Committed:
    """All that the cloud says, which is one answer that commits."""
    (answer,) = messages
    assert isinstance(answer, Committed)
    return answer


def draft_task_of(cloud: CloudMachine) -> DraftTask:
    """What its draft model is to make next."""
    task = cloud.draft_task()
    assert task is not None
    assert cloud.draft_task() is task, "the same until it is done"
    return task


def draft_in_cloud(cloud: CloudMachine, *token_ids: int) -> None:
    """Its draft model brings these."""
    task = draft_task_of(cloud)
    drafts = [Drafted(token_id, NO_PROBS) for token_id in token_ids]
    cloud.drafted(task, drafts, task.position + len(drafts) - 1)


def prefilled(cloud: CloudMachine) -> CloudMachine:
    """Its draft model has computed the prompt."""
    task = draft_task_of(cloud)
    assert (task.count, task.keep, task.token_ids) == (0, 0, cloud.committed.since(0)[:-1])
    cloud.drafted(task, [], len(cloud.committed) - 1)
    return cloud


def draft_after(
    cloud: CloudMachine, token_ids: tuple[int, ...], pending: tuple[int, ...] = (), **changes: Any
) -> Drafts:
    """A draft that follows the committed text and what is pending."""
    base = len(cloud.committed) + len(pending)
    draft = Drafts(7, base, cloud.committed.prefix_with(pending), token_ids, end_of_chunk=True)
    return replace(draft, **changes)


def own_tokens(chosen: Preset, count: int) -> tuple[int, ...]:
    """What the cloud would say alone under Gumbel coupling."""
    cloud = opened_cloud(replace(chosen, schedule=preset("ar").schedule))
    for _ in range(count):
        pass_of(cloud)
    return cloud.committed.since(2)
