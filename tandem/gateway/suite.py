"""What the gateway asks of the suite behind it.

Invariant: closing an answer's iterator early cancels the request on every service. Must not import
grpc or torch.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from tandem.rpc.aggregator_client import Generated
from tandem.rpc.generation import GenerationRequest


class Model(Protocol):
    """One model of the pair, as the services describe it."""

    @property
    def model_name(self) -> str: ...
    @property
    def vocabulary_hash(self) -> str: ...
    @property
    def context_length(self) -> int: ...


class Description(Protocol):
    """What the suite serves; without a cloud, `cloud_error` says why and `target` is empty."""

    @property
    def draft(self) -> Model: ...
    @property
    def target(self) -> Model: ...
    @property
    def cloud_error(self) -> str: ...
    @property
    def presets(self) -> Sequence[str]: ...


class Suite(Protocol):
    """Answers requests; all errors are those that `tandem.rpc.status` knows."""

    @property
    def leaving(self) -> bool:
        """Whether new requests are refused because the process is stopping."""

    async def describe(self) -> Description:
        """Who is there."""

    def stream(self, request: GenerationRequest, timeout_s: float) -> AsyncGenerator[Generated]:
        """The growing answer, after each message; the last one has its summary."""
