"""Settings of the drafter."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from tandem.settings import Port, ServiceSettings

MODELS = Path(__file__).resolve().parents[2] / "models"


class DrafterSettings(ServiceSettings):
    """What the drafter can be told; see `tandem.settings` for where from."""

    port: Port = Field(default=50052, description="gRPC port; 0 takes a free one.")
    max_message_bytes: int = Field(
        default=16 * 2**20, ge=2**16, le=2**31 - 1, description="Largest gRPC message, in bytes."
    )
    verifier: str = Field(
        default="127.0.0.1:50051", min_length=1, description="Address of the verifier."
    )
    model: str = Field(
        default=str(MODELS / "demo-draft"),
        min_length=1,
        description="Draft model: folder or hub name.",
    )
    revision: str | None = Field(default=None, description="Pinned revision of a hub model.")
    target_tokenizer: str | None = Field(
        default=None,
        min_length=1,
        description="Tokenizer of the target, where it is not the draft model's: a folder with its"
        " files and config.json, or NAME@COMMIT of a hub model.",
    )
    device: str = Field(default="cpu", description="cpu, cuda or cuda:N.")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="Precision of weights and activations."
    )
    threads: int = Field(default=1, ge=1, le=256, description="Threads of one forward pass.")
    max_sessions: int = Field(default=32, ge=1, description="Requests served at once.")
    kv_budget_bytes: int = Field(
        default=2**30, ge=2**20, description="Keys and values of all requests together."
    )
    ping_after_s: float = Field(
        default=0.8, gt=0, description="A cloud silent for so long is pinged."
    )
    dead_after_s: float = Field(
        default=2.4, gt=0, description="A cloud silent for so long is taken for lost."
    )
    give_up_after_s: float = Field(
        default=2.6, gt=0, description="A cloud lost for so long is given up, by policy."
    )
    document_kv_budget_bytes: int = Field(
        default=2**29, ge=2**20, description="Keys and values of all documents together."
    )
    document_kv_folder: Path | None = Field(
        default=None, description="Where documents' keys and values are kept; none: in memory only."
    )
    document_kv_disk_bytes: int = Field(
        default=2**32, ge=2**20, description="What they may take of the disk."
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
