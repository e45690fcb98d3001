"""Coverage-guided fuzzing of every decoder, each for some seconds (needs the extra `fuzz`).

    python -m tests.fuzz.run --seconds 30 [TARGET …]

A target starts from its files in `corpus/`; what it finds new goes to `build/fuzz/TARGET`, and an
input that crashes it, or takes 10 s or 2 GB, to `build/fuzz/crash-TARGET-*`. Such an input belongs,
once mended, into the corpus, which `make test` replays.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
BUILD = Path("build") / "fuzz"
SLOWEST_S = 10
MOST_MB = 2048
LONGEST = 4096
ALONE = "--alone"
"""One target, in this process; libFuzzer ends it."""
PARSERS = {
    "extract_pdf": "pypdf",
    "extract_xlsx": "openpyxl",
    "image_file": "PIL",
}
"""Libraries whose own branches guide a target."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz every decoder in turn.")
    parser.add_argument("targets", nargs="*", help="only these")
    parser.add_argument("--seconds", type=int, default=30, help="for each target")
    if sys.argv[1:2] == [ALONE]:
        _fuzz(sys.argv[2], sys.argv[3:])
    asked = parser.parse_args()
    import tests.fuzz.targets as known

    names = asked.targets or list(known.TARGETS)
    if unknown := sorted(set(names) - known.TARGETS.keys()):
        parser.error(f"no target {unknown[0]}; there are {', '.join(known.TARGETS)}")
    return max(_run(name, asked.seconds) for name in names)


def _run(name: str, seconds: int) -> int:
    """One target in a process of its own; what libFuzzer says, on one line."""
    found = BUILD / name
    found.mkdir(parents=True, exist_ok=True)
    limits = (
        f"-max_total_time={seconds}",
        f"-timeout={SLOWEST_S}",
        f"-rss_limit_mb={MOST_MB}",
        f"-max_len={LONGEST}",
        f"-artifact_prefix={BUILD}/crash-{name}-",
    )
    program = (sys.executable, "-m", "tests.fuzz.run", ALONE, name)
    folders = [str(folder) for folder in (found, CORPUS / name) if folder.exists()]
    ended = subprocess.run([*program, *limits, *folders], capture_output=True, text=True)
    log = ended.stderr
    (BUILD / f"{name}.log").write_text(ended.stdout + log)
    runs = re.findall(r"^#(\d+)", log, re.MULTILINE)
    coverage = re.findall(r"cov: (\d+)", log)
    verdict = "ok" if ended.returncode == 0 else f"FAILED, see {BUILD}/{name}.log"
    executed = f"{max(map(int, runs), default=0):>9} runs"
    print(f"{name:<22}{executed}  {(coverage or ['?'])[-1]:>6} branches  {verdict}", flush=True)
    return ended.returncode != 0


def _fuzz(name: str, arguments: list[str]) -> None:
    """Never returns."""
    atheris = import_module("atheris")  # not there where nobody fuzzes
    parsers = [PARSERS[name]] if name in PARSERS else []
    with atheris.instrument_imports(include=["tandem", *parsers]):
        import tests.fuzz.targets as known

        for parser in parsers:  # which extraction imports only when it needs them
            import_module(parser)
    known.TARGETS[name](b"")  # what it loads once takes longer than an input may
    atheris.Setup([sys.argv[0], *arguments], known.TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
