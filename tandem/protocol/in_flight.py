"""The drafts that wait for the cloud's verdict.

Invariant: oldest first, contiguous from the end of the committed text; the first `sent` of them are
on the stream that is open now. Must not import asyncio, grpc, torch or time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tandem.policy.choices import Answer, Uplink
from tandem.policy.presets import Preset
from tandem.protocol.messages import Draft, Frame
from tandem.protocol.outputs import Drafted, EdgeRequest


class DraftsInFlight:
    """A queue of drafts, of which a first part has been sent."""

    def __init__(self) -> None:
        self._drafts: list[Drafted] = []
        self.sent = 0

    def __len__(self) -> int:
        return len(self._drafts)

    @property
    def first(self) -> Drafted:
        return self._drafts[0]

    @property
    def all(self) -> tuple[Drafted, ...]:
        return tuple(self._drafts)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(drafted.token_id for drafted in self._drafts)

    @property
    def unsent(self) -> int:
        """How many are not sent."""
        return len(self._drafts) - self.sent

    def ends_in(self, token_ids: frozenset[int]) -> bool:
        """Whether the last one is one of these."""
        return bool(self._drafts) and self._drafts[-1].token_id in token_ids

    def add(self, drafts: Sequence[Drafted]) -> None:
        self._drafts += drafts

    def next_chunk(self, length: int) -> list[Drafted]:
        """The first unsent ones, at most `length`."""
        return self._drafts[self.sent : self.sent + length]

    def remove(self, count: int) -> None:
        """Take out the first ones, sent or not."""
        del self._drafts[:count]
        self.sent = max(0, self.sent - count)

    def clear(self) -> None:
        self._drafts.clear()
        self.sent = 0


def draft_frame(
    frame: Frame,
    chunk: Sequence[Drafted],
    preset: Preset,
    whole: bool = True,
    hold: bool = False,
) -> Draft:
    """Drafts as the message that carries them, with what the preset says of their laws; `whole`:
    they complete a chunk, `hold`: more come soon."""
    probabilities: tuple[float, ...] | None = None
    if preset.uplink is Uplink.PROBABILITIES:
        probabilities = tuple(float(drafted.draft_probs[drafted.token_id]) for drafted in chunk)
    return Draft(
        frame.session,
        frame.epoch,
        frame.base,
        frame.prefix,
        token_ids=tuple(drafted.token_id for drafted in chunk),
        end_of_chunk=whole,
        probabilities=probabilities,
        laws=np.stack([drafted.draft_probs for drafted in chunk]) if preset.carries_laws else None,
        hold=hold,
    )


def bulk_bytes(frames: Sequence[Draft], request: EdgeRequest) -> int:
    """Bytes of the whole laws that these frames carry and that their verdict may bring."""
    preset, size = request.preset, request.vocabulary_size
    laws = 4 * size if preset.answer is Answer.FULL_LAW else 0
    if preset.uplink is Uplink.FULL_LAWS:
        precise = 4 if preset.uplink_precision == "float32" else 2
        laws += precise * size * sum(len(frame.token_ids) for frame in frames)
    return laws
