"""The frames between the two aggregators (documented in aggregator.proto).

Invariant: arrays inside messages are never written to. Must not import asyncio, grpc, torch
or time.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.core.aggregation import Side
from tandem.core.laws import Array, Sampling
from tandem.core.top_list import TopList
from tandem.policy.aggregation_presets import AggregationPreset
from tandem.protocol.decoding_messages import Document
from tandem.protocol.document_kv import DocumentPart, DocumentWanted, KvModel
from tandem.protocol.messages import Cancel, Frame, GoingAway, Ping, Pong
from tandem.protocol.outputs import Maker


@dataclass(frozen=True, slots=True)
class CollaborationOpen(Frame):
    """`base` and `prefix`: prompt and committed text. `documents`: how many the cloud may take.

    `document_kv`: where their keys and values travel, the model at the device that will use them.
    """

    vocabulary_hash: str
    vocabulary_size: int
    prompt_ids: tuple[int, ...]
    committed_ids: tuple[int, ...]
    query: str
    documents: int
    sampling: Sampling
    seed: int
    max_tokens: int
    end_ids: frozenset[int]
    log_mass: float
    aggregating: Side
    preset: AggregationPreset
    document_kv: KvModel | None = None


@dataclass(frozen=True, slots=True)
class CollaborationOpened(Frame):
    """`texts`: the cloud's documents themselves, where they travel."""

    log_mass: float
    max_tokens: int
    model_name: str = ""
    documents: int = 0
    document_tokens: int = 0
    texts: tuple[Document, ...] = ()


@dataclass(frozen=True, slots=True)
class SideDraftFrame(Frame):
    """The sender's own draft at `base`, with what the rule needs of its law: the law, a top list
    of it at temperature 0, or nothing. `settled`: where the sender's committed text ends.

    `heard`: how many of the receiver's frames had come, the newest `held_s` ago.
    """

    token_id: int
    law: Array | TopList | None
    log_mass: float
    settled: int
    decode_s: float = 0.0
    held_s: float = 0.0
    heard: int = 0


@dataclass(frozen=True, slots=True)
class TargetFrame(Frame):
    """Tokens decided from `base` on; from the position after them on the receiver aggregates, if
    that is said. `makers`: of each token, or none."""

    token_ids: tuple[int, ...]
    hands_over: bool = False
    makers: tuple[Maker, ...] = ()


@dataclass(frozen=True, slots=True)
class Fetch(Frame):
    """A top list of so many entries is needed of the receiver's draft at `base`."""

    count: int


AnyPeerMessage = SideDraftFrame | TargetFrame | Fetch
"""What travels in both directions."""
DeviceMessage = AnyPeerMessage | CollaborationOpen | DocumentWanted | Cancel | Ping
CloudSideMessage = AnyPeerMessage | CollaborationOpened | DocumentPart | GoingAway | Pong
PeerMessage = DeviceMessage | CloudSideMessage
