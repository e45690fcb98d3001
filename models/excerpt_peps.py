"""Make `peps-excerpt.jsonl.gz`, the PEPs that benchmarks use by default, from a file of all PEPs:

    python models/excerpt_peps.py --peps peps.jsonl

JSON lines with `id`, `title` and `text`: held-out PEPs whole, of every other one the beginning. The
same input gives the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from lab.training.demo_pair.corpus import NOT_EXCERPTED, is_held_out, load_peps  # noqa: E402

EXCERPT_CHARACTERS = 4000


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peps", type=Path, required=True, help="JSON lines: id, title, text")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "models" / "peps-excerpt.jsonl.gz")
    options = parser.parse_args(arguments)
    try:
        peps = [(pep.id, pep.title, pep.text) for pep in load_peps(options.peps)]
    except (OSError, ValueError, KeyError) as error:
        sys.stderr.write(f"error: --peps: {options.peps}: {error}\n")
        return 1
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in excerpts(peps))
    options.out.write_bytes(gzip.compress(lines.encode(), mtime=0))
    return 0


def excerpts(peps: Iterable[tuple[str, str, str]]) -> Iterator[dict[str, str]]:
    """Records to write, of (id, title, text)."""
    for pep_id, title, text in peps:
        if pep_id not in NOT_EXCERPTED:
            kept = text if is_held_out(pep_id) else text[:EXCERPT_CHARACTERS]
            yield {"id": pep_id, "title": title, "text": kept}


if __name__ == "__main__":
    sys.exit(main())
