"""`tandem doctor --memory`: what a pair of models takes, as services of this machine."""

from functools import partial
from pathlib import Path
from typing import Any

from tandem.backends.model_source import ModelChoice
from tandem.commands.ask_suite import ask
from tandem.commands.checks import Check, check
from tandem.core.errors import TandemError
from tandem.generation.request import GenerationRequest
from tandem.net.process import run_loop
from tandem.specdec.messages import GenerationParams
from tandem.suite.local_processes import LocalSuite, LocalSuiteSettings
from tandem.suite.models import choose_pair
from tandem.suite.requirements import require_packages

REMEDY = "give models that load, on Linux"
PROMPT = "The old lighthouse keeper wrote in his journal every evening. " * 20
MAX_TOKENS = 64
TIMEOUT_S = 600.0


def memory_checks(options: dict[str, Any]) -> list[Check]:
    """Check that the pair of doctor's `options` runs, and say what it takes."""
    return [check("memory", partial(_measure, options), REMEDY)]


def _measure(options: dict[str, Any]) -> str:
    draft, target = choose_pair(options)
    require_packages(draft, target)
    sizes: dict[str, int] = run_loop(_services(LocalSuiteSettings(draft=draft, target=target)))
    each = ", ".join(f"{name} {_megabytes(size)}" for name, size in sizes.items())
    disk = sum(map(_bytes_on_disk, (draft, target)))
    return (
        f"{_megabytes(sum(sizes.values()))} together: {each}; models on disk {_megabytes(disk)}"
        f" (proportional set sizes after an answer of {MAX_TOKENS} tokens)"
    )


async def _services(settings: LocalSuiteSettings) -> dict[str, int]:
    """Return the bytes of each service, after an answer that makes it touch what it uses."""
    params = GenerationParams(max_tokens=MAX_TOKENS, ignore_eos=True)
    async with LocalSuite(settings) as suite:
        await ask(suite.endpoint, GenerationRequest(PROMPT, params=params), TIMEOUT_S)
        return {name: proportional_set_bytes(child.pid) for name, child in suite.children.items()}


def proportional_set_bytes(pid: int) -> int:
    """Return the proportional set size of a process: its own pages, and its share of those that
    several processes use, as of libraries and mapped files. The sums of processes can be added up,
    which those of resident sets cannot. Linux only; raises TandemError elsewhere."""
    path = Path(f"/proc/{pid}/smaps_rollup")
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except FileNotFoundError as error:
        raise TandemError(f"{path} does not exist; memory can be measured on Linux only") from error
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("Pss:"))
    return int(kilobytes) * 1024


def _bytes_on_disk(choice: ModelChoice) -> int:
    """Return the size of a model's files in bytes; zero for a model of the hub, wherever its cache
    is."""
    path = Path(choice.source)
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"
