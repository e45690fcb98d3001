"""The drafts that wait for the cloud's verdict. Invariant: oldest first, contiguous from the end of
the committed text; the first `sent` of them are on the stream that is open now."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tandem.core.codecs import sparse_wire_probs, wire_probs
from tandem.core.probs import Array
from tandem.core.truncation import truncate
from tandem.specdec.choices import RejectionPayload, Uplink
from tandem.specdec.events import Drafted, EdgeRequest
from tandem.specdec.messages import Draft, Frame
from tandem.specdec.presets import Preset


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

    @property
    def unsure(self) -> bool:
        """Whether the draft model was not sure of the last one: nothing follows it."""
        return bool(self._drafts) and self._drafts[-1].ends_chunk

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
    frame: Frame, chunk: Sequence[Drafted], preset: Preset, whole: bool = True, hold: bool = False
) -> Draft:
    """Drafts as the message that carries them, with what the preset says of their distributions;
    `whole`: they complete a chunk, `hold`: more come soon."""
    token_ids = tuple(drafted.token_id for drafted in chunk)
    probabilities, distributions = None, None
    if preset.uplink is Uplink.PROBABILITIES:
        probabilities = tuple(float(drafted.draft_probs[drafted.token_id]) for drafted in chunk)
    if preset.carries_probs:
        distributions = np.stack([drafted.draft_probs for drafted in chunk])
    start = (frame.session, frame.epoch, frame.base, frame.prefix)
    return Draft(*start, token_ids, whole, probabilities, distributions, hold=hold)


def bulk_bytes(frames: Sequence[Draft], request: EdgeRequest) -> int:
    """Bytes of the whole distributions that these frames carry and that their verdict may bring."""
    preset, size = request.preset, request.vocabulary_size
    whole = preset.rejection_payload is RejectionPayload.FULL_DISTRIBUTION
    distributions = 4 * size if whole else 0
    if preset.uplink is Uplink.FULL_DISTRIBUTIONS:
        precise = 4 if preset.uplink_precision == "float32" else 2
        distributions += precise * size * sum(len(frame.token_ids) for frame in frames)
    return distributions


def probs_to_draft_from(probs: Array, preset: Preset) -> Array:
    """The draft model's distribution [V] after sampling settings, in wire precision."""
    truncated = truncate(probs, preset.truncation)
    if preset.uplink_precision == "float32":  # distributions are float32 from the start
        return truncated
    if preset.uplink is Uplink.FULL_DISTRIBUTIONS:
        return wire_probs(truncated, preset.uplink_precision)
    if preset.uplink is Uplink.SPARSE_DISTRIBUTIONS:
        return sparse_wire_probs(truncated, preset.uplink_precision)
    return truncated
