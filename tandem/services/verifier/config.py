"""Settings of the verifier."""

from pathlib import Path

from pydantic import Field

from tandem.backends.model_source import ServerChoice
from tandem.core.errors import InvalidArgument, os_words
from tandem.demo import demo_folder
from tandem.runtime.tenant_memories import MemoryLimits
from tandem.settings import Dtype, ModelSettings, Port


class VerifierSettings(ModelSettings):
    """Settings of the verifier; `tandem.settings` says where they come from."""

    port: Port = Field(
        default=50051,
        description="gRPC port. 0: choose a free port.",
        json_schema_extra={"group": "Link", "usual": True},
    )
    model: str = Field(
        default=str(demo_folder("demo-target")),
        min_length=1,
        description="Target model: a folder or a hub name.",
        json_schema_extra={"group": "Model", "usual": True},
    )
    target_url: str | None = Field(
        default=None,
        min_length=1,
        description="Address of a vLLM or SGLang server that computes the target model, for"
        " example http://gpu:8000. `model` then gives its tokenizer.",
        json_schema_extra={"group": "Target server"},
    )
    target_key_file: Path | None = Field(
        default=None,
        description="File with the API key of the server at `target_url`.",
        json_schema_extra={"group": "Target server"},
    )
    target_ca: Path | None = Field(
        default=None,
        description="PEM certificates of the authorities that sign the certificate of the server"
        " at `target_url`. Unset: those of the system.",
        json_schema_extra={"group": "Target server"},
    )
    target_silent_s: float = Field(
        default=300.0,
        gt=0,
        description="Seconds without a byte after which a request to the server at `target_url`"
        " is given up. Reading a long prompt is one silence.",
        json_schema_extra={"group": "Target server"},
    )
    exits: str = Field(
        default="auto",
        min_length=1,
        description="Early exits of the target model: a folder made by 'tandem train-exits',"
        " none, or auto: the folder beside the target (x-exits beside x-target),"
        " if it fits.",
        json_schema_extra={"group": "Model"},
    )
    cloud_draft: str | None = Field(
        default=None,
        min_length=1,
        description="Draft model of the verifier itself, for the presets cloud-draft and auto: a"
        " folder, a GGUF file, or NAME of a hub model.",
        json_schema_extra={"group": "Model", "usual": True},
    )
    cloud_draft_engine: str = Field(
        default="auto",
        min_length=1,
        description="Engine that runs the model of `cloud_draft`. auto: llamacpp for a .gguf"
        " file, otherwise torch.",
        json_schema_extra={"group": "Model"},
    )
    cloud_draft_device: str | None = Field(
        default=None,
        min_length=1,
        description="Device of the model of `cloud_draft`. Unset: that of the target.",
        json_schema_extra={"group": "Model"},
    )
    cloud_draft_dtype: Dtype | None = Field(
        default=None,
        description="Data type of the model of `cloud_draft`. Unset: that of the target.",
        json_schema_extra={"group": "Model"},
    )
    cloud_memory_tokens: int = Field(
        default=0,
        ge=0,
        le=2**24,
        description="Tokens of earlier texts that the verifier remembers of each tenant, in its"
        " memory only, for the presets in which the cloud drafts. Beyond them the least recently"
        " repeated texts are forgotten. 0: remember nothing.",
        json_schema_extra={"group": "Limits"},
    )
    cloud_memory_total_tokens: int = Field(
        default=2**20,
        ge=0,
        le=2**26,
        description="Tokens that the verifier remembers of all tenants together, at some 25 bytes"
        " each. Only with `cloud_memory_tokens`.",
        json_schema_extra={"group": "Limits"},
    )
    batch_invariant: bool = Field(
        default=False,
        description="Engine llamacpp: compute each token to the same bits in every pass, so that"
        " texts are the target's bit for bit. Each token is computed alone then, and a prompt"
        " takes about twice as long.",
        json_schema_extra={"group": "Model"},
    )
    max_sessions: int = Field(
        default=64,
        ge=1,
        description="Maximum open sessions.",
        json_schema_extra={"group": "Limits", "usual": True},
    )
    kv_budget_bytes: int = Field(
        default=2 * 2**30,
        ge=2**20,
        description="Maximum KV cache of all sessions together, in bytes.",
        json_schema_extra={"group": "Limits", "usual": True},
    )
    max_draft_length: int = Field(
        default=64,
        ge=1,
        le=64,
        description="Maximum draft tokens verified in one round.",
        json_schema_extra={"group": "Schedule"},
    )
    document_kv_export: bool = Field(
        default=True,
        description="Send the KV cache of documents to the cloud's aggregator, for devices"
        " that run the same model (preset drcg-kv).",
        json_schema_extra={"group": "Documents"},
    )


def memory_limits(settings: VerifierSettings) -> MemoryLimits | None:
    """Return what may be remembered; None where nothing is."""
    if not settings.cloud_memory_tokens:
        return None
    total = max(settings.cloud_memory_tokens, settings.cloud_memory_total_tokens)
    return MemoryLimits(settings.cloud_memory_tokens, total)


def server_choice(settings: VerifierSettings) -> ServerChoice | None:
    """Return the server that computes the target; None where it is computed here. Raises
    InvalidArgument naming the setting."""
    if settings.target_url is None:
        return None
    key = ""
    if settings.target_key_file is not None:
        try:
            key = settings.target_key_file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = os_words(error) if isinstance(error, OSError) else "is not text"
            raise InvalidArgument("target_key_file", why) from error
    return ServerChoice(
        url=settings.target_url,
        key=key,
        certificates=None if settings.target_ca is None else str(settings.target_ca),
        silent_s=settings.target_silent_s,
    )
