"""What a side's machine is asked for, and what it asks its shell to do.

Invariant: frozen values, but for the running totals of `AggregationStats`. Must not import asyncio,
grpc, torch or time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tandem.core.aggregation import Side
from tandem.core.laws import Sampling
from tandem.policy.aggregation_presets import AggregationPreset
from tandem.policy.placement import first_side
from tandem.protocol.aggregation_messages import CollaborationOpen, PeerMessage
from tandem.protocol.decoding_messages import DecodingTarget
from tandem.protocol.outputs import Commit, Finish, Reconnect
from tandem.protocol.prefixes import PrefixedTokens


@dataclass(frozen=True, slots=True)
class AggregationRequest:
    """One request, checked: `max_tokens` fits the context, the preset is valid. `query`: what the
    cloud retrieves for, `documents` of them at most."""

    session: int
    prompt_ids: tuple[int, ...]
    vocabulary_hash: str
    vocabulary_size: int
    sampling: Sampling
    seed: int
    max_tokens: int
    preset: AggregationPreset
    committed_ids: tuple[int, ...] = ()
    eos_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    query: str = ""
    documents: int = 0

    def opening(self, epoch: int, committed: PrefixedTokens, log_mass: float) -> CollaborationOpen:
        """The frame that opens a stream at the committed text."""
        return CollaborationOpen(
            self.session,
            epoch,
            len(committed),
            committed.prefix,
            vocabulary_hash=self.vocabulary_hash,
            vocabulary_size=self.vocabulary_size,
            prompt_ids=self.prompt_ids,
            committed_ids=committed.since(len(self.prompt_ids)),
            query=self.query,
            documents=self.documents,
            sampling=self.sampling,
            seed=self.seed,
            max_tokens=self.max_tokens,
            end_ids=frozenset() if self.ignore_eos else self.eos_token_ids,
            log_mass=log_mass,
            aggregating=first_side(self.preset.placement),
            preset=self.preset,
        )


def request_of(opening: CollaborationOpen) -> AggregationRequest:
    """The request as the cloud takes it over."""
    return AggregationRequest(
        session=opening.session,
        prompt_ids=opening.prompt_ids,
        vocabulary_hash=opening.vocabulary_hash,
        vocabulary_size=opening.vocabulary_size,
        sampling=opening.sampling,
        seed=opening.seed,
        max_tokens=opening.max_tokens,
        preset=opening.preset,
        committed_ids=opening.committed_ids,
        eos_token_ids=opening.end_ids,
        query=opening.query,
        documents=opening.documents,
    )


@dataclass(frozen=True, slots=True)
class ToPeer:
    """Put a frame on the stream to the other aggregator."""

    message: PeerMessage


@dataclass(frozen=True, slots=True)
class ToDecoder:
    """Put a frame on the stream to this side's decoder."""

    message: DecodingTarget


SideOutput = ToPeer | ToDecoder | Commit | Reconnect | Finish


def _both() -> dict[Side, int]:
    return dict.fromkeys(Side, 0)


@dataclass(slots=True)
class AggregationStats:
    """Running totals of one request, as one side sees them."""

    tokens: int = 0
    unverified_tokens: int = 0
    drafted: dict[Side, int] = field(default_factory=_both)
    """Drafts that were there when their position was decided."""
    accepted: dict[Side, int] = field(default_factory=_both)
    decode_s: dict[Side, float] = field(default_factory=lambda: dict.fromkeys(Side, 0.0))
    side_moves: int = 0
    fetches: int = 0
    stale_drafts: int = 0
    streams: int = 0
    links_lost: int = 0
    loss_noticed_s: float = 0.0

    @property
    def resumes(self) -> int:
        """Streams after the first."""
        return max(0, self.streams - 1)

    def acceptance_rate(self, side: Side) -> float | None:
        return self.accepted[side] / self.drafted[side] if self.drafted[side] else None
