"""The protobuf generator: what it makes, removes, and leaves alone when it fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.build_protos import ProtoBuildError, build, main

COMMON = """
syntax = "proto3";
package tandem_api.common.v1;
message Tokens { repeated uint32 ids = 1; }
"""
ECHO = """
syntax = "proto3";
package tandem_api.echo.v1;
import "tandem_api/common/v1/common.proto";
service EchoService { rpc Echo(stream EchoRequest) returns (stream EchoResponse); }
message EchoRequest { tandem_api.common.v1.Tokens tokens = 1; }
message EchoResponse { tandem_api.common.v1.Tokens tokens = 1; }
"""
ROUND_TRIP = """
from tandem_api.common.v1 import common_pb2
from tandem_api.echo.v1 import echo_pb2, echo_pb2_grpc
raw = echo_pb2.EchoRequest(tokens=common_pb2.Tokens(ids=[7, 300000])).SerializeToString()
print(list(echo_pb2.EchoRequest.FromString(raw).tokens.ids), echo_pb2_grpc.EchoServiceStub.__name__)
"""


@pytest.fixture
def protos(tmp_path: Path) -> Path:
    for service, text in (("common", COMMON), ("echo", ECHO)):
        folder = tmp_path / "protos" / "tandem_api" / service / "v1"
        folder.mkdir(parents=True)
        (folder / f"{service}.proto").write_text(text)
    return tmp_path / "protos"


def test_generated_code_works_and_is_typed(protos: Path, tmp_path: Path) -> None:
    out = tmp_path / "gen"
    modules = build(protos, out)
    assert [module.name for module in modules] == ["common_pb2.py", "echo_pb2.py"]
    finished = subprocess.run(
        [sys.executable, "-c", ROUND_TRIP],
        capture_output=True,
        text=True,
        check=True,
        # Instead of the environment's own tandem_api.
        env={"PYTHONPATH": str(out)},
        cwd=tmp_path,
    )
    assert finished.stdout == "[7, 300000] EchoServiceStub\n"
    echo = out / "tandem_api" / "echo" / "v1"
    assert "class EchoRequest" in (echo / "echo_pb2.pyi").read_text()
    assert "aio.Channel" in (echo / "echo_pb2_grpc.pyi").read_text()
    assert (out / "tandem_api" / "py.typed").exists()


def test_a_removed_file_leaves_no_module(protos: Path, tmp_path: Path) -> None:
    out = tmp_path / "gen"
    build(protos, out)
    (protos / "tandem_api" / "echo" / "v1" / "echo.proto").unlink()
    build(protos, out)
    assert [path.name for path in out.iterdir()] == ["tandem_api"]
    assert not (out / "tandem_api" / "echo").exists()
    assert (out / "tandem_api" / "common" / "v1" / "common_pb2.py").exists()


def test_a_failure_leaves_the_former_output(
    protos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "gen"
    build(protos, out)
    (protos / "tandem_api" / "echo" / "v1" / "echo.proto").write_text("message {")
    assert main(["--protos", str(protos), "--out", str(out)]) == 1
    assert "echo.proto" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == ["tandem_api"]
    assert (out / "tandem_api" / "echo" / "v1" / "echo_pb2.py").exists()


def test_a_file_outside_the_package_is_refused(protos: Path, tmp_path: Path) -> None:
    (protos / "stray.proto").write_text(COMMON)
    with pytest.raises(ProtoBuildError, match=r"outside the package folder .*stray\.proto"):
        build(protos, tmp_path / "gen")


def test_nothing_to_generate_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ProtoBuildError, match=r"no \.proto file"):
        build(tmp_path, tmp_path / "gen")
