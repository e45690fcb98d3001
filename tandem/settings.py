"""Typed settings of a service: defaults < file < `TANDEM_*` environment < flags.

A service derives its model from `ServiceSettings` and reads it with `load_settings`. Invariant: a
process starts with settings that were all checked, or not at all; a refusal is one line that names
the variable, flag or file key to change.
"""

import os
import re
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError as SourceError

from tandem.core.errors import InvalidArgument, TandemError
from tandem.core.sharing import parse_sharing

ENVIRONMENT_PREFIX = "TANDEM_"
CONFIG_VARIABLE = "TANDEM_CONFIG"
MAX_MESSAGE_BYTES = 2**31 - 1
"""gRPC's own limit: message lengths are signed 32-bit."""

SECURITY_FIELDS = frozenset(
    {
        *("tls_certificate", "tls_key", "tls_ca"),
        *("keys_file", "call_key_file", "cloud_key_file", "insecure"),
    }
)
"""Who may call, and what is shown to others."""

Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Port = Annotated[int, Field(ge=0, le=65535)]
_LARGEST = "Largest gRPC message accepted or sent, in bytes."
MessageBytes = Annotated[int, Field(ge=2**16, le=MAX_MESSAGE_BYTES, description=_LARGEST)]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    BeforeValidator(lambda level: level.lower() if isinstance(level, str) else level),
]


def _share_prefixes(value: object) -> object:
    """Of older releases it was a switch: everybody, or nobody."""
    text = str(value).strip().lower()
    if text in ("true", "1", "yes", "on"):
        return "*"
    if text in ("false", "0", "no", "off"):
        return ""
    if isinstance(value, str):
        try:
            parse_sharing(value)
        except InvalidArgument as error:
            raise ValueError(error.why) from None
    return value


SharePrefixes = Annotated[str, BeforeValidator(_share_prefixes)]
"""Text that `parse_sharing` takes."""


class SettingsError(TandemError):
    """Settings that cannot be used; the message is one line and names what to change."""


class ServiceSettings(BaseSettings):
    """What every service has. Derive from it and add fields; nested models are tables in the file
    and `TANDEM_OUTER__INNER` in the environment."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        validate_default=True,
        allow_inf_nan=False,
    )

    config: Path | None = Field(
        default=None, description="TOML file with any of the settings below."
    )
    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on.")
    port: Port = Field(default=0, description="gRPC port; 0 takes a free one.")
    metrics_port: Port = Field(default=0, description="Port of the metrics endpoint; 0: none.")
    metrics_host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address of the metrics endpoint, which is plain HTTP and open.",
    )
    health_port: Port = Field(
        default=0, description="A second port, plain and open, for gRPC health alone; 0: none."
    )
    tls_certificate: Path | None = Field(
        default=None, description="PEM certificate of this service, as server and as caller."
    )
    tls_key: Path | None = Field(default=None, description="Its private key, PEM.")
    tls_ca: Path | None = Field(
        default=None, description="PEM certificates of the authorities that others are checked by."
    )
    keys_file: Path | None = Field(
        default=None,
        description="Who may call, and what: lines of HOLDER sha256:HEX scopes=SCOPE,… as 'tandem"
        " keys' writes them.",
    )
    call_key_file: Path | None = Field(
        default=None, description="File with the key that this service shows to those it calls."
    )
    cloud_key_file: Path | None = Field(
        default=None,
        description="At the edge: the key shown to the cloud in its place; the cloud learns it.",
    )
    trace_endpoint: str | None = Field(
        default=None,
        min_length=1,
        description="OTLP collector that traces of requests go to, as http://127.0.0.1:4317; needs"
        " the extra 'tracing'.",
    )
    trace_sample: float = Field(
        default=1.0, ge=0, le=1, description="Share of requests traced, of those that begin here."
    )
    insecure: bool = Field(
        default=False, description="Serve and call without TLS and keys where none are given."
    )
    reflection: bool = Field(default=False, description="Serve gRPC reflection, where authorized.")
    log_level: LogLevel = Field(default="info", description="debug, info, warning or error.")
    drain_s: float = Field(default=10.0, ge=0, description="Grace for open requests at shutdown.")
    max_message_bytes: MessageBytes = 32 * 2**20
    first_message_s: float = Field(
        default=10.0, gt=0, le=600, description="A stream without a first message so long ends."
    )
    idle_stream_s: float = Field(
        default=60.0,
        ge=5,
        le=3600,
        description="A stream whose caller has said nothing for so long ends; pings count.",
    )
    quota_sessions: int = Field(
        default=0,
        ge=0,
        description="Sessions that one holder of a key may have open; 0: a fair share. Quotas of a"
        " key are in its line of the keys file, as sessions=8.",
    )
    quota_kv_bytes: int = Field(
        default=0, ge=0, description="Keys and values of one holder's sessions; 0: a fair share."
    )
    quota_requests_per_minute: int = Field(
        default=0, ge=0, description="Requests that one holder may begin in a minute; 0: any."
    )
    quota_tokens_per_minute: int = Field(
        default=0, ge=0, description="Tokens that one holder's requests may take; 0: any."
    )
    quota_grammar_s_per_minute: int = Field(
        default=10,
        ge=0,
        description="Seconds of computing that one tenant's grammars may take in a minute: all of"
        " compiling them, and of each mask what goes beyond a millisecond; 0: any.",
    )
    unread_answer_s: float = Field(
        default=20.0, gt=0, le=600, description="A caller that reads nothing for so long is left."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Highest first. No .env file is read."""
        return init_settings, env_settings, TomlFile(settings_cls)


