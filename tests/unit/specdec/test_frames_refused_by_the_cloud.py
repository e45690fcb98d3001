"""What an edge could get wrong: each fault has its exception, and changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tandem.core.errors import InvalidArgument
from tandem.core.probs import SamplingParams
from tandem.core.tree import children
from tandem.specdec.choices import Schedule
from tandem.specdec.cloud import CloudMachine, State
from tandem.specdec.messages import Drafts, EdgeMessage
from tandem.specdec.presets import Preset
from tandem.specdec.rounds.messages import HiddenStates, Recovered
from tandem.wire.verifier_codec import CloudCodec, EdgeCodec
from tandem_api.verifier.v1 import verifier_pb2 as pb
from tests.faults_of_frames import DRAFTS, OPENINGS, RECOVERED, STATES, VOID, Change, Fault, Size
from tests.virtual_time.cases import model_pair, preset, scheduled, tree
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
from tests.virtual_time.lockstep import CONTEXT_LENGTH, Lockstep, model_for
from tests.virtual_time.machine_state import state_of

SIZE = Size(V, CONTEXT_LENGTH)
NEAR_THE_END = 8
"""From here on an answer has no room for some of the wrong drafts: another fault."""
SPLIT = preset("dssd", 2, payload_top=1, payload_tail_draws=0)


class Wire:
    """The frames of an open stream, and the codecs at both ends."""

    def __init__(self, chosen: Preset) -> None:
        settings = chosen.verify_settings
        self._edge = EdgeCodec(V, settings)
        self._cloud = CloudCodec(model_for(MODELS))
        self._cloud.decode(self._edge.encode(opening(chosen)))

    def frame(self, message: EdgeMessage) -> pb.VerifyRequest:
        frame: pb.VerifyRequest = self._edge.encode(message)
        return frame

    def receive(self, cloud: CloudMachine, frame: pb.VerifyRequest) -> list[Any]:
        return cloud.receive(self._cloud.decode(frame))


def check_fault(fault: Fault, chosen: Preset, kind: type[EdgeMessage]) -> None:
    """Wherever an honest message of that kind comes, the wrong one before it changes nothing."""
    wire = Wire(chosen)
    tried = 0

    def disturb(cloud: CloudMachine, message: EdgeMessage) -> None:
        nonlocal tried
        if not isinstance(message, kind) or len(cloud.committed) > NEAR_THE_END:
            return
        if kind is Drafts and cloud.state is State.NEEDS_RECOVERED:
            return  # it waits for another kind, and says so
        before = state_of(cloud)
        with pytest.raises(fault.raises) as caught:
            wire.receive(cloud, fault.wrong(wire.frame(message), SIZE))
        assert type(caught.value) is fault.raises
        assert str(caught.value).startswith(fault.details)
        assert state_of(cloud) == before
        tried += 1

    calm = Lockstep(chosen, MODELS).run()
    assert Lockstep(chosen, MODELS, to_cloud=disturb).run() == calm
    assert tried > 0


def of(fault: Fault) -> Preset:
    """Its preset with short drafts and exact distributions."""
    if fault.preset == "dsd":
        return preset("dsd", 2, uplink_precision="float32")
    return preset(fault.preset, None if fault.preset == "mc-dsd" else 2)


@pytest.mark.parametrize("fault", DRAFTS, ids=str)
def test_wrong_drafts_change_nothing(fault: Fault) -> None:
    check_fault(fault, of(fault), Drafts)


@pytest.mark.parametrize("fault", STATES, ids=str)
def test_wrong_states_change_nothing(fault: Fault) -> None:
    check_fault(fault, of(fault), HiddenStates)


@pytest.mark.parametrize("chosen", [SPLIT, preset("dssd-full", 2)], ids=["sparse", "full"])
@pytest.mark.parametrize("fault", RECOVERED, ids=str)
def test_wrong_recovered_tokens_change_nothing(fault: Fault, chosen: Preset) -> None:
    check_fault(fault, chosen, Recovered)


@pytest.mark.parametrize("fault", OPENINGS, ids=str)
def test_a_wrong_opening_opens_nothing(fault: Fault) -> None:
    chosen = of(fault)
    honest = EdgeCodec(V, chosen.verify_settings).encode(opening(chosen, max_tokens=40))
    with pytest.raises(fault.raises) as caught:
        opened_by(fault.wrong(honest, SIZE))
    assert type(caught.value) is fault.raises
    assert str(caught.value).startswith(fault.details)


def opened_by(frame: pb.VerifyRequest) -> CloudMachine:
    message: Any = CloudCodec(model_for(MODELS)).decode(frame)
    return CloudMachine(message, model_for(MODELS))


@pytest.mark.parametrize("fault", [fault for fault in DRAFTS if fault.preset == "dssd"], ids=str)
def test_wrong_drafts_change_nothing_in_a_pipeline(fault: Fault) -> None:
    check_fault(fault, replace(SPLIT, schedule=Schedule(4, 2, bonus=False)), Drafts)


@pytest.mark.parametrize("change", VOID.values(), ids=VOID)
@pytest.mark.parametrize(
    "chosen",
    [SPLIT, replace(SPLIT, schedule=Schedule(4, 2, bonus=False)), tree((2, 1))],
    ids=["split", "pipelined", "tree"],
)
def test_drafts_that_follow_no_text_of_the_cloud_change_nothing(
    chosen: Preset, change: Change
) -> None:
    wire = Wire(chosen)
    tried = 0

    def disturb(cloud: CloudMachine, message: EdgeMessage) -> None:
        nonlocal tried
        if isinstance(message, Drafts):
            frame = wire.frame(message)
            change(frame, SIZE)
            before = state_of(cloud)
            assert wire.receive(cloud, frame) == []
            assert state_of(cloud) == before
            tried += 1

    calm = Lockstep(chosen, MODELS).run()
    assert Lockstep(chosen, MODELS, to_cloud=disturb).run() == calm
    assert tried > 3


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
    work = work_of(cloud)
    assert (work.token_ids, work.drafts) == ((1, 2, *right[:4]), 4)


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
