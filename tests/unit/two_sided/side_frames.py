"""One side's machine by hand, and the frames that it is given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tandem.core.probs import SamplingParams
from tandem.core.tokens import (
    EMPTY_PREFIX,
    TokenSource,
    extend_prefix,
)
from tandem.specdec.events import Commit
from tandem.two_sided.protocol.draft_head import DraftHead
from tandem.two_sided.protocol.messages import (
    AggregationRequest,
    CollaborationOpened,
    SideDraftFrame,
    SideOutput,
    ToDecoder,
    ToPeer,
)
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.side_machine import SideMachine
from tests.composed_presets import composed

V = 4
PROMPT = (1, 2)
PROBS = np.array([0.7, 0.1, 0.1, 0.1], dtype=np.float32)
SURE = DraftHead(np.array([0]), np.array([1.0]))
ALL_OF_SURE = np.array([1, 0, 0, 0], dtype=np.float32)
"""As a side's own decoder has it at temperature 0."""


def request_for(name: str, **changes: Any) -> AggregationRequest:
    return replace(
        AggregationRequest(
            session=1,
            prompt_ids=PROMPT,
            vocabulary_hash="h",
            vocabulary_size=V,
            sampling=SamplingParams(),
            seed=3,
            max_tokens=4,
            preset=composed(name),
        ),
        **changes,
    )


def queued(machine: SideMachine) -> tuple[int, int]:
    """Numbers of drafts that follow the committed text: this side's, the other side's."""
    return len(list(machine._own)), len(list(machine._peers))


def device(name: str = "dragon-device", **changes: Any) -> SideMachine:
    """A device whose cloud has opened."""
    machine = SideMachine(Side.DEVICE, request_for(name, **changes), log_mass=0.0)
    machine.connect(0.0)
    machine.receive(CollaborationOpened(1, 2, head(()), log_mass=0.0, max_tokens=4), 0.0)
    return machine


def cloud(name: str = "dragon-device", **changes: Any) -> SideMachine:
    machine = SideMachine(Side.CLOUD, request_for(name, **changes), peer_log_mass=0.0)
    machine.opened(0.0, 0.0)
    return machine


def head(answer: tuple[int, ...]) -> int:
    """Hash of prompt and answer."""
    return extend_prefix(EMPTY_PREFIX, (*PROMPT, *answer))


def frame(answer: tuple[int, ...] = (), token: int = 0, **changes: Any) -> SideDraftFrame:
    """A side's draft after an answer so far."""
    found = SideDraftFrame(
        1, 2 + len(answer), head(answer), token_id=token, probs=SURE, log_mass=0.0, committed=2
    )
    return replace(found, **changes)


def tokens(outputs: list[SideOutput]) -> list[int]:
    return [token for each in outputs if isinstance(each, Commit) for token in each.token_ids]


def token_sources(outputs: list[SideOutput]) -> list[TokenSource]:
    return [
        token_source
        for each in outputs
        if isinstance(each, Commit)
        for token_source in each.token_sources
    ]


def told(outputs: list[SideOutput], kind: type) -> list[Any]:
    return [
        each.message
        for each in outputs
        if isinstance(each, ToPeer | ToDecoder) and isinstance(each.message, kind)
    ]
