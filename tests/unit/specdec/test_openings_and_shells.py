"""What a session says when it opens, what a server may limit, what shells may ask of machines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.core.probs import SamplingParams
from tandem.core.processors import Processors
from tandem.core.tokens import EMPTY_PREFIX, PrefixedTokens, extend_prefix
from tandem.specdec.cloud import CloudMachine
from tandem.specdec.cloud_checks import CloudModel, check_open
from tandem.specdec.events import EdgeRequest
from tandem.specdec.liveness import LostCloud
from tandem.specdec.messages import (
    Committed,
    GenerationParams,
    Open,
    Opened,
    Work,
)
from tests.virtual_time.cases import preset
from tests.virtual_time.cloud_frames import (
    MODELS,
    V,
    check_refused,
    draft_after,
    opened_cloud,
    opening,
    own_tokens,
    work_of,
)
from tests.virtual_time.edge_frames import (
    connected,
    draft,
    edge_of,
    task_of,
)
from tests.virtual_time.lockstep import VOCABULARY_HASH, judgement_for, model_for

COST = Work(verify_s=0.5, queue_s=0.25, batch_size=3, target_passes=99, drafts=99)
"""As a shell knows it; the numbers of passes and drafts are the machine's own."""


def prefix(*token_ids: int) -> int:
    return extend_prefix(EMPTY_PREFIX, token_ids)


def test_a_session_opens_with_all_that_the_request_says() -> None:
    chosen = preset("dssd", 3, payload_top=5)
    params = GenerationParams(
        sampling=SamplingParams(temperature=0.5),
        max_tokens=20,
        seed=3,
        ignore_eos=True,
        images=(b"png",),
        logprobs=True,
        top_logprobs=2,
        processors=Processors(banned_token_ids=(4,)),
        prompt_logprobs=True,
    )
    request = EdgeRequest(
        session=7,
        prompt_ids=(1, 2),
        vocabulary_hash="hash",
        vocabulary_size=50,
        params=params,
        preset=chosen,
        tenant=b"tenant",
        public_tokens=1,
    )
    committed = PrefixedTokens((1, 2, 8, 9))
    expected = Open(
        session=7,
        base=4,
        prefix_hash=prefix(1, 2, 8, 9),
        vocabulary_hash="hash",
        vocabulary_size=50,
        prompt_ids=(1, 2),
        committed_ids=(8, 9),
        params=params,
        settings=chosen.verify_settings,
        tenant=b"tenant",
        public_tokens=1,
    )
    assert request.opening(committed, prompt_logprobs=True) == expected
    known = replace(expected, params=replace(params, prompt_logprobs=False))
    assert request.opening(committed) == known
    unasked = replace(request, params=replace(params, prompt_logprobs=False))
    assert unasked.opening(committed, prompt_logprobs=True) == known
    assert (request.max_tokens, request.params.ignore_eos) == (20, True)


def test_the_cloud_says_all_of_itself_when_a_session_opens() -> None:
    model = CloudModel(
        model_name="m",
        vocabulary_hash=VOCABULARY_HASH,
        vocabulary_size=V,
        context_length=64,
        eos_token_ids=frozenset({2}),
        max_draft_length=16,
        exits=4,
        same_bits=True,
    )
    cloud = CloudMachine(opening(preset("fsd", 2, exits=3)), model)
    cloud.adopt_prefix(1)
    assert cloud.opened() == Opened(
        session=7,
        base=2,
        prefix_hash=prefix(1, 2),
        max_draft_length=16,
        eos_token_ids=frozenset({2}),
        model_name="m",
        cached_tokens=1,
        same_bits=True,
    )


def completed(cloud: CloudMachine) -> list[Any]:
    """The pass that is due, at a cost."""
    work = work_of(cloud)
    return list(cloud.complete(judgement_for(MODELS, cloud, work), COST))


