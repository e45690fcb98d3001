"""Bytes of every frame of a request, by running the real machines and codecs on synthetic
distributions.

Each frame is encoded, serialized, parsed and decoded again by the other end's codec, so that what
is counted is what that end accepts. gRPC's five bytes per message and HTTP/2's framing are not
included.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lab.bench.harness.zipf_distributions import ZipfDistributions
from tandem.netem.link_model import link_from
from tandem.specdec.cloud_checks import CloudModel
from tandem.specdec.events import EdgeRequest
from tandem.specdec.messages import (
    CloudMessage,
    Committed,
    Drafts,
    EdgeMessage,
    GenerationParams,
    Open,
)
from tandem.specdec.presets import Preset
from tandem.specdec.rounds.messages import FullDistribution, NeedFullDistribution, Recovered
from tandem.testing.simulation.model_times import ModelTimes
from tandem.testing.simulation.simulator import simulate
from tandem.wire.verifier_codec import CloudCodec, EdgeCodec
from tandem_api.verifier.v1 import verifier_pb2 as pb

PROMPT = tuple(range(1000, 1300))
"""Long enough that positions take two bytes, as in real use."""

INSTANT = ModelTimes(draft_s=0.001, verify_first_s=0.001, verify_further_s=0.0)


@dataclass(slots=True)
class RoundBytes:
    """One stop-and-wait round: the drafts, the answer, and what a rejection makes necessary."""

    uplink: int = 0
    downlink: int = 0
    answer: int = 0
    """The answer's size if it carries a distribution or a part of one to draw from; else 0."""
    rejected: bool = False
    needed_full_distribution: bool = False


@dataclass(frozen=True, slots=True)
class CountedRequest:
    """Bytes per round of one simulated request, and what it did."""

    rounds: list[RoundBytes]
    tokens: int
    drafted: int
    accepted: int


def count_rounds(
    preset: Preset, distributions: ZipfDistributions, max_tokens: int, seed: int
) -> CountedRequest:
    """Run one request to its end and count its frames."""
    request = EdgeRequest(
        session=0xFFFFFFFF,
        prompt_ids=PROMPT,
        vocabulary_hash="synthetic",
        vocabulary_size=distributions.vocabulary_size,
        params=GenerationParams(seed=seed, max_tokens=max_tokens, ignore_eos=True),
        preset=preset,
    )
    wire = _Wire(request)
    done = simulate(
        request,
        draft_probs=distributions.draft,
        target_probs=distributions.target,
        link=link_from(rtt_s=0.0),
        times=INSTANT,
        size_of=wire.size_of,
    )
    return CountedRequest(wire.rounds, len(done.token_ids), done.stats.drafted, done.stats.accepted)


@dataclass(slots=True)
class _Wire:
    """Takes every frame in the order it is sent; a draft begins a round."""

    request: EdgeRequest
    rounds: list[RoundBytes] = field(default_factory=list)
    _edge: EdgeCodec = field(init=False)
    _cloud: CloudCodec = field(init=False)

    def __post_init__(self) -> None:
        size = self.request.vocabulary_size
        self._edge = EdgeCodec(size, self.request.preset.verify_settings)
        model = CloudModel("synthetic", "synthetic", size, 1 << 20, frozenset())
        self._cloud = CloudCodec(model)

    def size_of(self, message: EdgeMessage | CloudMessage) -> int:
        """The frame's serialized size in bytes."""
        if isinstance(message, Open | Drafts | Recovered | NeedFullDistribution):
            return self._up(message)
        if isinstance(message, FullDistribution):
            return self._down(message)
        if isinstance(message, Committed) and message.work.drafts:
            return self._down(message)
        return 0  # opening, liveness and closing frames belong to no round

    def _up(self, message: Open | Drafts | Recovered | NeedFullDistribution) -> int:
        raw = self._edge.encode(message).SerializeToString()
        self._cloud.decode(pb.VerifyRequest.FromString(raw))
        if isinstance(message, Drafts):
            self.rounds.append(RoundBytes())
        if isinstance(message, Open):
            return len(raw)
        self.rounds[-1].uplink += len(raw)
        if isinstance(message, NeedFullDistribution):
            self.rounds[-1].needed_full_distribution = True
        return len(raw)

    def _down(self, message: Committed | FullDistribution) -> int:
        raw = self._cloud.encode(message).SerializeToString()
        self._edge.decode(pb.VerifyResponse.FromString(raw))
        current = self.rounds[-1]
        current.downlink += len(raw)
        if isinstance(message, Committed):
            current.rejected = message.refuses
            if message.draw_from is not None:
                current.answer = len(raw)
        return len(raw)
