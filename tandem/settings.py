"""Typed settings of a service: defaults < file < `TANDEM_*` environment < flags.

A service derives its model from `ServiceSettings` and reads it with `load_settings`. Help and
docs/reference are made from its fields: `json_schema_extra` names the `group` of help that a field
is in, and `usual` is true for what `--help` shows, and not `--help-all` alone. Invariant: a
process starts with settings that were all checked, or not at all; a refusal is one line that names
the variable, flag or file key to change.
"""

import os
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)
from pydantic_settings.exceptions import SettingsError as SourceError

from tandem.core.errors import InvalidArgument, TandemError
from tandem.core.sharing import parse_sharing

ENVIRONMENT_PREFIX = "TANDEM_"
CONFIG_VARIABLE = "TANDEM_CONFIG"
TARGET_VARIABLE = "TANDEM_TARGET"
THREADS_VARIABLE = "TANDEM_THREADS"
"""The model of commands that are given none (`tandem.suite.models`); no setting of a service."""
MAX_MESSAGE_BYTES = 2**31 - 1
"""gRPC's own limit: message lengths are signed 32-bit."""

SECURITY_FIELDS = frozenset(
    {
        *("tls_certificate", "tls_key", "tls_ca"),
        *("keys_file", "call_key_file", "cloud_key_file", "cloud_certificate"),
        *("client_certificates", "insecure"),
    }
)
"""Settings that decide who may call this service, and how it identifies itself to others."""

NO_SETTINGS = frozenset({"TANDEM_LLAMACPP_LIBRARY", TARGET_VARIABLE, THREADS_VARIABLE})
"""Variables that every service may find: they are of the installation, not of a service."""

Dtype = Literal["float32", "bfloat16", "float16", "int8", "int4"]
Port = Annotated[int, Field(ge=0, le=65535)]
_LARGEST = "Maximum size of a gRPC message, sent or received, in bytes."
MessageBytes = Annotated[
    int,
    Field(
        ge=2**16,
        le=MAX_MESSAGE_BYTES,
        description=_LARGEST,
        json_schema_extra={"group": "Link"},
    ),
]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    BeforeValidator(lambda level: level.lower() if isinstance(level, str) else level),
]


