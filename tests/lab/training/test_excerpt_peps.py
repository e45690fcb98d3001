"""The excerpt of PEPs, as committed and as made."""

import gzip
import json
from pathlib import Path

from lab.training.demo_pair.corpus import NOT_EXCERPTED, is_held_out
from models import excerpt_peps

PUBLISHED = Path(excerpt_peps.__file__).parent / "peps-excerpt.jsonl.gz"


def test_held_out_peps_are_whole_and_others_cut(tmp_path: Path) -> None:
    numbers = [f"pep-{number:04}" for number in range(300)]
    held = next(name for name in numbers if is_held_out(name))
    other = next(name for name in numbers if not is_held_out(name))
    (dropped,) = NOT_EXCERPTED
    text = "word " * 2000 + "end"
    source, out = tmp_path / "peps.jsonl", tmp_path / "excerpt.jsonl.gz"
    records = [{"id": name, "title": "T", "text": text} for name in (held, other, dropped)]
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    arguments = ["--peps", str(source), "--out", str(out)]
    assert excerpt_peps.main(arguments) == 0
    first = out.read_bytes()
    assert excerpt_peps.main(arguments) == 0
    assert out.read_bytes() == first
    kept = [json.loads(line) for line in gzip.decompress(first).decode().splitlines()]
    assert kept == [
        {"id": held, "title": "T", "text": text},
        {"id": other, "title": "T", "text": text[: excerpt_peps.EXCERPT_CHARACTERS]},
    ]
    assert excerpt_peps.main(["--peps", str(tmp_path / "none"), "--out", str(out)]) == 1


def test_the_published_excerpt_is_one() -> None:
    assert PUBLISHED.stat().st_size <= 1_500_000
    records = [json.loads(line) for line in gzip.decompress(PUBLISHED.read_bytes()).splitlines()]
    pieces = [(record["id"], record["title"], record["text"]) for record in records]
    assert list(excerpt_peps.excerpts(pieces)) == records
    assert len(records) > 600
