"""Settings of the aggregator."""

from __future__ import annotations

from pydantic import Field

from tandem.settings import Port, ServiceSettings


class AggregatorSettings(ServiceSettings):
    """What the aggregator can be told; see `tandem.settings` for where from."""

    port: Port = Field(default=50050, description="gRPC port; 0 takes a free one.")
    max_message_bytes: int = Field(
        default=12 * 2**20, ge=2**16, le=2**31 - 1, description="Largest gRPC message, in bytes."
    )
    drafter: str = Field(
        default="127.0.0.1:50052", min_length=1, description="Address of the drafter."
    )
    max_running: int = Field(default=16, ge=1, description="Requests served at once.")
    max_waiting: int = Field(default=64, ge=0, description="Requests that may wait for a slot.")
    request_timeout_s: float = Field(
        default=600.0, gt=0, description="Longest time a request may take, waiting included."
    )
