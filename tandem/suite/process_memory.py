"""Memory that processes take, by the kernel's own count."""

from pathlib import Path

from tandem.core.errors import TandemError


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
