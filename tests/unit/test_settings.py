"""Settings: precedence, checks, and errors that name what to change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from tandem.backends.llamacpp.library import LIBRARY_VARIABLE
from tandem.settings import ServiceSettings, SettingsError, load_settings, parse_flags


class LinkSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    rtt_s: float = Field(default=0.0, ge=0)


class ExampleSettings(ServiceSettings):
    target: str
    draft_length: int = Field(default=4, ge=1, le=64)
    peers: list[str] = Field(default_factory=list)
    link: LinkSettings = LinkSettings()
    sampled: bool = True
    folder: Path | None = None
    api_key: SecretStr = Field(default=SecretStr("long enough"), min_length=8)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("TANDEM_"):
            monkeypatch.delenv(name)


def written(folder: Path, text: str) -> str:
    path = folder / "tandem.toml"
    path.write_text(text)
    return str(path)


def refusal(flags: dict[str, object]) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(ExampleSettings, flags)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_defaults_of_every_service() -> None:
    settings = load_settings(ServiceSettings, {})
    assert settings.host == "127.0.0.1"
    assert settings.port == 0
    assert settings.metrics_port == 0
    assert settings.log_level == "info"
    assert settings.drain_s == 10.0
    assert settings.max_message_bytes == 32 * 2**20


def test_flags_beat_environment_beats_file_beats_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = written(tmp_path, 'target = "file"\nport = 1\nmetrics_port = 1\ndrain_s = 1\n')
    monkeypatch.setenv("TANDEM_PORT", "2")
    monkeypatch.setenv("TANDEM_METRICS_PORT", "2")
    settings = load_settings(
        ExampleSettings, {"config": config, "metrics_port": 3, "host": None, "drain_s": None}
    )
    assert settings.target == "file"
    assert (settings.drain_s, settings.port, settings.metrics_port) == (1.0, 2, 3)
    assert settings.draft_length == 4
    assert settings.host == "127.0.0.1"


def test_the_file_may_be_named_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_CONFIG", written(tmp_path, 'target = "a"\nlog_level = "DEBUG"\n'))
    settings = load_settings(ExampleSettings, {})
    assert settings.target == "a"
    assert settings.log_level == "debug"


def test_nested_settings_merge_over_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = written(tmp_path, 'target = "a"\npeers = ["x:1"]\n[link]\nrtt_s = 0.1\n')
    assert load_settings(ExampleSettings, {"config": config}).link.rtt_s == 0.1
    monkeypatch.setenv("TANDEM_LINK__RTT_S", "0.2")
    monkeypatch.setenv("TANDEM_PEERS", '["y:1", "z:2"]')
    settings = load_settings(ExampleSettings, {"config": config})
    assert settings.link.rtt_s == 0.2
    assert settings.peers == ["y:1", "z:2"]


def test_settings_are_frozen() -> None:
    settings = load_settings(ServiceSettings, {})
    with pytest.raises(ValidationError):
        settings.port = 1


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("TANDEM_PORT", "abc", "TANDEM_PORT: must be a valid integer, got 'abc'"),
        ("TANDEM_PORT", "70000", "TANDEM_PORT: must be less than or equal to 65535, got '70000'"),
        ("TANDEM_DRAIN_S", "-1", "TANDEM_DRAIN_S: must be greater than or equal to 0, got '-1'"),
        ("TANDEM_DRAIN_S", "inf", "TANDEM_DRAIN_S: must be a finite number, got 'inf'"),
        (
            "TANDEM_LOG_LEVEL",
            "loud",
            "TANDEM_LOG_LEVEL: must be 'debug', 'info', 'warning' or 'error', got 'loud'",
        ),
        (
            "TANDEM_MAX_MESSAGE_BYTES",
            "1",
            "TANDEM_MAX_MESSAGE_BYTES: must be greater than or equal to 65536, got '1'",
        ),
        ("TANDEM_PEERS", "x:1", "TANDEM_PEERS: must be valid JSON"),
        (
            "TANDEM_LINK__RTT_S",
            "-1",
            "TANDEM_LINK__RTT_S: must be greater than or equal to 0, got '-1'",
        ),
        ("TANDEM_PROT", "1", "TANDEM_PROT: is not a setting of this service"),
        ("TANDEM_LINK__RTT", "1", "TANDEM_LINK__RTT: is not a setting of this service"),
    ],
)
def test_a_bad_variable_is_named(
    variable: str, text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    assert refusal({"target": "a"}) == message


def test_a_missing_setting_names_its_variable(tmp_path: Path) -> None:
    assert refusal({}) == "TANDEM_TARGET: must be set"


def test_a_bad_flag_is_named() -> None:
    message = refusal({"target": "a", "draft_length": 0})
    assert message == "--draft-length: must be greater than or equal to 1, got '0'"
    assert refusal({"target": "a", "speed": 1}) == "--speed: is not a setting of this service"


def test_a_bad_file_key_is_named(tmp_path: Path) -> None:
    config = written(tmp_path, 'target = "a"\nport = -1\nprot = 5\n')
    message = refusal({"config": config})
    assert f"{config}: port: must be greater than or equal to 0, got '-1'" in message
    assert f"{config}: prot: is not a setting of this service" in message


def test_a_file_cannot_name_another(tmp_path: Path) -> None:
    assert "config" in refusal({"config": written(tmp_path, 'config = "other.toml"\n')})


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.toml")
    assert refusal({"config": missing}).startswith(f"{missing}: cannot be read: ")
    broken = written(tmp_path, "port = = 1")
    assert refusal({"config": broken}).startswith(f"{broken}: is not a TOML file: ")


def test_a_secret_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_API_KEY", "s3cret")
    message = refusal({"target": "a"})
    assert message.startswith("TANDEM_API_KEY: ")
    assert "s3cret" not in message


def test_a_wrong_message_is_shown_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_PORT", "9" * 3000 + "x\n")
    assert len(refusal({"target": "a"})) < 200


def test_variables_of_others_can_be_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_WINDOW", "8")
    with pytest.raises(SettingsError, match=r"^TANDEM_WINDOW: is not a setting"):
        load_settings(ServiceSettings, {})
    load_settings(ServiceSettings, {}, also_known=["TANDEM_WINDOW"])


def test_a_variable_of_the_installation_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIBRARY_VARIABLE, "/opt/llama.cpp/libllama.so")
    load_settings(ServiceSettings, {})


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("TANDEM_VERIFIER_PORT", "tcp://10.0.0.1:50051"),
        ("TANDEM_VERIFIER_SERVICE_HOST", "10.0.0.1"),
        ("TANDEM_VERIFIER_SERVICE_PORT_GRPC", "50051"),
        ("TANDEM_VERIFIER_PORT_50051_TCP_ADDR", "10.0.0.1"),
    ],
)
def test_kubernetes_service_links_are_not_ours(
    variable: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    load_settings(ServiceSettings, {})


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ([], {}),
        (["--target", "a", "--draft-length", "5"], {"target": "a", "draft_length": 5}),
        (["--target=a", "--port=-0"], {"target": "a", "port": 0}),
        (["--target", "a", "--target", "b"], {"target": "b"}),
        (["--insecure", "--target", "a"], {"insecure": True, "target": "a"}),
        (["--target", "a", "--insecure"], {"insecure": True, "target": "a"}),
        (["--sampled", "false", "--insecure", "true"], {"sampled": False, "insecure": True}),
        (["--sampled=false"], {"sampled": False}),
        (["--log-level", "DEBUG"], {"log_level": "debug"}),
        (["--target", "a", "--folder", ""], {"target": "a", "folder": Path(".")}),
        (["--target", "[1,2]"], {"target": "[1,2]"}),
        (["--target", "a,b", "--folder", "x y"], {"target": "a,b", "folder": Path("x y")}),
    ],
)
def test_flags_set_what_they_name(arguments: list[str], found: dict[str, object]) -> None:
    flags = {"target": "t"} | parse_flags(ExampleSettings, arguments)
    settings = load_settings(ExampleSettings, flags)
    given = {name: getattr(settings, name) for name in settings.model_fields_set}
    assert given == {"target": "t"} | found


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--verifire", "a:1"], "unrecognized arguments: --verifire a:1"),
        (["--targ", "a"], "unrecognized arguments: --targ a"),
        (["stray"], "unrecognized arguments: stray"),
        (["--port"], "--port: expected one argument"),
        (["--sampled", "maybe"], "--sampled: must be a valid boolean"),
        (["--port", "none"], "--port: must be a valid integer, got 'none'"),
        (["--port", "-1"], "--port: must be greater than or equal to 0, got '-1'"),
    ],
)
def test_a_flag_that_cannot_be_used_is_named_on_one_line(arguments: list[str], words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(ExampleSettings, {"target": "t"} | parse_flags(ExampleSettings, arguments))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_help_names_flags_variables_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_flags(ExampleSettings, ["--help"])
    assert ended.value.code == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "--metrics-port" in words
    assert "TANDEM_METRICS_PORT" in words
    assert "default: 127.0.0.1" in words
