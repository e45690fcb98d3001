"""Generate the Python package `tandem_api` from `protos/` into `gen/`.

Run as `python tools/build_protos.py [--protos DIR] [--out DIR]`; `make proto` and the wheel build
both do. Invariant: the output folder holds exactly what the present .proto files say (it is built
aside and swapped in, so a removed or renamed file leaves no stale module), and a failed run leaves
the former output as it was. Imports the standard library and grpcio-tools only.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = "tandem_api"


class ProtoBuildError(Exception):
    """Nothing to generate from, a missing plugin, or protoc's own complaint."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Generate; print one line; return the exit status."""
    parser = argparse.ArgumentParser(description="Generate tandem_api from the .proto files.")
    parser.add_argument("--protos", type=Path, default=REPOSITORY / "protos")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "gen")
    options = parser.parse_args(arguments)
    try:
        modules = build(options.protos, options.out)
    except ProtoBuildError as error:
        print(f"build_protos: {error}", file=sys.stderr)
        return 1
    print(f"build_protos: {len(modules)} modules in {options.out / PACKAGE}")
    return 0


def build(proto_root: Path, out: Path) -> list[Path]:
    """Generate messages, service stubs and type stubs; return the `*_pb2.py` files, sorted."""
    sources = sorted(path.relative_to(proto_root) for path in proto_root.rglob("*.proto"))
    if not sources:
        raise ProtoBuildError(f"no .proto file under {proto_root}")
    strays = [str(source) for source in sources if source.parts[0] != PACKAGE]
    if strays:
        raise ProtoBuildError(f"outside the package folder {PACKAGE}/: {', '.join(strays)}")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".building-") as scratch:
        fresh = Path(scratch)
        _run_protoc(proto_root.resolve(), sources, fresh)
        _make_packages(fresh / PACKAGE)
        _swap_in(fresh / PACKAGE, out / PACKAGE, fresh / "former")
    return sorted((out / PACKAGE).rglob("*_pb2.py"))


def _run_protoc(proto_root: Path, sources: Sequence[Path], target: Path) -> None:
    command = [
        sys.executable,
        "-P",
        "-m",
        "grpc_tools.protoc",
        f"--proto_path={proto_root}",
        f"--plugin=protoc-gen-mypy={_plugin('protoc-gen-mypy')}",
        f"--plugin=protoc-gen-mypy_grpc={_plugin('protoc-gen-mypy_grpc')}",
        f"--python_out={target}",
        f"--grpc_python_out={target}",
        f"--mypy_out=quiet:{target}",
        f"--mypy_grpc_out=quiet:{target}",
        *map(str, sources),
    ]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise ProtoBuildError(f"protoc failed:\n{finished.stderr.strip()}")


def _plugin(name: str) -> Path:
    """The protoc plugin beside this interpreter, or on PATH (an isolated wheel build)."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which(name, path=os.pathsep.join([beside, os.environ.get("PATH", "")]))
    if found is None:
        raise ProtoBuildError(f"{name} not found: install mypy-protobuf, or run `make setup`")
    return Path(found)


def _make_packages(root: Path) -> None:
    """Regular packages, marked as typed: namespace packages would merge with strangers."""
    for folder in [root, *(path for path in root.rglob("*") if path.is_dir())]:
        (folder / "__init__.py").touch()
    (root / "py.typed").touch()


def _swap_in(fresh: Path, final: Path, former: Path) -> None:
    if final.exists():
        final.rename(former)
    fresh.rename(final)


if __name__ == "__main__":
    sys.exit(main())
