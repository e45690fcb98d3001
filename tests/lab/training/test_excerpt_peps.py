"""The excerpt of PEPs, as committed and as made."""

import gzip
import json
from pathlib import Path

from models import excerpt_peps

PUBLISHED = Path(excerpt_peps.__file__).parent / "peps-excerpt.jsonl.gz"


def test_the_published_excerpt_is_one() -> None:
    assert PUBLISHED.stat().st_size <= 1_500_000
    records = [json.loads(line) for line in gzip.decompress(PUBLISHED.read_bytes()).splitlines()]
    pieces = [(record["id"], record["title"], record["text"]) for record in records]
    assert list(excerpt_peps.excerpts(pieces)) == records
    assert len(records) > 600
