"""A writer to kill: changes an index in a known order and says which changes are durable.

    python -m tests.lab.killed_writer FOLDER SEED    # prints the number of changes done

Invariant: change number k is a function of (seed, k), so what a folder must hold after n changes
can be computed without it.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from tandem.core.errors import TandemError
from tandem.index.chunking import Chunking
from tandem.index.document_index import DocumentIndex
from tandem.index.records import Document

IDS = 12
COMPACTED_EVERY = 7


class Lost(TandemError):
    """A change that was acknowledged is not there, or something else is."""


def change(seed: int, number: int) -> tuple[list[Document], list[str]]:
    """Return the documents to add or update, and the ids to remove, of one change."""
    source = random.Random(f"{seed} {number}")
    if number % 5 == 4:
        return [], [f"d{source.randrange(IDS)}"]
    size = source.choice((5, 60, 400))
    documents = []
    for name in source.sample(range(IDS), source.randint(1, 3)):
        words = " ".join(f"w{source.randrange(500)}" for _ in range(size))
        documents.append(Document(f"d{name}", words))
    return documents, []


def expected(seed: int, changes: int) -> dict[str, str]:
    """Return the text of every id after that many changes."""
    texts: dict[str, str] = {}
    for number in range(changes):
        documents, removed = change(seed, number)
        texts |= {document.id: document.text for document in documents}
        for name in removed:
            texts.pop(name, None)
    return texts


def kill_trial(folder: Path, seed: int, after: int) -> int:
    """Kill a writer once it has acknowledged `after` changes, and return how many it had
    acknowledged when it died. Raises Lost if the folder then holds anything else, or if the writer
    ended by itself."""
    writer = subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, str(folder), str(seed)],
        stdout=subprocess.PIPE,
        text=True,
    )
    with writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(after)]
        writer.send_signal(signal.SIGKILL)
        lines += writer.stdout.readlines()
    acknowledged = sum(1 for line in lines if line.endswith("\n"))
    if acknowledged < after:
        raise Lost(f"the writer ended by itself after {acknowledged} changes")
    with closing(_opened(folder)) as index:
        held = index.texts()
    # The change under way may be whole, as it may have become durable before it was acknowledged.
    if held not in (expected(seed, acknowledged), expected(seed, acknowledged + 1)):
        raise Lost(f"seed {seed}: the folder does not hold {acknowledged} changes")
    return acknowledged


def write(folder: Path, seed: int) -> None:
    """Make changes until killed, and compact after every few."""
    index = _opened(folder)
    for number in range(1_000_000):
        documents, removed = change(seed, number)
        index.add(documents)
        index.remove(removed)
        print(number + 1, flush=True)
        if number % COMPACTED_EVERY == 0:
            index.compact()


def _opened(folder: Path) -> DocumentIndex:
    return DocumentIndex(folder, None, Chunking())


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]))
