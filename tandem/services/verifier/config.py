"""Settings of the verifier."""

from typing import Literal

from pydantic import Field

from tandem.demo import demo_folder
from tandem.settings import ModelSettings, Port, Price


class VerifierSettings(ModelSettings):
    """What the verifier can be told; see `tandem.settings` for where from."""

    port: Port = Field(default=50051, description="gRPC port; 0 takes a free one.")
    model: str = Field(
        default=str(demo_folder("demo-target")),
        min_length=1,
        description="Target model: folder or hub name.",
    )
    exits: str = Field(
        default="auto",
        min_length=1,
        description="Early exits of the target: a folder made by 'tandem train-exits', none, or "
        "auto: those beside the target (x-exits beside x-target), if they fit it.",
    )
    tensor_parallel: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="Devices that each layer is spread over; more than one needs the engine vllm.",
    )
    pipeline_parallel: int = Field(
        default=1, ge=1, le=1024, description="Groups of devices that the layers are spread over."
    )
    executor: Literal["mp", "ray"] | None = Field(
        default=None,
        description="What runs the workers of the engine vllm: mp on one machine, ray on several;"
        " by default what fits.",
    )
    max_sessions: int = Field(default=64, ge=1, description="Sessions open at once.")
    kv_budget_bytes: int = Field(
        default=2 * 2**30,
        ge=2**20,
        description="Keys and values of all sessions together; the engine vllm allocates them when"
        " it starts, on all devices together.",
    )
    max_draft_length: int = Field(default=64, ge=1, le=64, description="Longest draft judged.")
    document_kv_export: bool = Field(
        default=True,
        description="Whether the cloud's aggregator is given documents' keys and values for devices"
        " that run the same model (drcg-kv).",
    )
    price_cloud_second: Price = Field(
        default=0.0,
        description="Of a second of this model, in any currency: drafters that know several"
        " verifiers go by it. 0: it is not said.",
    )