class MeasuredSettings(ServiceSettings):
    """What every service has that begins with what others measured."""

    prometheus: str = Field(
        default="",
        description="Address of a Prometheus server, as http://prometheus:9090, that knows what"
        " earlier requests, other edges and other replicas measured, by the recording rules of"
        " deploy/prometheus; none: this process alone.",
    )
    prometheus_labels: str = Field(
        default="suite=tandem",
        description="Labels that series of this suite have at that server, as"
        " suite=tandem,release=prod; others do not count.",
    )
    prometheus_instance: str = Field(
        default="",
        description="What that server calls this side's process with a model (its label instance),"
        " as drafter:9100; unset: the mean of all with the same model.",
    )


class ModelSettings(ServiceSettings):
    """What every service has that runs a language model."""

    max_message_bytes: MessageBytes = 16 * 2**20
    engine: str = Field(
        default="auto",
        min_length=1,
        description="Back end that computes the model; auto: llamacpp for a .gguf file, else"
        " torch. Before a drafter's, lookup+ looks drafts up in the text and asks the model for the"
        " others.",
    )
    revision: str | None = Field(default=None, description="Pinned revision of a hub model.")
    device: str = Field(default="cpu", description="cpu, cuda or cuda:N.")
    dtype: Literal["float32", "bfloat16", "float16", "int8", "int4"] = Field(
        default="float32",
        description="Precision of weights and activations; int8 and int4: of weights alone. With"
        " the engine llamacpp, of keys and values.",
    )
    threads: int = Field(default=1, ge=1, le=256, description="Threads of one forward pass.")
    gpu_layers: int | None = Field(
        default=None,
        ge=0,
        description="Engine llamacpp: layers on the device cuda, of the last ones; none: all.",
    )
    kv_cells: int = Field(
        default=0,
        ge=0,
        le=2**24,
        description="Engine llamacpp: tokens that it has room for, of all sessions together; 0: 256"
        " MiB of them.",
    )
    stuck_after_s: float = Field(
        default=1.5,
        gt=0,
        description="A pass without a sign for so long is stuck, and health says NOT_SERVING; each"
        " layer is a sign. Passes over many tokens get as long again for each 256 of them. To be"
        " raised for a model whose layers take longer.",
    )
    prefix_kv_bytes: int = Field(
        default=2**28,
        ge=0,
        description="Keys and values of finished texts that are kept for later ones with the same"
        " beginning, of what sessions leave of the KV budget; 0: none. Engine torch only.",
    )
    prefix_kv_holder_bytes: int = Field(
        default=0,
        ge=0,
        description="Most that is kept for one holder of a key, all its tenants together; 0: as"
        " much as for all.",
    )
    share_prefixes: SharePrefixes = Field(
        default="",
        description="Callers whose kept beginnings serve each other, as edge-1,edge-2;edge-3,edge-4"
        " (names of keys, * for all): what they leave for no tenant of theirs, or declare public."
        " They can tell by the time of an answer that one of them had the same text.",
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
        default=0.0,
        ge=0,
        description="Benchmarks: seconds more for each further token of its longest request.",
    )
    pace_batch_s: float = Field(
        default=0.0,
        ge=0,
        description="Benchmarks: seconds more for each token of its other requests.",
    )


