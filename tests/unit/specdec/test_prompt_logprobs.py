"""How likely a prompt's tokens are: read of logits that come in parts, told in frames, and taken by
the edge before anything is committed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.core.probs import Array
from tandem.specdec.cloud_checks import check_open
from tandem.specdec.edge import EdgeMachine
from tandem.specdec.liveness import Liveness, LostCloud
from tandem.specdec.logprobs import (
    PromptLogprobsBuffer,
    PromptReader,
    check_logprob_params,
)
from tandem.specdec.messages import GenerationParams, PromptLogprobs, TokenLogprob, Work
from tests.virtual_time.cases import preset
from tests.virtual_time.cloud_frames import MODELS, V, opened_cloud, opening, work_of
from tests.virtual_time.edge_frames import TIMES, OpenedEdge, frame_of
from tests.virtual_time.lockstep import judgement_for, model_for, request_for

ASKED = GenerationParams(max_tokens=4, logprobs=True, top_logprobs=2, prompt_logprobs=True)
PROMPT = (3, 1, 2, 1, 0)
LOGITS = np.random.default_rng(7).normal(size=(len(PROMPT), 4)).astype(np.float32)


def log_softmax(logits: Array) -> Array:
    exact = logits.astype(np.float64)
    return np.asarray(exact - np.log(np.exp(exact).sum(axis=-1, keepdims=True)))


@pytest.mark.parametrize("cut", range(len(PROMPT) + 1))
def test_parts_of_the_logits_give_what_all_of_them_give(cut: int) -> None:
    reader = PromptReader(PROMPT, 2)
    reader.read(0, LOGITS[:cut])
    reader.read(cut, LOGITS[cut:])
    expected = log_softmax(LOGITS)
    told = reader.result()
    assert len(told) == len(PROMPT) - 1
    for row, (token_id, each) in enumerate(zip(PROMPT[1:], told, strict=True)):
        assert each.logprob == pytest.approx(expected[row][token_id], abs=1e-6)
        best = np.argsort(-expected[row])[:2]
        assert [token for token, _ in each.top] == best.tolist()
        assert [value for _, value in each.top] == pytest.approx(expected[row][best], abs=1e-6)


def test_a_part_that_comes_again_changes_nothing_and_later_tokens_are_no_prompt() -> None:
    reader = PromptReader(PROMPT, 0)
    reader.read(0, LOGITS[:3])
    reader.read(1, LOGITS[1:])
    reader.read(len(PROMPT) - 1, LOGITS)
    whole = PromptReader(PROMPT, 0)
    whole.read(0, LOGITS)
    assert reader.result() == whole.result()
    assert PromptReader((7,), 1).result() == ()


def frame(first: int, *logprobs: float) -> PromptLogprobs:
    return PromptLogprobs(1, 9, 0, first=first, logprobs=tuple(map(TokenLogprob, logprobs)))


def test_the_edge_takes_them_in_order_and_all_before_any_token() -> None:
    buffer = PromptLogprobsBuffer(asked=True, prompt_length=4)
    buffer.take(frame(1, -1.0))
    for wrong in (frame(1, -1.0), frame(3, -3.0), frame(2, -2.0, -3.0, -4.0)):
        with pytest.raises(ProtocolError):
            buffer.take(wrong)
    with pytest.raises(ProtocolError):
        buffer.check_complete()
    buffer.take(frame(2, -2.0, -3.0))
    buffer.check_complete()
    assert not buffer.wanted
    with pytest.raises(ProtocolError):
        buffer.take(frame(4, -4.0))
    first, *others = buffer.all()
    assert math.isnan(first.logprob)
    assert [each.logprob for each in others] == [-1.0, -2.0, -3.0]


def test_another_stream_tells_all_of_them_again_unless_all_are_known() -> None:
    buffer = PromptLogprobsBuffer(asked=True, prompt_length=3)
    buffer.take(frame(1, -1.0))
    buffer.begin_stream()
    assert buffer.wanted
    buffer.take(frame(1, -1.5, -2.5))
    buffer.begin_stream()
    assert not buffer.wanted
    assert [each.logprob for each in buffer.all()[1:]] == [-1.5, -2.5]
    untold = PromptLogprobsBuffer(asked=True, prompt_length=3).all()
    assert [math.isnan(each.logprob) for each in untold] == [True] * 3
    with pytest.raises(ProtocolError):
        PromptLogprobsBuffer(asked=False, prompt_length=3).take(frame(1, -1.0))


@pytest.mark.parametrize("name", ["ar", "coupled", "dssd", "mc-dsd", "stream"])
def test_the_first_pass_tells_them_before_what_it_commits(name: str) -> None:
    cloud = opened_cloud(preset(name), params=ASKED)
    prompt_ids = cloud.committed.since(0)
    work = work_of(cloud)
    assert work.prompt_reader is not None
    assert work.token_ids[: len(prompt_ids)] == prompt_ids
    logits = np.zeros((len(work.token_ids), V), dtype=np.float32)
    work.prompt_reader.read(0, logits)
    found = replace(judgement_for(MODELS, cloud, work), prompt_logprobs=work.prompt_reader.result())
    told, *others = cloud.complete(found, Work())
    assert isinstance(told, PromptLogprobs)
    assert told.first == 1
    assert [each.logprob for each in told.logprobs] == pytest.approx(
        [-math.log(V)] * (len(prompt_ids) - 1)
    )
    assert not any(isinstance(other, PromptLogprobs) for other in others)
    if (later := cloud.work()) is not None:
        assert later.prompt_reader is None


def test_all_of_the_prompt_is_read_whatever_is_kept_of_it() -> None:
    cloud = opened_cloud(preset("ar"), params=ASKED)
    with pytest.raises(ProtocolError):
        cloud.adopt_prefix(1)
    cloud.adopt_prefix(0)


@pytest.mark.parametrize("wrong", [{"logprobs": False, "top_logprobs": 0}, {"images": (b"png",)}])
def test_they_go_with_those_of_the_answer_and_with_text_alone(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"^prompt_logprobs: "):
        check_logprob_params(replace(ASKED, **wrong))
    check_logprob_params(ASKED)


def test_the_cloud_checks_that_before_a_session_costs_anything() -> None:
    asked = replace(ASKED, logprobs=False, top_logprobs=0)
    with pytest.raises(InvalidArgument, match="requires logprobs"):
        check_open(opening(preset("ar"), params=asked), model_for(MODELS))


def asking_edge(*, opened: bool = True) -> EdgeMachine:
    request = replace(request_for(preset("ar"), MODELS), params=ASKED)
    make = OpenedEdge if opened else EdgeMachine
    return make(request, Liveness(LostCloud.WAIT, TIMES, now=0.0))


@pytest.mark.parametrize(
    "told", [TokenLogprob(0.5, ((1, -1.0),)), TokenLogprob(-1.0), TokenLogprob(-1.0, ((V, -1.0),))]
)
def test_the_edge_takes_log_probabilities_alone(told: TokenLogprob) -> None:
    edge = asking_edge()
    edge.connect(0.0)
    with pytest.raises(ProtocolError):
        edge.receive(PromptLogprobs(*frame_of(edge), first=1, logprobs=(told,)), 0.1)
