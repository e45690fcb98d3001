"""The documents of a local suite: a retriever at each side, filled from folders of this machine.
Invariant: a document that is stored already is not stored again: filling at each start is cheap."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from tandem.core.errors import TandemError
from tandem.demo import demo_folder
from tandem.index.extraction import Refusal
from tandem.net.retriever_client import RetrieverClient, Upload
from tandem.net.status import Rejected
from tandem.suite.source_files import files_below, read_sources

HOST = "127.0.0.1"
SIDES = ("device", "cloud")
INGEST_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True)
class SuiteDocuments:
    """Files and folders for each side. `folder` keeps all indexes from one start to the next; None
    forgets them. `embedding` is the retrievers' own setting."""

    device: tuple[Path, ...]
    cloud: tuple[Path, ...]
    folder: Path | None = None
    embedding: str = "auto"

    def of(self, side: str) -> tuple[Path, ...]:
        return {"device": self.device, "cloud": self.cloud}[side]

    def check(self) -> None:
        """Raise InvalidArgument for a path that does not exist."""
        self.passed_over()

    def passed_over(self) -> list[Refusal]:
        """Return what the folders hold besides, each once, with the reason why it is not taken.
        Raises as `check`."""
        passed = (files_below(self.of(side)).passed for side in SIDES)
        return list({each.id: each for of_side in passed for each in of_side}.values())


def demo_documents(folder: Path | None = None, embedding: str = "auto") -> SuiteDocuments:
    """Return the demo's documents: notes of an invented team for the device, an excerpt of the PEPs
    for the cloud."""
    documents = demo_folder("demo-documents")
    if not documents.is_dir():
        raise TandemError(f"{documents} does not exist; specify your own documents")
    return SuiteDocuments((documents / "private",), (documents / "public",), folder, embedding)


def document_flags(
    documents: SuiteDocuments, ports: Mapping[str, int], temporary: Path
) -> dict[str, dict[str, object]]:
    """Return the flags of the retrievers, and of the cloud's aggregator; `temporary` is for indexes
    that are not kept."""
    flags: dict[str, dict[str, object]] = {
        "cloud-aggregator": {
            "side": "cloud",
            "port": ports["cloud-aggregator"],
            "decoder": f"{HOST}:{ports['verifier']}",
            "retriever": f"{HOST}:{ports['cloud-retriever']}",
        }
    }
    for side, decoder in (("device", "drafter"), ("cloud", "verifier")):
        flags[f"{side}-retriever"] = {
            "role": side,
            "port": ports[f"{side}-retriever"],
            "folder": (documents.folder or temporary) / side,
            "embedding": documents.embedding,
            "decoder": f"{HOST}:{ports[decoder]}",
        }
    return flags


def kept_kv_folder(folder: Path, side: str) -> Path:
    """Return the folder of keys and values of a side's documents, beside the index that is kept in
    `folder`."""
    return folder / f"{side}-kv"


def kept_kv_flags(documents: SuiteDocuments) -> dict[str, dict[str, object]]:
    """Return the flags of drafter and verifier that keep documents' keys and values beside a kept
    index."""
    if documents.folder is None:
        return {}
    return {
        name: {"document-kv-folder": kept_kv_folder(documents.folder, side)}
        for name, side in (("drafter", "device"), ("verifier", "cloud"))
    }


@dataclass(slots=True)
class Filled:
    """How many documents each side has, and what could not be read or taken."""

    counts: dict[str, int]
    refused: list[Refusal] = field(default_factory=list)


async def fill(documents: SuiteDocuments, addresses: Mapping[str, str]) -> Filled:
    """Give each side its documents, but for damaged ones. Raises TandemError where that leaves a
    side none of what it was given."""
    filling = (_fill_side(side, documents.of(side), addresses[side]) for side in SIDES)
    filled = Filled({})
    for each in await asyncio.gather(*filling):
        filled.counts |= each.counts
        filled.refused += each.refused
    return filled


async def _fill_side(side: str, paths: Iterable[Path], address: str) -> Filled:
    refused: list[Refusal] = []
    try:
        async with RetrieverClient(address) as client:
            async for answer in client.ingest(_uploads(paths, refused), INGEST_TIMEOUT_S):
                if answer.reason:
                    refused.append(Refusal(answer.document_id, answer.reason))
            count = int((await client.stats()).documents)
    except Rejected as error:
        raise TandemError(f"retriever at {address}: {error.code.name} {error}") from error
    if refused and not count:
        raise TandemError(f"none of the {side}'s documents can be read; {refused[0].line()}")
    return Filled({side: count}, refused)


def _uploads(paths: Iterable[Path], refused: list[Refusal]) -> Iterator[Upload]:
    """Yield the documents, named by their paths below `paths`; what cannot be read goes to
    `refused`."""
    for path in paths:
        root = path if path.is_dir() else path.parent
        selection = files_below([path])
        for source in chain(selection.unread, read_sources(selection.files)):
            if isinstance(source, Refusal):
                refused.append(source)
                continue
            name = source.upload.id.removeprefix(f"{root.as_posix()}/")
            yield replace(source.upload, id=name)
