"""What a cloud could get wrong: each fault has its exception, and changes nothing."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from tandem.core.errors import ProtocolError
from tandem.core.sparse_payload import FullPayload
from tandem.core.tokens import PrefixMismatch
from tandem.specdec.edge import EdgeMachine
from tandem.specdec.liveness import Phase
from tandem.specdec.messages import CloudMessage, Committed
from tandem.specdec.presets import PRESETS, Preset
from tandem.specdec.rounds.messages import FullDistribution
from tandem.specdec.rules import Replacement
from tandem.wire.verifier_codec import CloudCodec, EdgeCodec
from tandem_api.verifier.v1 import verifier_pb2 as pb
from tests.faults_of_frames import LIES, Lie, Size
from tests.long_runs import with_long_cases
from tests.virtual_time.cases import TokenIds, preset
from tests.virtual_time.edge_frames import (
    MODELS,
    PROBS,
    SPARSE,
    SPLIT,
    STREAM,
    V,
    connected,
    draft,
    verdict_of,
)
from tests.virtual_time.lockstep import CONTEXT_LENGTH, Lockstep, model_for
from tests.virtual_time.machine_state import state_of

SIZE = Size(V, CONTEXT_LENGTH)


@cache
def calm(chosen: Preset) -> tuple[TokenIds, int]:
    """The text where no frame is bad, and how many frames the edge received."""
    received = 0

    def count(edge: EdgeMachine, message: CloudMessage) -> bool:
        nonlocal received
        received += 1
        return True

    return Lockstep(chosen, MODELS, to_edge=count).run(), received


class Wire:
    """A cloud's frames on their way to the edge's machine."""

    def __init__(self, chosen: Preset) -> None:
        self._cloud = CloudCodec(model_for(MODELS))
        self._edge = EdgeCodec(V, chosen.verify_settings)

    def frame(self, message: CloudMessage) -> pb.VerifyResponse:
        frame: pb.VerifyResponse = self._cloud.encode(message)
        return frame

    def receive(self, edge: EdgeMachine, frame: pb.VerifyResponse) -> None:
        edge.receive(self._edge.decode(frame), 0.0)


Wrong = Callable[[CloudMessage], Callable[[EdgeMachine], object] | None]
"""How the edge meets a wrong frame in the place of an honest one; None: there is nothing to be
wrong in."""


def check_refused(chosen: Preset, error: type[Exception], wrong: Wrong) -> None:
    """Wherever the wrong frame may come it changes nothing, and the right one after it is taken as
    if nothing had been."""
    tried = 0

    def disturb(edge: EdgeMachine, message: CloudMessage) -> bool:
        nonlocal tried
        take = wrong(message) if edge.phase is Phase.RUNNING else None
        if take is not None:
            before = state_of(edge)
            with pytest.raises(error) as caught:
                take(edge)
            assert type(caught.value) is error
            assert state_of(edge) == before
            tried += 1
        return True

    assert Lockstep(chosen, MODELS, to_edge=disturb).run() == calm(chosen)[0]
    assert tried > 0


@pytest.mark.parametrize("lie", LIES, ids=str)
def test_wrong_commits_change_nothing(lie: Lie) -> None:
    payload = {"payload_top": 2, "payload_tail_draws": 1} if lie.preset == "dssd" else {}
    chosen = preset(lie.preset, 2, **payload)
    wire = Wire(chosen)

    def wrong(message: CloudMessage) -> Callable[[EdgeMachine], object] | None:
        frame = lie.wrong(wire.frame(message), SIZE)
        return None if frame is None else lambda edge: wire.receive(edge, frame)

    check_refused(chosen, lie.raises, wrong)


WRONG_DISTRIBUTIONS: dict[str, tuple[Callable[[Any], CloudMessage], type[Exception]]] = {
    "another session": (lambda m: replace(m, session=m.session + 1), ProtocolError),
    "before the text's end": (lambda m: replace(m, base=m.base - 1), ProtocolError),
    "another text": (lambda m: replace(m, prefix_hash=m.prefix_hash ^ 1), PrefixMismatch),
    "too short": (lambda m: replace(m, target_probs=PROBS[1:]), ProtocolError),
    "another one": (
        lambda m: replace(m, target_probs=np.eye(V, dtype=np.float32)[m.target_probs.argmax()]),
        ProtocolError,
    ),
    "a verdict while drawing": (
        lambda m: Committed(m.session, m.base, m.prefix_hash, 1),
        ProtocolError,
    ),
}


@pytest.mark.parametrize("name", WRONG_DISTRIBUTIONS)
def test_wrong_distributions_to_draw_from_change_nothing(name: str) -> None:
    change, error = WRONG_DISTRIBUTIONS[name]

    def wrong(message: CloudMessage) -> Callable[[EdgeMachine], object] | None:
        if not isinstance(message, FullDistribution):
            return None
        return lambda edge: edge.receive(change(message), 0.0)

    check_refused(SPLIT, error, wrong)


RESYNCED = {
    **{n: preset(n) for n in PRESETS},
    "split, composed": SPLIT,
    "stream, composed": STREAM,
}


@pytest.mark.parametrize(
    "name",
    with_long_cases(
        RESYNCED,
        (
            *("ar", "dsd", "dssd", "dssd-full", "mc-dsd", "picospec", "coupled", "fsd"),
            *("cloud-draft", "split", "split, composed", "stream, composed"),
        ),
    ),
)
def test_a_resync_after_any_bad_frame_gives_the_same_text(name: str) -> None:
    """`make test` has each kind of frames; other presets combine them."""
    chosen = RESYNCED[name]
    text, frames = calm(chosen)
    for nth in range(1, min(frames, 11) + 1):
        received = 0

        def break_stream(edge: EdgeMachine, message: CloudMessage, nth: int = nth) -> bool:
            nonlocal received
            received += 1
            if received != nth or edge.phase is not Phase.RUNNING:
                return True
            with pytest.raises(ProtocolError):
                edge.receive(replace(message, session=99), 0.0)
            return False

        assert Lockstep(chosen, MODELS, to_edge=break_stream).run() == text, nth


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("dsd", FullPayload(PROBS)),
        ("coupled", SPARSE),
        ("dssd", 0),
        ("dssd", FullPayload(PROBS)),
        ("dssd-full", 0),
        ("dssd-full", SPARSE),
        ("dssd-full", FullPayload(PROBS[1:])),
    ],
)
def test_answers_the_preset_does_not_name(name: str, outcome: Replacement) -> None:
    edge = connected(preset(name, 2))
    draft(edge, 0, 1)
    before = state_of(edge)
    with pytest.raises(ProtocolError):
        edge.receive(verdict_of(edge, 0, True, outcome), 0.0)
    assert state_of(edge) == before
