"""The documents of a local suite: a retriever at each side, filled from folders of this machine.

Invariant: what is there already is not stored again, so filling at every start costs next to
nothing. Must not import torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tandem.commands.documents import files_below, read_sources
from tandem.core.errors import TandemError
from tandem.index.extraction import Refusal
from tandem.rpc.retriever_client import RetrieverClient, Upload
from tandem.rpc.status import Rejected

HOST = "127.0.0.1"
SIDES = ("device", "cloud")
INGEST_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True)
class SuiteDocuments:
    """Files and folders for each side. `folder` keeps both indexes from one start to the next; None
    forgets them. `embedding` is the retrievers' own setting."""

    device: tuple[Path, ...]
    cloud: tuple[Path, ...]
    folder: Path | None = None
    embedding: str = "auto"

    def of(self, side: str) -> tuple[Path, ...]:
        return self.device if side == "device" else self.cloud

    def check(self) -> None:
        """InvalidArgument for a path that does not exist."""
        for side in SIDES:
            files_below(self.of(side))


def demo_documents(folder: Path | None = None, embedding: str = "auto") -> SuiteDocuments:
    """Notes of an invented team for the device, an excerpt of the PEPs for the cloud."""
    places = (Path(__file__).resolve().parents[2] / "models", Path.cwd() / "models")
    for place in places:
        documents = place / "demo-documents"
        if documents.is_dir():
            public, private = documents / "public", documents / "private"
            return SuiteDocuments((private,), (public,), folder, embedding)
    raise TandemError(f"there are no demo documents in {places[0]}; name your own")


def document_flags(
    documents: SuiteDocuments, ports: Mapping[str, int], temporary: Path
) -> dict[str, dict[str, object]]:
    """What the cloud's aggregator and both retrievers are told. An index lies in `temporary` unless
    it is kept. The device's aggregator comes before the cloud's in a request's path."""
    flags: dict[str, dict[str, object]] = {
        "cloud-aggregator": {
            "side": "cloud",
            "port": ports["cloud-aggregator"],
            "decoder": f"{HOST}:{ports['verifier']}",
            "retriever": f"{HOST}:{ports['cloud-retriever']}",
        }
    }
    decoders = {"device": "drafter", "cloud": "verifier"}
    for side in SIDES:
        flags[f"{side}-retriever"] = {
            "role": side,
            "port": ports[f"{side}-retriever"],
            "folder": (documents.folder or temporary) / side,
            "embedding": documents.embedding,
            "decoder": f"{HOST}:{ports[decoders[side]]}",
        }
    return flags


def kept_kv_folder(folder: Path, side: str) -> Path:
    """Of a side's documents, beside the index that is kept in `folder`."""
    return folder / f"{side}-kv"


def kept_kv_flags(documents: SuiteDocuments) -> dict[str, dict[str, object]]:
    """Where drafter and verifier keep the keys and values of their side's documents: beside the
    indexes, if those are kept."""
    if documents.folder is None:
        return {}
    decoders = {"drafter": "device", "verifier": "cloud"}
    return {
        name: {"document-kv-folder": kept_kv_folder(documents.folder, side)}
        for name, side in decoders.items()
    }


async def fill(documents: SuiteDocuments, addresses: Mapping[str, str]) -> dict[str, int]:
    """Hand each side its documents; how many each has then. Raises TandemError for what was
    refused, so that no suite starts with less than it was given."""
    counts = await asyncio.gather(
        *(_fill_side(documents.of(side), addresses[side]) for side in SIDES)
    )
    return dict(zip(SIDES, counts, strict=True))


async def _fill_side(paths: Iterable[Path], address: str) -> int:
    try:
        async with RetrieverClient(address) as client:
            async for answer in client.ingest(_uploads(paths), INGEST_TIMEOUT_S):
                if answer.reason:  # it was refused
                    raise TandemError(f"{answer.document_id}: {answer.reason}")
            return int((await client.stats()).documents)
    except Rejected as error:
        raise TandemError(f"retriever at {address}: {error.code.name} {error}") from error


def _uploads(paths: Iterable[Path]) -> Iterator[Upload]:
    """A document is called by its path below what was named, wherever that lies."""
    for path in paths:
        root = path if path.is_dir() else path.parent
        for source in read_sources(files_below([path])):
            if isinstance(source, Refusal):
                raise TandemError(f"{source.id}: {source.why}")
            name = source.upload.id.removeprefix(f"{root.as_posix()}/")
            yield replace(source.upload, id=name)
