"""The size of every message of a session: its serialized protobuf, as the services would send it.
gRPC's five bytes per message and HTTP/2's framing are not included."""

from __future__ import annotations

from dataclasses import dataclass, field

from tandem.core.errors import InvalidArgument
from tandem.core.sparse_payload import FullPayload
from tandem.specdec.choices import Uplink
from tandem.specdec.cloud_checks import CloudModel
from tandem.specdec.messages import (
    CloudMessage,
    CloudRoundFrame,
    Committed,
    Drafts,
    EdgeMessage,
    GoingAway,
    Opened,
    Pong,
    PromptLogprobs,
)
from tandem.specdec.presets import Preset
from tandem.specdec.rounds.messages import FullDistribution
from tandem.wire.verifier_codec import CloudCodec, EdgeCodec

_DOWN = (Opened, Committed, CloudRoundFrame, GoingAway, Pong, PromptLogprobs)
_BYTES = {"float32": 4, "float16": 2}


@dataclass(slots=True)
class WireSizes:
    """Weighs every message of one session, and keeps the sums and the number of refusals.
    `padded_vocabulary`: whole distributions count as if the vocabulary were that large; the
    distributions themselves stay those of the pair."""

    preset: Preset
    vocabulary_size: int
    padded_vocabulary: int | None = None
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    rejections: int = 0
    cloud_rejections: int = 0
    """Of drafts that the cloud made itself."""
    _edge: EdgeCodec = field(init=False)
    _cloud: CloudCodec = field(init=False)

    def __post_init__(self) -> None:
        padded = self.padded_vocabulary
        if padded is not None and padded < self.vocabulary_size:
            why = f"{padded} is below the pair's own {self.vocabulary_size}"
            raise InvalidArgument("vocabulary", why)
        self._edge = EdgeCodec(self.vocabulary_size, self.preset.verify_settings)
        model = CloudModel("simulated", "simulated", self.vocabulary_size, 1 << 20, frozenset())
        self._cloud = CloudCodec(model)

    def size_of(self, message: EdgeMessage | CloudMessage) -> int:
        """Return the serialized bytes of a message that is sent now, and count them."""
        if isinstance(message, _DOWN):
            size: int = self._cloud.encode(message).ByteSize() + self._padding(message)
            self.downlink_bytes += size
            if isinstance(message, Committed):
                leaf = bool(message.path) and len(message.path) == len(self.preset.expansion)
                self.rejections += message.refuses and not leaf
                self.cloud_rejections += message.cloud_accepted < message.work.cloud_drafts
            return size
        size = self._edge.encode(message).ByteSize() + self._padding(message)
        self.uplink_bytes += size
        return size

    def _padding(self, message: EdgeMessage | CloudMessage) -> int:
        if self.padded_vocabulary is None:
            return 0
        added = self.padded_vocabulary - self.vocabulary_size
        if isinstance(message, Drafts) and self.preset.uplink is Uplink.FULL_DISTRIBUTIONS:
            distributions = 0 if message.distributions is None else len(message.distributions)
            return distributions * added * _BYTES[self.preset.uplink_precision]
        if isinstance(message, FullDistribution):
            return added * _BYTES["float32"]
        if isinstance(message, Committed) and isinstance(message.draw_from, FullPayload):
            return added * _BYTES["float32"]
        return 0
