"""Settings of the aggregator."""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from tandem.generation.request import LONGEST_ANSWER_S
from tandem.net.addresses import check_addresses
from tandem.settings import MeasuredSettings, Port, SharePrefixes

DEFAULT_PORT = 50050
DEFAULT_HTTP_PORT = 8000


class AggregatorSettings(MeasuredSettings):
    """Settings of the aggregator; `tandem.settings` says where they come from."""

    port: Port = Field(
        default=DEFAULT_PORT,
        description="gRPC port. 0: choose a free port.",
        json_schema_extra={"group": "Link", "usual": True},
    )
    max_message_bytes: int = Field(
        default=12 * 2**20,
        ge=2**16,
        le=2**31 - 1,
        description="Maximum size of a gRPC message, in bytes.",
        json_schema_extra={"group": "Link"},
    )
    drafter: str = Field(
        default="127.0.0.1:50052",
        min_length=1,
        description="Address of the drafter.",
        json_schema_extra={"group": "Link", "usual": True},
    )
    side: Literal["device", "cloud"] = Field(
        default="device",
        description="Side that this aggregator runs on. Callers connect to the one on the device.",
        json_schema_extra={"group": "Link", "usual": True},
    )
    decoder: str = Field(
        default="",
        description="Address of this side's decoder for answers from documents: on the device"
        " the drafter (default), in the cloud the verifier.",
        json_schema_extra={"group": "Link"},
    )
    retriever: str = Field(
        default="",
        description="Address of this side's retriever. Unset: this side has no documents.",
        json_schema_extra={"group": "Link", "usual": True},
    )
    cloud: str = Field(
        default="",
        description="On the device: address of the cloud's aggregator, for answers from"
        " documents. May be a comma-separated list of aggregators with the same"
        " target model and documents: answers use the first healthy one, and"
        " continue at the next one if it is lost or stops.",
        json_schema_extra={"group": "Link", "usual": True},
    )

    @field_validator("drafter", "decoder", "retriever", "cloud")
    @classmethod
    def _addressed(cls, text: str) -> str:
        return check_addresses(text) if text else text

    documents: int = Field(
        default=2,
        ge=1,
        le=32,
        description="Default number of documents to retrieve on each side.",
        json_schema_extra={"group": "Documents", "usual": True},
    )
    profile_file: Path | None = Field(
        default=None,
        description="File written by 'tandem doctor --profile' with the speed of this side's"
        " decoder. Without it the scheduler starts from its own first"
        " measurements.",
        json_schema_extra={"group": "Schedule"},
    )
    give_up_after_s: float = Field(
        default=2.6,
        gt=0,
        description="Give up on the cloud if it is unreachable for this many seconds. The"
        " request's `lost_cloud` says what happens then.",
        json_schema_extra={"group": "Link"},
    )
    max_running: int = Field(
        default=16,
        ge=1,
        description="Maximum requests served concurrently.",
        json_schema_extra={"group": "Limits", "usual": True},
    )
    max_waiting: int = Field(
        default=64,
        ge=0,
        description="Maximum requests waiting to be served. Further requests are refused.",
        json_schema_extra={"group": "Limits", "usual": True},
    )
    request_timeout_s: float = Field(
        default=LONGEST_ANSWER_S,
        gt=0,
        description="Maximum seconds for a request, including its time in the queue.",
        json_schema_extra={"group": "Limits", "usual": True},
    )
    share_prefixes: SharePrefixes = Field(
        default="",
        description="Groups of tenants (key holders) that share cached prefixes, for example"
        " alice,bob;carol,dave (* for all). Tenants in a group can tell from"
        " response times that another one used the same text.",
        json_schema_extra={"group": "Limits"},
    )
    http: bool = Field(
        default=True,
        description="Serve the OpenAI-compatible HTTP API.",
        json_schema_extra={"group": "HTTP", "usual": True},
    )
    http_page: bool = Field(
        default=True,
        description="Serve the web page, a chat with statistics, at /.",
        json_schema_extra={"group": "HTTP", "usual": True},
    )
    http_documents: bool = Field(
        default=False,
        description="Let HTTP callers store documents on the device. If keys are used, this"
        " requires the scope documents:write.",
        json_schema_extra={"group": "HTTP", "usual": True},
    )
    http_host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address of the HTTP server.",
        json_schema_extra={"group": "HTTP", "usual": True},
    )
    http_port: Port = Field(
        default=DEFAULT_HTTP_PORT,
        description="HTTP port. 0: choose a free port.",
        json_schema_extra={"group": "HTTP", "usual": True},
    )
    http_docs: bool = Field(
        default=True,
        description="Serve interactive API documentation at /docs.",
        json_schema_extra={"group": "HTTP"},
    )
    http_keys_file: Path | None = Field(
        default=None,
        description="File of the API keys of HTTP callers, one per line: HOLDER sha256:HEX."
        " Without it everybody who reaches the port may call.",
        json_schema_extra={"group": "HTTP", "usual": True},
    )
    http_hosts: str = Field(
        default="",
        description="Host names accepted in HTTP requests, in addition to localhost, this"
        " machine's own names and IP addresses, for example"
        " api.example.com,*.example.org; *: any name. Unset: any name if keys are"
        " required, otherwise no other name.",
        json_schema_extra={"group": "HTTP"},
    )
    http_origins: str = Field(
        default="",
        description="Origins of web pages that may call the HTTP API (CORS), for example"
        " https://chat.example.com; *: any. Pages of this server are always"
        " allowed.",
        json_schema_extra={"group": "HTTP"},
    )
    http_tls_certificate: Path | None = Field(
        default=None,
        description="PEM certificate of the HTTP server. Without it the server uses plain HTTP.",
        json_schema_extra={"group": "HTTP"},
    )
    http_tls_key: Path | None = Field(
        default=None,
        description="PEM private key of the certificate.",
        json_schema_extra={"group": "HTTP"},
    )
    http_max_body_bytes: int = Field(
        default=2 * 2**20,
        ge=2**10,
        le=64 * 2**20,
        description="Maximum size of an HTTP request body, in bytes.",
        json_schema_extra={"group": "HTTP"},
    )
    http_body_bytes_per_s: int = Field(
        default=4 * 2**20,
        ge=0,
        description="Average rate, in bytes per second, at which the request bodies of one API key"
        " are read. A caller that sends faster waits. 0: no limit.",
        json_schema_extra={"group": "HTTP"},
    )
    http_max_requests: int = Field(
        default=256,
        ge=1,
        description="Maximum concurrent HTTP requests, including waiting ones.",
        json_schema_extra={"group": "HTTP"},
    )
    http_max_connections: int = Field(
        default=512,
        ge=1,
        description="Maximum open HTTP connections; fewer if the process may not open so many"
        " files. Beyond it the connection that has been idle longest is closed.",
        json_schema_extra={"group": "HTTP"},
    )
    http_write_timeout_s: float = Field(
        default=30.0,
        gt=0,
        description="Disconnect an HTTP caller that does not read its response for this many"
        " seconds.",
        json_schema_extra={"group": "HTTP"},
    )
    http_max_tokens: int = Field(
        default=0,
        ge=0,
        description="Maximum tokens of an answer over HTTP. 0: as many as the context leaves.",
        json_schema_extra={"group": "HTTP"},
    )
    generation_config: Literal["auto", "none"] = Field(
        default="auto",
        description="Sampling settings of HTTP requests that name none. auto: those of the target"
        " model's generation_config.json (temperature, top_p, top_k, repetition_penalty), as in"
        " vLLM; what it lacks has OpenAI's default. none: OpenAI's defaults (temperature 1).",
        json_schema_extra={"group": "Sampling", "usual": True},
    )
    http_max_choices: int = Field(
        default=8,
        ge=1,
        le=128,
        description="Maximum choices (`n` times the number of prompts) of an HTTP request.",
        json_schema_extra={"group": "HTTP"},
    )
    http_embedding_aliases: str = Field(
        default="",
        description="Other names of the embedding model over HTTP, separated by commas, for example"
        " text-embedding-3-small.",
        json_schema_extra={"group": "HTTP"},
    )