def _share_prefixes(value: object) -> object:
    """Refuse groups that `parse_sharing` does not take."""
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
    """Settings that every service has. Derive from it and add fields; nested models are tables in
    the file and `TANDEM_OUTER__INNER` in the environment."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        validate_default=True,
        allow_inf_nan=False,
    )

    config: Path | None = Field(
        default=None,
        description="TOML file with values for the settings below.",
        json_schema_extra={"group": "Output", "usual": True},
    )
    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address to listen on.",
        json_schema_extra={"group": "Link", "usual": True},
    )
    port: Port = Field(
        default=0,
        description="gRPC port. 0: choose a free port.",
        json_schema_extra={"group": "Link", "usual": True},
    )
    metrics_port: Port = Field(
        default=0,
        description="Port of the Prometheus metrics endpoint. 0: disabled.",
        json_schema_extra={"group": "Output", "usual": True},
    )
    metrics_host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address of the metrics endpoint. It is plain HTTP without authentication.",
        json_schema_extra={"group": "Output"},
    )
    health_port: Port = Field(
        default=0,
        description="Additional port for gRPC health checks only, without TLS and"
        " authentication. 0: disabled.",
        json_schema_extra={"group": "Output"},
    )
    tls_certificate: Path | None = Field(
        default=None,
        description="PEM certificate of this service, used as server and as client.",
        json_schema_extra={"group": "Keys and certificates", "usual": True},
    )
    tls_key: Path | None = Field(
        default=None,
        description="PEM private key of the certificate.",
        json_schema_extra={"group": "Keys and certificates", "usual": True},
    )
    tls_ca: Path | None = Field(
        default=None,
        description="PEM certificates of the authorities that sign the certificates of other"
        " services.",
        json_schema_extra={"group": "Keys and certificates", "usual": True},
    )
    client_certificates: bool = Field(
        default=True,
        description="Require a certificate of `tls_ca` from callers. false: a key is enough, as"
        " for callers of 'tandem join', and `tls_ca` is not used.",
        json_schema_extra={"group": "Keys and certificates"},
    )
    keys_file: Path | None = Field(
        default=None,
        description="File of the API keys that may call this service, one per line: HOLDER"
        " sha256:HEX scopes=SCOPE,… 'tandem keys' writes such lines.",
        json_schema_extra={"group": "Keys and certificates", "usual": True},
    )
    call_key_file: Path | None = Field(
        default=None,
        description="File with the API key that this service sends to the services it calls.",
        json_schema_extra={"group": "Keys and certificates", "usual": True},
    )
    cloud_key_file: Path | None = Field(
        default=None,
        description="At the edge: file with the API key sent to the cloud instead of the one"
        " in `call_key_file`. The cloud sees this key.",
        json_schema_extra={"group": "Keys and certificates"},
    )
    cloud_certificate: Path | None = Field(
        default=None,
        description="At the edge: PEM certificate that the cloud must show, at any address, instead"
        " of one of `tls_ca`. The edge shows it only `cloud_key_file`. 'tandem join' fetches it.",
        json_schema_extra={"group": "Keys and certificates"},
    )
    trace_endpoint: str | None = Field(
        default=None,
        min_length=1,
        description="OTLP collector to send traces to, for example http://127.0.0.1:4317."
        " Requires the extra 'tracing'.",
        json_schema_extra={"group": "Output"},
    )
    trace_sample: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="Fraction of the requests starting at this service that are traced, from"
        " 0 to 1.",
        json_schema_extra={"group": "Output"},
    )
    insecure: bool = Field(
        default=False,
        description="Allow serving and calling without TLS and without keys if none are"
        " configured.",
        json_schema_extra={"group": "Keys and certificates", "usual": True},
    )
    reflection: bool = Field(
        default=False,
        description="Serve gRPC reflection to authorized callers.",
        json_schema_extra={"group": "Keys and certificates"},
    )
    log_level: LogLevel = Field(
        default="info",
        description="Log level: debug, info, warning or error.",
        json_schema_extra={"group": "Output", "usual": True},
    )
    drain_s: float = Field(
        default=10.0,
        ge=0,
        description="Seconds to let open requests finish at shutdown.",
        json_schema_extra={"group": "Output", "usual": True},
    )
    max_message_bytes: MessageBytes = 32 * 2**20
    first_message_s: float = Field(
        default=10.0,
        gt=0,
        le=600,
        description="Close a stream if its first message takes longer than this many seconds.",
        json_schema_extra={"group": "Link"},
    )
    idle_stream_s: float = Field(
        default=60.0,
        ge=5,
        le=3600,
        description="Close a stream if its caller sends nothing, not even a ping, for this"
        " many seconds.",
        json_schema_extra={"group": "Link"},
    )
    quota_sessions: int = Field(
        default=0,
        ge=0,
        description="Maximum open sessions per key holder. 0: a fair share of all sessions. A"
        " line of the keys file can set its own quotas, for example sessions=8.",
        json_schema_extra={"group": "Limits"},
    )
    quota_kv_bytes: int = Field(
        default=0,
        ge=0,
        description="Maximum KV cache of one key holder's sessions, in bytes. 0: a fair share"
        " of the budget.",
        json_schema_extra={"group": "Limits"},
    )
    quota_requests_per_minute: int = Field(
        default=0,
        ge=0,
        description="Maximum requests, calls that take no answer included, per minute and key"
        " holder. 0: unlimited.",
        json_schema_extra={"group": "Limits"},
    )
    quota_tokens_per_minute: int = Field(
        default=0,
        ge=0,
        description="Maximum tokens per minute and key holder. 0: unlimited.",
        json_schema_extra={"group": "Limits"},
    )
    quota_grammar_s_per_minute: int = Field(
        default=10,
        ge=0,
        description="Maximum CPU seconds per minute for one tenant's grammars. Compilation"
        " counts in full; computing a token mask counts beyond its first"
        " millisecond. 0: unlimited.",
        json_schema_extra={"group": "Limits"},
    )
    unread_answer_s: float = Field(
        default=20.0,
        gt=0,
        le=600,
        description="Disconnect a caller that reads nothing for this many seconds.",
        json_schema_extra={"group": "Link"},
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
        """Return the sources in order of precedence, highest first. No .env file is read."""
        return init_settings, env_settings, TomlFile(settings_cls)


class MeasuredSettings(ServiceSettings):
    """Settings of services that can start from measurements of other processes."""

    prometheus: str = Field(
        default="",
        description="URL of a Prometheus server, for example http://prometheus:9090. Estimates"
        " then start from what earlier requests, other edges and other replicas"
        " measured. The server needs the recording rules in deploy/prometheus."
        " Unset: use this process's measurements only.",
        json_schema_extra={"group": "Schedule"},
    )
    prometheus_labels: str = Field(
        default="suite=tandem",
        description="Labels that select this suite's series on that server, for example"
        " suite=tandem,release=prod.",
        json_schema_extra={"group": "Schedule"},
    )
    prometheus_instance: str = Field(
        default="",
        description="Value of the label `instance` of this side's model process on that"
        " server, for example drafter:9100. Unset: the mean over all processes"
        " with the same model.",
        json_schema_extra={"group": "Schedule"},
    )


class ModelSettings(ServiceSettings):
    """Settings of services that run a language model."""

    max_message_bytes: MessageBytes = 16 * 2**20
    engine: str = Field(
        default="auto",
        min_length=1,
        description="Engine that runs the model. auto: llamacpp for a .gguf file, otherwise torch.",
        json_schema_extra={"group": "Model", "usual": True},
    )
    revision: str | None = Field(
        default=None, description="Revision of the hub model.", json_schema_extra={"group": "Model"}
    )
    device: str = Field(
        default="cpu",
        description="Device: cpu, cuda or cuda:N.",
        json_schema_extra={"group": "Model", "usual": True},
    )
    dtype: Dtype = Field(
        default="float32",
        description="Data type of weights and activations. int8 and int4 quantize the weights"
        " only. Engine llamacpp: data type of the KV cache.",
        json_schema_extra={"group": "Model", "usual": True},
    )
    threads: int = Field(
        default=0,
        ge=0,
        le=256,
        description="CPU threads per forward pass. 0: the engine llamacpp uses all cores, or fewer"
        " while others need them; torch uses half of them.",
        json_schema_extra={"group": "Model", "usual": True},
    )
    gpu_layers: int | None = Field(
        default=None,
        ge=0,
        description="Engine llamacpp with device cuda: number of layers on the GPU, counted"
        " from the last. Unset: all.",
        json_schema_extra={"group": "Model"},
    )
    kv_cells: int = Field(
        default=0,
        ge=0,
        le=2**24,
        description="Engine llamacpp: size of the KV cache in tokens, shared by all sessions."
        " 0: as many as fit in 256 MiB.",
        json_schema_extra={"group": "Model"},
    )
    stuck_after_s: float = Field(
        default=1.5,
        gt=0,
        description="Report NOT_SERVING if a forward pass makes no progress for ten times as long"
        " as this engine's passes ever made none, and at least for this many"
        " seconds. Each finished layer counts as progress. Before a pass has ended,"
        " 120 seconds are allowed.",
        json_schema_extra={"group": "Model"},
    )
    prefix_kv_bytes: int = Field(
        default=2**28,
        ge=0,
        description="Maximum size of the prefix cache, in bytes, taken from the part of the"
        " KV budget that sessions leave free. 0: disabled. Engine torch only.",
        json_schema_extra={"group": "Limits"},
    )
    prefix_kv_holder_bytes: int = Field(
        default=0,
        ge=0,
        description="Maximum share of the prefix cache for one key holder with all its"
        " tenants, in bytes. 0: no separate limit.",
        json_schema_extra={"group": "Limits"},
    )
    share_prefixes: SharePrefixes = Field(
        default="",
        description="Groups of callers that share cached prefixes, for example"
        " edge-1,edge-2;edge-3,edge-4 (names of keys; * for all callers). Only"
        " prefixes without a tenant or declared public are shared. Callers in a"
        " group can tell from response times that another one used the same text.",
        json_schema_extra={"group": "Limits"},
    )
    document_kv_budget_bytes: int = Field(
        default=2**29,
        ge=2**20,
        description="Maximum KV cache of all documents together, in bytes.",
        json_schema_extra={"group": "Documents"},
    )
    document_kv_folder: Path | None = Field(
        default=None,
        description="Folder where the KV cache of documents is stored. Unset: memory only.",
        json_schema_extra={"group": "Documents"},
    )
    document_kv_disk_bytes: int = Field(
        default=2**32,
        ge=2**20,
        description="Maximum disk space for the KV cache of documents, in bytes.",
        json_schema_extra={"group": "Documents"},
    )
    reranker: str | None = Field(
        default=None,
        min_length=1,
        description="Folder of a cross-encoder that re-ranks retrieved documents.",
        json_schema_extra={"group": "Model"},
    )


Settings = TypeVar("Settings", bound=ServiceSettings)


class TomlFile(PydanticBaseSettingsSource):
    """The file that a higher source names as `config`; empty when none does."""

    def __call__(self) -> dict[str, Any]:
        path = self.current_state.get("config")
        return {} if path is None else _read_file(Path(path))

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        """Return no value: the base class asks for this method, but nothing uses it."""
        return None, field_name, False


def _read_file(path: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"{path}: is not a TOML file: {error}") from None
    if "config" in table:
        raise SettingsError(f"{path}: config: cannot be set in a settings file")
    return table


def parse_flags(model: type[ServiceSettings], arguments: Sequence[str]) -> dict[str, Any]:
    """Return what a command line says, by the names of fields; their values are not checked yet. A
    switch alone means true. Raises SettingsError."""
    switches = {
        flag_of(name) for name, field in model.model_fields.items() if field.annotation is bool
    }
    given = []
    for word, following in pairwise([*arguments, "--"]):
        given.append(word)
        if word in switches and following.startswith("--"):
            given.append("true")
    try:
        source: CliSettingsSource[Any] = CliSettingsSource(
            model,
            cli_parse_args=given,
            cli_prog_name=f"python -m {model.__module__.rsplit('.', 1)[0]}",
            cli_kebab_case=True,
            cli_hide_none_type=True,
            cli_show_env_vars=True,
            cli_exit_on_error=False,
        )
        return source()
    except SourceError as error:
        why = str(error).removeprefix("error parsing CLI: ")
        raise SettingsError(f"{why}; --help lists the flags") from None


def load_settings(
    model: type[Settings], flags: Mapping[str, object], also_known: Collection[str] = ()
) -> Settings:
    """Return the settings of one service, checked. Raises SettingsError. `flags` maps field names
    to what the command line gave; None means not given. `also_known` names `TANDEM_*` variables of
    other programs; any other unknown one is refused, so that a misspelt one is noticed."""
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
    """Return the environment variable that sets `field`."""
    return f"{ENVIRONMENT_PREFIX}{field}".upper()


def flag_of(field: str) -> str:
    """Return the flag that sets `field`."""
    return "--" + field.replace("_", "-")


def _refuse_unknown_variables(model: type[ServiceSettings], also_known: Collection[str]) -> None:
    known = {variable_of(name) for name in model.model_fields} | NO_SETTINGS
    known |= {name.upper() for name in also_known}
    for variable, text in sorted(os.environ.items()):
        name = variable.upper()
        if not name.startswith(ENVIRONMENT_PREFIX) or name.split("__")[0] in known:
            continue
        if not _is_service_link(name, text):
            raise SettingsError(f"{variable}: is not a setting of this service")


def _is_service_link(name: str, text: str) -> bool:
    """Return whether Kubernetes made the variable: it tells every container of a namespace about a
    service called tandem-… in this way."""
    return "://" in text or re.search(r"_SERVICE_(HOST|PORT)|_PORT_\d+_(TCP|UDP)", name) is not None


def _one_line(
    model: type[ServiceSettings], given: Mapping[str, object], problem: ErrorDetails
) -> str:
    """Return one problem as a line: where the bad value came from, what it must be, what it was."""
    field, *inner = [str(part) for part in problem["loc"]] or [""]
    described = model.model_fields.get(field)
    secret = described is not None and "Secret" in str(described.annotation)
    return f"{_origin(model, given, field, inner)}: {_demand(problem, secret)}"


def _origin(
    model: type[ServiceSettings], given: Mapping[str, object], field: str, inner: list[str]
) -> str:
    """Return the flag, variable or file key that set `field`; if none did, the variable that
    could."""
    if field in given:
        return ".".join([flag_of(field), *inner])
    path = given.get("config") or os.environ.get(CONFIG_VARIABLE)
    if field in model.model_fields:
        nested = "__".join([variable_of(field), *(part.upper() for part in inner)])
        for variable in (nested, variable_of(field)):
            if path is None or variable in {name.upper() for name in os.environ}:
                return variable
    return f"{path}: {'.'.join([field, *inner])}"


def _demand(problem: ErrorDetails, secret: bool) -> str:
    """Return pydantic's words in this project's form: "must be …, got …", on one line."""
    if problem["type"] == "extra_forbidden":
        return "is not a setting of this service"
    if problem["type"] == "missing":
        return "must be set"
    words = problem["msg"].removeprefix("Value error, ").replace("Input should", "must")
    words = words.split(", unable to parse")[0]
    shown = problem["input"]
    hidden = secret or not isinstance(shown, str | int | float)
    return words if hidden else f"{words}, got {str(shown)[:80]!r}"


def _source_line(error: SourceError) -> str:
    """Return what is wrong with a source: pydantic-settings names the field whose variable is not
    the JSON that its type asks for."""
    match = re.search(r'field "(\w+)"', str(error))
    return str(error) if match is None else f"{variable_of(match.group(1))}: must be valid JSON"
