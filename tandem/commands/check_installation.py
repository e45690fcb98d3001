"""Checks of Python, the packages, the generated protobuf code, and this machine's network. Packages
are imported inside a check, so that a missing one is reported and not fatal. What belongs to an
extra is bad only where `tandem up` and `tandem generate` cannot do without it; the others are
listed. So is PyTorch where llama.cpp is there to compute: a model that wants it says so."""

import os
import socket
import sys
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pkgutil import walk_packages

from tandem.commands.checks import Check, check
from tandem.core.errors import TandemError
from tandem.core.extras import PACKAGES

PYTHON_FROM = (3, 11)
PYTHON_BELOW = (3, 14)
INSTALL = "install Tandem again ('make setup', or pip install 'tandem-edge[engine]')"
GENERATE = "run 'make proto'"


def installation_checks() -> list[Check]:
    """Check everything that needs neither a model nor a running suite."""
    checks = [
        check("python", _python, "use Python 3.11 to 3.13"),
        *(check(name, partial(_package, name), INSTALL) for name in _packages()),
    ]
    if find_spec("torch") is not None:
        checks.append(check("torch threads", _threads, "set OMP_NUM_THREADS=1"))
    return [
        *checks,
        check("extras", _extras, ""),
        check("protobuf code", _generated, GENERATE),
        check("port", _port, "allow this process to listen on 127.0.0.1"),
    ]


_PYTORCH = ("torch", "transformers", "safetensors", "tokenizers")
_LLAMACPP = "xllamacpp"
_PACKAGES = ("jinja2", "fastapi", "uvicorn", "grpc", "uvloop", "numpy")
_DISTRIBUTIONS = {"grpc": "grpcio"}


def _packages() -> tuple[str, ...]:
    """Return what answering needs: an engine, and what is around it. Of the two engines one is
    enough; both are looked at where they are."""
    has_llamacpp = find_spec(_LLAMACPP) is not None
    pytorch = _PYTORCH if find_spec("torch") is not None or not has_llamacpp else ()
    return (*pytorch, *((_LLAMACPP,) if has_llamacpp else ()), *_PACKAGES)


def _python() -> str:
    version = ".".join(map(str, sys.version_info[:3]))
    if not PYTHON_FROM <= sys.version_info[:2] < PYTHON_BELOW:
        raise TandemError(version)
    return version


def _package(name: str) -> str:
    import_module(name)
    return version(_DISTRIBUTIONS.get(name, name))


def _extras() -> str:
    """Return which extras are completely installed and which are not; none is needed for
    everything."""
    there, absent = list[str](), list[str]()
    for extra, packages in PACKAGES.items():
        (there if all(map(_is_there, packages)) else absent).append(extra)
    words = ", ".join(there) or "none"
    return f"{words}; not installed: {', '.join(absent)}" if absent else words


def _is_there(package: str) -> bool:
    try:
        return find_spec(_TELLING.get(package, package)) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


_TELLING = {"opentelemetry": "opentelemetry.sdk"}
"""The part by which a package is known, where others bring another part: FastAPI the API alone."""


def _threads() -> str:
    """Return how many threads torch uses, of how many cores. Raises TandemError if there are more
    threads than cores, which makes small models many times slower."""
    threads = import_module("torch").get_num_threads()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    words = f"{threads} of {cores} cores"
    if threads > (cores or 1):
        raise TandemError(words)
    return words


def _generated() -> str:
    """Import the generated code, and return how many modules it has. This also finds a gRPC or
    protobuf library that is older than the code."""
    package = import_module("tandem_api")
    walked = walk_packages(package.__path__, "tandem_api.")
    modules = [module.name for module in walked if not module.ispkg]
    for name in modules:
        import_module(name)
    if not modules:
        raise TandemError("tandem_api is empty")
    return f"{len(modules)} modules"


def _port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"127.0.0.1:{listening.getsockname()[1]} can be listened on"
