"""Settings of the verifier."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from tandem.settings import Port, ServiceSettings

MODELS = Path(__file__).resolve().parents[2] / "models"


class VerifierSettings(ServiceSettings):
    """What the verifier can be told; see `tandem.settings` for where from."""

    port: Port = Field(default=50051, description="gRPC port; 0 takes a free one.")
    max_message_bytes: int = Field(
        default=16 * 2**20, ge=2**16, le=2**31 - 1, description="Largest gRPC message, in bytes."
    )
    model: str = Field(
        default=str(MODELS / "demo-target"),
        min_length=1,
        description="Target model: folder or hub name.",
    )
    revision: str | None = Field(default=None, description="Pinned revision of a hub model.")
    device: str = Field(default="cpu", description="cpu, cuda or cuda:N.")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="Precision of weights and activations."
    )
    exits: str = Field(
        default="auto",
        min_length=1,
        description="Early exits of the target: a folder made by 'tandem train-exits', none, or "
        "auto: those beside the target (x-exits beside x-target), if they fit it.",
    )
    threads: int = Field(default=1, ge=1, le=256, description="Threads of one forward pass.")
    max_sessions: int = Field(default=64, ge=1, description="Sessions open at once.")
    kv_budget_bytes: int = Field(
        default=2 * 2**30, ge=2**20, description="Keys and values of all sessions together."
    )
    max_draft_length: int = Field(default=64, ge=1, le=64, description="Longest draft judged.")
    document_kv_budget_bytes: int = Field(
        default=2**29, ge=2**20, description="Keys and values of all documents together."
    )
    document_kv_folder: Path | None = Field(
        default=None, description="Where documents' keys and values are kept; none: in memory only."
    )
    document_kv_disk_bytes: int = Field(
        default=2**32, ge=2**20, description="What they may take of the disk."
    )
    document_kv_export: bool = Field(
        default=True,
        description="Whether the cloud's aggregator is given documents' keys and values for devices"
        " that run the same model (drcg-kv).",
    )
    reranker: str | None = Field(
        default=None,
        min_length=1,
        description="Cross-encoder (a folder) that estimates documents' relevances anew.",
    )
    pace_first_s: float = Field(
        default=0.0, ge=0, description="Benchmarks: least seconds of a pass over one token."
    )
    pace_further_s: float = Field(
        default=0.0, ge=0, description="Benchmarks: seconds more for each further token."
    )