Settings = TypeVar("Settings", bound=ServiceSettings)


class TomlFile(PydanticBaseSettingsSource):
    """The file that a higher source names as `config`; empty when none does."""

    def __call__(self) -> dict[str, Any]:
        path = self.current_state.get("config")
        return {} if path is None else _read_file(Path(path))

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        """Part of the base class's contract; unused."""
        return None, field_name, False


def load_settings(
    model: type[Settings], flags: Mapping[str, object], also_known: Collection[str] = ()
) -> Settings:
    """The settings of one service, checked, or `SettingsError`. `flags` maps field names to what
    the command line gave; None means not given. `also_known` names `TANDEM_*` variables of other
    programs; any other unknown one is refused, so that a misspelt one is noticed."""
    given: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
    _refuse_unknown_variables(model, also_known)
    try:
        return model(**given)
    except ValidationError as error:
        lines = [_one_line(model, given, details) for details in error.errors()]
        raise SettingsError("; ".join(dict.fromkeys(lines))) from None
    except SourceError as error:
        raise SettingsError(_source_line(error)) from None


def variable_of(field: str) -> str:
    """The variable that sets `field`."""
    return f"{ENVIRONMENT_PREFIX}{field}".upper()


def _read_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: is not a TOML file: {error}") from None
    if "config" in table:
        raise SettingsError(f"{path}: config: a file cannot name another")
    return table


def _refuse_unknown_variables(model: type[ServiceSettings], also_known: Collection[str]) -> None:
    known = {variable_of(name) for name in model.model_fields} | {n.upper() for n in also_known}
    for variable, text in sorted(os.environ.items()):
        name = variable.upper()
        if not name.startswith(ENVIRONMENT_PREFIX) or name.split("__")[0] in known:
            continue
        if not _is_service_link(name, text):
            raise SettingsError(f"{variable}: is not a setting of this service")


def _is_service_link(name: str, text: str) -> bool:
    """Kubernetes tells every container of a namespace about a service called tandem-… like this."""
    return "://" in text or re.search(r"_SERVICE_(HOST|PORT)|_PORT_\d+_(TCP|UDP)", name) is not None


def _one_line(
    model: type[ServiceSettings], given: Mapping[str, object], problem: ErrorDetails
) -> str:
    """One problem: where the bad value came from, what it must be, what it was."""
    field, *inner = [str(part) for part in problem["loc"]] or [""]
    described = model.model_fields.get(field)
    secret = described is not None and "Secret" in str(described.annotation)
    return f"{_origin(model, given, field, inner)}: {_demand(problem, secret)}"


def _origin(
    model: type[ServiceSettings], given: Mapping[str, object], field: str, inner: list[str]
) -> str:
    """The flag, variable or file key that set `field`; the variable that could, if none did."""
    if field in given:
        return ".".join(["--" + field.replace("_", "-"), *inner])
    path = given.get("config") or os.environ.get(CONFIG_VARIABLE)
    if field in model.model_fields:
        nested = "__".join([variable_of(field), *(part.upper() for part in inner)])
        for variable in (nested, variable_of(field)):
            if path is None or variable in {name.upper() for name in os.environ}:
                return variable
    return f"{path}: {'.'.join([field, *inner])}"


def _demand(problem: ErrorDetails, secret: bool) -> str:
    """pydantic's words in this project's: "must be …, got …", on one line."""
    if problem["type"] == "extra_forbidden":
        return "is not a setting of this service"
    if problem["type"] == "missing":
        return "must be set"
    words = problem["msg"].removeprefix("Value error, ").replace("Input should", "must")
    words, shown = words.split(", unable to parse")[0], problem["input"]
    hidden = secret or not isinstance(shown, str | int | float)
    return words if hidden else f"{words}, got {str(shown)[:80]!r}"


def _source_line(error: SourceError) -> str:
    """pydantic-settings names the field whose variable is not the JSON that its type asks for."""
    found = re.search(r'field "(\w+)"', str(error))
    return str(error) if found is None else f"{variable_of(found.group(1))}: must be valid JSON"
