"""Settings of the drafter."""

from pathlib import Path

from pydantic import Field, field_validator

from tandem.core.errors import InvalidArgument
from tandem.demo import demo_folder
from tandem.learning.settings import LearningSettings
from tandem.runtime.tenant_memories import MemoryLimits
from tandem.services.drafter.cloud.listed import clouds_of
from tandem.settings import MeasuredSettings, ModelSettings, Port
from tandem.specdec.presets import MAX_SPLIT_LAYERS, SPLIT_LAYERS


class DrafterSettings(LearningSettings, ModelSettings, MeasuredSettings):
    """Settings of the drafter; `tandem.settings` says where they come from."""

    port: Port = Field(
        default=50052,
        description="gRPC port. 0: choose a free port.",
        json_schema_extra={"group": "Link", "usual": True},
    )
    verifier: str = Field(
        default="127.0.0.1:50051",
        min_length=1,
        description="Address of the verifier. May be a comma-separated list of verifiers with the"
        " same target model: requests go to the first healthy one, and continue at the next"
        " one if it is lost, stops or refuses them.",
        json_schema_extra={"group": "Link", "usual": True},
    )
    verifiers_file: Path | None = Field(
        default=None,
        description="File with one verifier per line, in order of preference, used instead of"
        " `verifier`. It is read again when it changes.",
        json_schema_extra={"group": "Link"},
    )
    public_prompts_file: Path | None = Field(
        default=None,
        description="JSON file with a list of public system prompts. The part that requests"
        " share with one of them is cached once for all tenants, in the drafter"
        " and the verifier.",
        json_schema_extra={"group": "Limits"},
    )

    @field_validator("verifier")
    @classmethod
    def _several(cls, text: str) -> str:
        try:
            clouds_of(text)
        except InvalidArgument as error:
            raise ValueError(error.why) from None
        return text

    model: str = Field(
        default=str(demo_folder("demo-draft")),
        min_length=1,
        description="Draft model: a folder or a hub name.",
        json_schema_extra={"group": "Model", "usual": True},
    )
    target_tokenizer: str | None = Field(
        default=None,
        min_length=1,
        description="Tokenizer of the target model, if it differs from the draft model's: a"
        " folder with its files and config.json, or NAME@COMMIT of a hub model.",
        json_schema_extra={"group": "Model"},
    )
    split_model: str | None = Field(
        default=None,
        min_length=1,
        description="The target model, for the preset split, whose first"
        " layers then run here: the folder that the verifier serves, or NAME@COMMIT"
        " of a hub model. Needs the engine torch and a model of the Llama family;"
        " computed in float32.",
        json_schema_extra={"group": "Model"},
    )
    split_layers: int = Field(
        default=SPLIT_LAYERS,
        ge=1,
        le=MAX_SPLIT_LAYERS,
        description="How many of the layers of `split_model` run here.",
        json_schema_extra={"group": "Model"},
    )
    max_sessions: int = Field(
        default=32,
        ge=1,
        description="Maximum requests served concurrently.",
        json_schema_extra={"group": "Limits", "usual": True},
    )
    kv_budget_bytes: int = Field(
        default=2**30,
        ge=2**20,
        description="Maximum KV cache of all requests together, in bytes.",
        json_schema_extra={"group": "Limits", "usual": True},
    )
    ping_after_s: float = Field(
        default=0.8,
        gt=0,
        description="Ping the cloud if it sends nothing for this many seconds.",
        json_schema_extra={"group": "Link"},
    )
    dead_after_s: float = Field(
        default=2.4,
        gt=0,
        description="Treat the connection to the cloud as lost if it sends nothing for this"
        " many seconds.",
        json_schema_extra={"group": "Link"},
    )
    give_up_after_s: float = Field(
        default=2.6,
        gt=0,
        description="Give up on the cloud if it is unreachable for this many seconds. The"
        " request's `lost_cloud` says what happens then.",
        json_schema_extra={"group": "Link"},
    )
    memory_tokens: int = Field(
        default=2**18,
        ge=0,
        le=2**24,
        description="Tokens of earlier texts that are remembered of each tenant, to draft from."
        " Beyond them the least recently repeated texts are forgotten. 0: remember nothing, and"
        " look nothing up in prompts either.",
        json_schema_extra={"group": "Limits"},
    )
    memory_total_tokens: int = Field(
        default=2**20,
        ge=0,
        le=2**26,
        description="Tokens that are remembered of all tenants together, at some 25 bytes each.",
        json_schema_extra={"group": "Limits"},
    )


def memory_limits(settings: DrafterSettings) -> MemoryLimits | None:
    """Return what may be remembered; None where nothing is."""
    if not settings.memory_tokens:
        return None
    total = max(settings.memory_tokens, settings.memory_total_tokens)
    return MemoryLimits(settings.memory_tokens, total)
