"""Settings of the aggregator."""

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from tandem.net.addresses import check_addresses
from tandem.settings import MeasuredSettings, Port, SharePrefixes

DEFAULT_PORT = 50050
DEFAULT_HTTP_PORT = 8000
MAX_MORE_SIDES = 14
"""16 sides with device and cloud: each of them decodes for every request."""


class AggregatorSettings(MeasuredSettings):
    """What the aggregator can be told; see `tandem.settings` for where from."""

    port: Port = Field(default=DEFAULT_PORT, description="gRPC port; 0 takes a free one.")
    max_message_bytes: int = Field(
        default=12 * 2**20, ge=2**16, le=2**31 - 1, description="Largest gRPC message, in bytes."
    )
    drafter: str = Field(
        default="127.0.0.1:50052", min_length=1, description="Address of the drafter."
    )
    side: Literal["device", "cloud"] = Field(
        default="device", description="Where this aggregator runs; the device's serves callers."
    )
    decoder: str = Field(
        default="",
        description="Address of this side's decoder, for answers from documents on two sides: the"
        " drafter at the device (the default), the verifier in the cloud.",
    )
    retriever: str = Field(
        default="", description="Address of this side's retriever; none: it has no documents."
    )
    cloud: str = Field(
        default="",
        description="Device: address of the cloud's aggregator, for the same answers. Several with"
        " commas between them: of one target model and with the same documents; an answer goes to"
        " the nearest that serves, and on at another where that is lost.",
    )
    more_sides: str = Field(
        default="",
        description="Device: aggregators of further sides with documents of their own, each run"
        " like the cloud's, as office=10.0.0.7:50050,lab=10.0.0.8:50050. dragon-coupled then"
        " answers from all sides at once.",
    )

    @field_validator("drafter", "decoder", "retriever", "cloud")
    @classmethod
    def _addressed(cls, text: str) -> str:
        return check_addresses(text) if text else text

    @field_validator("more_sides")
    @classmethod
    def _named(cls, text: str, known: ValidationInfo) -> str:
        if not text:
            return text
        sides = sides_of(text)
        if not all(name.isidentifier() and address for name, address in sides):
            raise ValueError("are NAME=ADDRESS with commas between them")
        for _, address in sides:
            check_addresses(address)
        if len(dict(sides)) < len(sides) or {"device", "cloud"} & {*dict(sides)}:
            raise ValueError("must have different names, none of them device or cloud")
        if len(sides) > MAX_MORE_SIDES:
            raise ValueError(f"are {len(sides)}, of at most {MAX_MORE_SIDES}")
        if not known.data.get("cloud"):
            raise ValueError("are beside a cloud, which is not set")
        return text

    documents: int = Field(
        default=2, ge=1, le=32, description="Documents of each side, where a request says nothing."
    )
    profile_file: Path | None = Field(
        default=None,
        description="What 'tandem doctor --profile' measured of this side's decoder; without it the"
        " chooser of the aggregating side starts from what it sees.",
    )
    give_up_after_s: float = Field(
        default=2.6, gt=0, description="A cloud lost for so long is given up, by policy."
    )
    max_running: int = Field(default=16, ge=1, description="Requests served at once.")
    max_waiting: int = Field(default=64, ge=0, description="Requests that may wait for a slot.")
    request_timeout_s: float = Field(
        default=600.0, gt=0, description="Longest time a request may take, waiting included."
    )
    share_prefixes: SharePrefixes = Field(
        default="",
        description="Tenants (holders of keys) whose kept beginnings serve each other, as"
        " alice,bob;carol,dave; *: all. They can tell by the time of an answer that one of them had"
        " the same text.",
    )
    http: bool = Field(default=True, description="Whether to serve the OpenAI-compatible HTTP API.")
    http_page: bool = Field(
        default=True, description="Whether HTTP serves the web page at /, a chat with its figures."
    )
    http_documents: bool = Field(
        default=False,
        description="Whether HTTP callers may keep documents beside the device's; where there are"
        " keys, those with the scope documents:write.",
    )
    http_link_control: str = Field(
        default="",
        pattern=r"^([\w.\[\]:-]*:)?\d{1,5}$|^$",
        description="Control socket of an emulated link, as 127.0.0.1:6000; who may ask over HTTP"
        " can then slow and cut it, with a key of scope admin where keys are asked for.",
    )
    http_host: str = Field(
        default="127.0.0.1", min_length=1, description="Address that HTTP listens on."
    )
    http_port: Port = Field(default=DEFAULT_HTTP_PORT, description="HTTP port; 0 takes a free one.")
    http_docs: bool = Field(
        default=True, description="Whether HTTP has interactive documentation at /docs."
    )
    http_keys_file: Path | None = Field(
        default=None,
        description="File of the keys that HTTP callers must show, as HOLDER sha256:HEX lines;"
        " without it everybody who reaches the port is let in.",
    )
    http_hosts: str = Field(
        default="",
        description="Names that HTTP callers may call this server by beside localhost, its own and"
        " IP addresses, as api.example.com,*.example.org; *: any. Unset: any where keys are needed,"
        " and no other where none are.",
    )
    http_origins: str = Field(
        default="",
        description="Origins of web pages that may ask over HTTP, as https://chat.example.com; *:"
        " any. Pages of this server itself may.",
    )
    http_tls_certificate: Path | None = Field(
        default=None,
        description="PEM certificate that HTTP callers are shown; without it HTTP is plain.",
    )
    http_tls_key: Path | None = Field(default=None, description="Its private key, PEM.")
    http_max_body_bytes: int = Field(
        default=2 * 2**20, ge=2**10, le=64 * 2**20, description="Largest body of an HTTP request."
    )
    http_max_requests: int = Field(
        default=256, ge=1, description="HTTP requests handled at once, waiting ones included."
    )
    http_max_connections: int = Field(
        default=512,
        ge=1,
        description="Open HTTP connections; beyond them the longest idle is closed.",
    )
    http_write_timeout_s: float = Field(
        default=30.0,
        gt=0,
        description="How long an HTTP caller may leave its answer unread before it is cut off.",
    )
    http_max_tokens: int = Field(
        default=4096, ge=1, description="Most tokens of an answer over HTTP, and the default."
    )
    http_max_choices: int = Field(
        default=8, ge=1, le=128, description="Most choices (n times prompts) of an HTTP request."
    )


def sides_of(text: str) -> list[tuple[str, str]]:
    """Names and addresses of `more_sides`."""
    pairs = (each.partition("=") for each in text.split(",") if each.strip())
    return [(name.strip(), address.strip()) for name, _, address in pairs]
