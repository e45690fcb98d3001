"""`python -m tools.durations`: write which test files take longest, for their order.

The reports are those of pytest's `--junitxml`, as `.ci/run` leaves them in `.pytest_cache/`.
"""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

DURATIONS = Path(__file__).resolve().parents[1] / "tests" / "durations.json"
LEAST_S = 3.0
"""What takes less may begin at any time."""


def longest_files(reports: Iterable[Path], root: Path) -> dict[str, int]:
    """Seconds of each test file that takes some, the longest first."""
    seconds = defaultdict[str, float](float)
    for report in reports:
        for case in xml.etree.ElementTree.parse(report).iter("testcase"):
            file = f"{case.attrib['classname'].replace('.', '/')}.py"
            seconds[file] += float(case.attrib["time"])
    long = [name for name, took_s in seconds.items() if took_s >= LEAST_S]
    return {
        name: round(seconds[name])
        for name in sorted(long, key=lambda name: -seconds[name])
        if (root / name).is_file()
    }


if __name__ == "__main__":
    root = DURATIONS.parents[1]
    reports = sorted((root / ".pytest_cache").glob("test*.xml"))
    if not reports:
        sys.exit(".pytest_cache/ has no report: run .ci/run first")
    files = longest_files(reports, root)
    DURATIONS.write_text(json.dumps(files, indent=2) + "\n", encoding="utf-8")
