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
from tests.long_runs import with_long_cases
from tests.virtual_time.cases import TokenIds, preset
from tests.virtual_time.edge_frames import (
    MODELS,
    PROBS,
    SPARSE,
    SPLIT,
    STREAM,
    V,
    draft,
    edge_of,
    verdict_of,
)
from tests.virtual_time.lockstep import Lockstep
from tests.virtual_time.machine_state import state_of

BadFrame = tuple[Callable[[Any], CloudMessage], type[Exception]]


def full_distribution_of(frame: Committed | FullDistribution) -> FullDistribution:
    return FullDistribution(frame.session, frame.base, frame.prefix_hash, target_probs=PROBS)


BAD_FRAMES: dict[str, BadFrame] = {
    "another session": (lambda m: replace(m, session=m.session + 1), ProtocolError),
    "before the text's end": (lambda m: replace(m, base=m.base - 1), ProtocolError),
    "beyond the text's end": (lambda m: replace(m, base=m.base + 1), ProtocolError),
    "another text": (lambda m: replace(m, prefix_hash=m.prefix_hash ^ 1), PrefixMismatch),
    "a full distribution unasked": (full_distribution_of, ProtocolError),
}
BAD_VERDICTS: dict[str, BadFrame] = {
    **BAD_FRAMES,
    "accepts more than was sent": (lambda m: replace(m, accepted=9), ProtocolError),
    "accepts less than nothing": (lambda m: replace(m, accepted=-1), ProtocolError),
    "commits nothing": (
        lambda m: replace(m, accepted=0, token_ids=(), draw_from=None),
        ProtocolError,
    ),
    "token V": (lambda m: replace(m, token_ids=(V,)), ProtocolError),
    "token -1": (lambda m: replace(m, token_ids=(-1,)), ProtocolError),
    "a token and a distribution": (
        lambda m: replace(m, accepted=0, token_ids=(0,), draw_from=FullPayload(PROBS)),
        ProtocolError,
    ),
    "a distribution with nothing to draw": (
        lambda m: replace(m, accepted=2, token_ids=(), draw_from=FullPayload(PROBS)),
        ProtocolError,
    ),
}
BAD_TOKENS: dict[str, BadFrame] = {
    **BAD_FRAMES,
    "token V": (lambda m: replace(m, token_ids=(V,)), ProtocolError),
    "token -1": (lambda m: replace(m, token_ids=(-1,)), ProtocolError),
    "no tokens": (lambda m: replace(m, token_ids=()), ProtocolError),
    "more tokens than the answer has room for": (
        lambda m: replace(m, token_ids=(*m.token_ids, *(0,) * 64)),
        ProtocolError,
    ),
    "tokens not hashed": (
        lambda m: replace(m, token_ids=((m.token_ids[0] + 1) % V, *m.token_ids[1:])),
        PrefixMismatch,
    ),
    "drafts of the cloud that stand and were not judged": (
        lambda m: replace(m, cloud_accepted=m.work.cloud_drafts + 1),
        ProtocolError,
    ),
    "more drafts of the cloud than it may make": (
        lambda m: replace(m, work=replace(m.work, cloud_drafts=5)),
        ProtocolError,
    ),
}
BAD_DISTRIBUTIONS: dict[str, BadFrame] = {
    **{name: bad for name, bad in BAD_FRAMES.items() if name != "a full distribution unasked"},
    "a distribution too short": (lambda m: replace(m, target_probs=PROBS[1:]), ProtocolError),
    "another distribution": (
        lambda m: replace(m, target_probs=np.eye(V, dtype=np.float32)[m.target_probs.argmax()]),
        ProtocolError,
    ),
    "a verdict while drawing": (
        lambda m: Committed(m.session, m.base, m.prefix_hash, 1),
        ProtocolError,
    ),
    "tokens while drawing": (
        lambda m: Committed(m.session, m.base, m.prefix_hash, token_ids=(0,)),
        ProtocolError,
    ),
}


def judges(message: CloudMessage) -> bool:
    """Whether it tells of drafts of the edge."""
    return isinstance(message, Committed) and message.work.drafts > 0


def goes_alone(message: CloudMessage) -> bool:
    return isinstance(message, Committed) and not message.work.drafts


def distributes(message: CloudMessage) -> bool:
    return isinstance(message, FullDistribution)


Kind = Callable[[CloudMessage], bool]
BAD: list[tuple[Preset, Kind, str]] = [
    *(
        (preset(name, 2), judges, bad)
        for name in ("dsd", "dssd-full", "coupled")
        for bad in BAD_VERDICTS
    ),
    *((SPLIT, judges, bad) for bad in BAD_VERDICTS),
    *((preset("ar"), goes_alone, bad) for bad in BAD_TOKENS),
    *((STREAM, goes_alone, bad) for bad in BAD_TOKENS),
    *((preset("cloud-draft", 4), goes_alone, bad) for bad in BAD_TOKENS),
    *((SPLIT, distributes, bad) for bad in BAD_DISTRIBUTIONS),
]
TABLES: dict[Kind, dict[str, BadFrame]] = {
    judges: BAD_VERDICTS,
    goes_alone: BAD_TOKENS,
    distributes: BAD_DISTRIBUTIONS,
}


@cache
def calm(chosen: Preset) -> tuple[TokenIds, int]:
    """The text where no frame is bad, and how many frames the edge received."""
    received = 0

    def count(edge: EdgeMachine, message: CloudMessage) -> bool:
        nonlocal received
        received += 1
        return True

    return Lockstep(chosen, MODELS, to_edge=count).run(), received


@pytest.mark.parametrize(
    ("chosen", "kind", "name"),
    BAD,
    ids=[f"{chosen.name}-{kind.__name__}-{name}" for chosen, kind, name in BAD],
)
def test_bad_frames_change_nothing(chosen: Preset, kind: Kind, name: str) -> None:
    """And the right frame afterwards is taken as if nothing had been."""
    change, error = TABLES[kind][name]
    tried = 0

    def disturb(edge: EdgeMachine, message: CloudMessage) -> bool:
        nonlocal tried
        if kind(message) and edge.phase is Phase.RUNNING:
            before = state_of(edge)
            with pytest.raises(error) as caught:
                edge.receive(change(message), 0.0)
            assert type(caught.value) is error
            assert state_of(edge) == before
            tried += 1
        return True

    assert Lockstep(chosen, MODELS, to_edge=disturb).run() == calm(chosen)[0]
    assert tried > 0


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
    edge = edge_of(preset(name, 2))
    edge.connect(0.0)
    draft(edge, 0, 1)
    before = state_of(edge)
    with pytest.raises(ProtocolError):
        edge.receive(verdict_of(edge, 0, True, outcome), 0.0)
    assert state_of(edge) == before