def test_a_verdict_on_drafts_that_stand() -> None:
    chosen = preset("coupled", 2)
    first, second, third = own_tokens(chosen, 3)
    cloud = opened_cloud(chosen)
    assert completed(cloud) == []
    cloud.receive(draft_after(cloud, (first, second)))
    assert completed(cloud) == [
        Committed(
            session=7,
            base=2,
            prefix_hash=prefix(1, 2, first, second, third),
            accepted=2,
            token_ids=(third,),
            work=Work(verify_s=0.5, queue_s=0.25, batch_size=3, target_passes=2, drafts=2),
            path=(),
            logprobs=(),
            cloud_accepted=0,
            draw_from=None,
        )
    ]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"max_tokens": 1}, ""),
        ({"max_tokens": 3, "committed_ids": (0, 1)}, ""),
        ({"max_tokens": 2, "committed_ids": (0, 1)}, "committed_ids"),
        ({"prompt_ids": (1,) * 63, "max_tokens": 1}, ""),
        ({"prompt_ids": (1,) * 63, "max_tokens": 2}, "max_tokens"),
        ({"prompt_ids": (1,) * 64, "max_tokens": 1}, "prompt_ids"),
        ({"prompt_ids": (0, V - 1)}, ""),
        ({"committed_ids": (V - 1,)}, ""),
        ({"processors": Processors(banned_token_ids=(V,))}, "banned_token_ids"),
        ({"images": (b"",)}, "images"),
        ({"sampling": SamplingParams(top_k=V)}, ""),
    ],
)
def test_the_last_opening_that_fits_and_the_first_that_does_not(
    changes: dict[str, Any], field: str
) -> None:
    asked = opening(preset("dsd"), **changes)
    if not field:
        check_open(asked, model_for(MODELS))
        return
    with pytest.raises(InvalidArgument, match=rf"^{field}: "):
        check_open(asked, model_for(MODELS))


def test_a_target_of_unknown_layers_is_not_refused_here() -> None:
    """The back end that cannot split at all says so itself."""
    asked = opening(preset("split"))
    check_open(asked, replace(model_for(MODELS), layer_count=0))
    check_open(asked, replace(model_for(MODELS), layer_count=4))
    with pytest.raises(InvalidArgument, match="split_layers: 3 of the target's 3 layers"):
        check_open(asked, replace(model_for(MODELS), layer_count=3))


def test_a_server_may_take_fewer_drafts_than_the_window_holds() -> None:
    model = replace(model_for(MODELS), max_draft_length=2)
    cloud = CloudMachine(opening(preset("coupled", 4)), model)
    check_refused(cloud, draft_after(cloud, (0, 0, 0)), InvalidArgument, "draft_length")
    assert cloud.receive(draft_after(cloud, (0, 0))) == []
    whole = opened_cloud(preset("coupled", 4))
    check_refused(whole, draft_after(whole, (0,) * 5), InvalidArgument, "draft_length")
    assert whole.receive(draft_after(whole, (0,) * 4)) == []


def test_keys_and_values_are_adopted_before_anything_is_computed() -> None:
    cloud = opened_cloud(preset("ar"))
    cloud.adopt_prefix(1)
    assert cloud.kv_length == 1
    work = work_of(cloud)
    assert (work.keep, work.token_ids) == (1, (2,))
    with pytest.raises(ProtocolError, match="a pass was begun"):
        cloud.adopt_prefix(1)
    cloud.complete(judgement_for(MODELS, cloud, work), Work())
    with pytest.raises(ProtocolError, match="a pass was begun"):
        cloud.adopt_prefix(1)
    reading = opened_cloud(preset("ar"), logprobs=True, prompt_logprobs=True)
    with pytest.raises(ProtocolError, match="all of the prompt is to be read"):
        reading.adopt_prefix(1)
    reading.adopt_prefix(0)


# What a shell asks of the edge's machine.


def test_the_draft_model_may_read_the_prompt_while_no_draft_is_under_way() -> None:
    edge = edge_of(preset("coupled", 2))
    assert edge.may_prefill
    task_of(edge)
    assert not edge.may_prefill
    edge.connect(0.0)
    draft_edge = connected(preset("coupled", 2))
    draft(draft_edge, 0, 1)
    assert not draft_edge.may_prefill, "drafts are in flight"
    assert draft_edge.fed_tokens == (1, 2, 0)
    draft_edge.cancel()
    assert not draft_edge.may_prefill
    idle = edge_of(preset("coupled", 2))
    idle.cancel()
    assert not idle.may_prefill
    alone = edge_of(preset("ar"), LostCloud.EDGE)
    assert not alone.may_prefill, "nothing is drafted beside a cloud"
    alone.connect(0.0)
    for step in range(1, 60):
        alone.tick(step / 5)
    assert alone.may_prefill
