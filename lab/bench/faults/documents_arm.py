"""Clients that change and search documents of a retriever while it is killed and its disk fails."""

from __future__ import annotations

import asyncio
import random
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from lab.bench.faults.document_history import (
    DocumentChange,
    DocumentRead,
    Outcome,
    WrongRead,
    flowing_again_s,
    reported_s,
    wrong_reads,
)
from lab.bench.faults.fail_points import Switches, can_fail
from lab.bench.faults.fleet import HOST, Fleet, Member, PromiseBroken, dialled_ports, flags_of
from lab.bench.harness.suite import SuiteFailed
from tandem.index.sqlite_store import verify_folder
from tandem.net.retriever_client import RetrieverClient, Upload
from tandem.net.status import Rejected
from tandem_api.retriever.v1 import retriever_pb2 as pb

RETRIEVER = "retriever"
WRITERS = 3
DOCUMENTS_EACH = 4
READERS = 2
CALL_S = 3.0
"""Deadline of every call: what takes longer is a fault that nobody was told of."""
DISK_BYTES = 12 << 20
SETTLE_S = 30.0
TRACEBACK = "Traceback (most recent"
_NO_ROOM = "RESOURCE_EXHAUSTED"


@dataclass(frozen=True, slots=True)
class DiskFault:
    """One fault of a retriever; `over_s` is when its cause had ended, `restart_s` what starting a
    process again took within that."""

    kind: str
    began_s: float
    over_s: float
    restart_s: float | None = None
    reported_s: float | None = None
    flows_s: float = inf


@dataclass(slots=True)
class DocumentsArm:
    """A running retriever with its clients. Use `documents_arm`."""

    fleet: Fleet
    folder: Path
    switches: Switches | None
    """None where no call of a service can be made to fail."""
    disk: Path | None
    """The small file system that the folder is on, where one could be made."""
    seed: int
    changes: list[DocumentChange] = field(default_factory=list)
    reads: list[DocumentRead] = field(default_factory=list)
    failures: list[tuple[float, float]] = field(default_factory=list)
    """Beginning and end of every call that failed."""
    faults: list[DiskFault] = field(default_factory=list)
    tracebacks: int = 0
    """In the retriever's log, at the end."""
    _numbers: dict[str, int] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.fleet.ports[RETRIEVER]}"

    def wrong(self) -> list[WrongRead]:
        return wrong_reads(self.changes, self.reads)

    async def killed(self, source: random.Random) -> None:
        """Kill the service with SIGKILL at a random moment, and start it again at once."""
        await asyncio.sleep(source.uniform(0.0, 0.2))
        began_s = time.monotonic()
        await self.fleet.kill(RETRIEVER)
        await self._started_again("kill -9", began_s)

    @property
    def breakable(self) -> tuple[str, ...]:
        """What of the disk can be made to fail here while clients go on."""
        kinds = ("write", *(() if self.switches is None else ("fsync",)))
        return kinds if self.disk is None else (*kinds, "full disk")

    async def disturbed(self, kind: str, source: random.Random) -> None:
        """Make the disk fail in one way for a moment while clients go on, and record the fault."""
        began_s = time.monotonic()
        with self._broken(kind, source):
            await self._until(lambda: self._reported(began_s, inf) is not None, CALL_S)
            await asyncio.sleep(source.uniform(0.0, 0.1))
        await self._note(DiskFault(kind, began_s, time.monotonic()))

    async def without_descriptors(self, source: random.Random) -> None:
        """Restart the service and let it open nothing more for a moment, in which several new
        callers search. As it has just started, it has no connections to spare."""
        await self.fleet.kill(RETRIEVER)
        restarted_s = await self._start()
        began_s = time.monotonic()
        self.fleet.limit(RETRIEVER, "descriptors", 3)
        await asyncio.gather(*(self._read(self.documents(0)[0]) for _ in range(3)))
        await asyncio.sleep(source.uniform(0.3, 0.6))
        self.fleet.limit(RETRIEVER, "descriptors", None)
        await self._note(DiskFault("descriptors", began_s, time.monotonic(), restarted_s))

    async def not_opened(self, switches: Switches) -> None:
        """Start the service while its files cannot be opened, which it has to report, and then
        again: it must have lost nothing."""
        began_s = time.monotonic()
        await self.fleet.kill(RETRIEVER)
        switches.set("open", True)
        try:
            await self._refuses_to_start("open")
        finally:
            switches.set("open", False)
        await self._started_again("open", began_s)

    async def not_renamed(self, name: str) -> None:
        """Start another retriever, beside the one of the clients, in a new folder whose database
        cannot be given its name. It must leave no database there, and make one the next time it
        starts."""
        folder, began_s = self.folder.parent / name, time.monotonic()
        switches = Switches.create(self.fleet.logs / f"{name}.switches", folder)
        switches.set("rename", True)
        (port,) = dialled_ports(1)
        member = _member(folder, port, switches)
        fresh = Fleet({name: member}, self.fleet.logs, {name: port})
        with suppress(SuiteFailed):
            await fresh.start(name)
            raise PromiseBroken("a folder was made although nothing could be renamed")
        if (folder / "documents.db").exists():
            raise PromiseBroken("a database has its name although nothing could be renamed")
        switches.set("rename", False)
        over_s = time.monotonic()
        async with fresh:
            listening_s = time.monotonic()
            change = await _put(f"{HOST}:{port}", name, 1)
            if change.outcome is not Outcome.ACKNOWLEDGED:
                raise PromiseBroken("a new folder takes no document")
        self.changes.append(change)
        held = verify_folder(folder)
        seen = 1 if held.documents == 1 else None
        self.reads.append(DocumentRead(name, seen, time.monotonic(), time.monotonic()))
        self.faults.append(
            DiskFault(
                "rename", began_s, listening_s, listening_s - over_s, None,
                change.ended_s - listening_s,
            )
        )  # fmt: skip

    async def settle(self) -> None:
        """Read everything, restart, read everything, and compare every checksum."""
        await self.read_all()
        await self.fleet.kill(RETRIEVER)
        verify_folder(self.folder)
        await self.fleet.start(RETRIEVER)
        await self.read_all()

    async def read_all(self) -> None:
        for writer in range(WRITERS):
            await asyncio.gather(*map(self._read, self.documents(writer)))

    def documents(self, writer: int) -> list[str]:
        return [f"doc{writer}x{number}" for number in range(DOCUMENTS_EACH)]

    async def write(self, writer: int, stop: asyncio.Event) -> None:
        """Change this writer's documents, one change after the other, until `stop` is set."""
        source = random.Random(f"writer {self.seed} {writer}")
        async with RetrieverClient(self.address) as client:
            while not stop.is_set():
                document = source.choice(self.documents(writer))
                number = self._numbers[document] = self._numbers.get(document, 0) + 1
                if number % 5 == 4:
                    change = await _deleted(client, document, number)
                else:
                    size = source.choice((5, 60, 2000))
                    change = await _put_by(client, document, number, size)
                self.changes.append(change)
                if change.outcome is Outcome.ACKNOWLEDGED:
                    await asyncio.sleep(0.01)
                else:
                    self.failures.append((change.began_s, change.ended_s))
                    await asyncio.sleep(0.05)

    async def read(self, reader: int, stop: asyncio.Event) -> None:
        """Search for random documents until `stop` is set."""
        source = random.Random(f"reader {self.seed} {reader}")
        while not stop.is_set():
            async with RetrieverClient(self.address) as client:
                for _ in range(50):
                    document = source.choice(self.documents(source.randrange(WRITERS)))
                    if not await self._read_by(client, document):
                        await asyncio.sleep(0.05)
                    await asyncio.sleep(0.01)
                    if stop.is_set():
                        break

    async def _read(self, document: str) -> None:
        async with RetrieverClient(self.address) as client:
            await self._read_by(client, document)

    async def _read_by(self, client: RetrieverClient, document: str) -> bool:
        began_s = time.monotonic()
        try:
            answer = await client.search(document, 20, "lexical", timeout_s=CALL_S)
        except Rejected:
            self.failures.append((began_s, time.monotonic()))
            return False
        titles = [hit.title for hit in answer.hits if hit.document_id == document]
        seen = int(titles[0].split()[1]) if titles else None
        self.reads.append(DocumentRead(document, seen, began_s, time.monotonic()))
        return True

    async def _started_again(self, kind: str, began_s: float) -> None:
        restart_s = await self._start()
        over_s = time.monotonic()
        await self.read_all()
        await self._note(DiskFault(kind, began_s, over_s, restart_s))

    async def _start(self) -> float:
        asked_s = time.monotonic()
        return await self.fleet.start(RETRIEVER) - asked_s

    async def _refuses_to_start(self, kind: str) -> None:
        with suppress(SuiteFailed):
            await self.fleet.start(RETRIEVER)
            raise PromiseBroken(f"the retriever started although {kind} failed")
        if not (words := self.fleet.last_words(RETRIEVER)).startswith("error: "):
            raise PromiseBroken(f"the retriever did not say why it could not start: {words}")

    async def _note(self, fault: DiskFault) -> None:
        """Record the fault once every writer has had a change acknowledged again, or after
        SETTLE_S."""
        await self._until(lambda: self._flows(fault.over_s) < inf, SETTLE_S)
        noticed_s, flows_s = self._reported(fault.began_s, fault.over_s), self._flows(fault.over_s)
        known = (fault.kind, fault.began_s, fault.over_s, fault.restart_s)
        self.faults.append(DiskFault(*known, noticed_s, flows_s))

    def _reported(self, began_s: float, over_s: float) -> float | None:
        return reported_s(self.failures, began_s, over_s)

    def _flows(self, over_s: float) -> float:
        return flowing_again_s(self.changes, map(self.documents, range(WRITERS)), over_s)

    async def _until(self, reached: Callable[[], bool], most_s: float) -> None:
        deadline_s = time.monotonic() + most_s
        while not reached() and time.monotonic() < deadline_s:
            await asyncio.sleep(0.02)

    @contextmanager
    def _broken(self, kind: str, source: random.Random) -> Iterator[None]:
        if kind == "full disk":
            assert self.disk is not None
            ballast = self.disk / "ballast"
            try:
                _fill(ballast)
                yield
            finally:
                ballast.unlink(missing_ok=True)
        elif kind == "write":
            most = self.folder / "documents.db"
            self.fleet.limit(RETRIEVER, "file size", source.randrange(most.stat().st_size))
            try:
                yield
            finally:
                self.fleet.limit(RETRIEVER, "file size", None)
        else:
            assert self.switches is not None
            self.switches.set(kind, True)
            try:
                yield
            finally:
                self.switches.set(kind, False)


@asynccontextmanager
async def documents_arm(place: Path, seed: int) -> AsyncIterator[DocumentsArm]:
    """Run the retriever and its clients while the context is open. The clients stop before it ends,
    and every document is read once more. Raises what a client or the service died of."""
    with ExitStack() as stack:
        disk = stack.enter_context(_small_disk(place / "disk"))
        folder = (disk or place) / "index"
        switches = Switches.create(place / "switches", folder) if can_fail() else None
        (port,) = dialled_ports(1)
        members = {RETRIEVER: _member(folder, port, switches)}
        async with Fleet(members, place, {RETRIEVER: port}) as fleet:
            arm, stop = DocumentsArm(fleet, folder, switches, disk, seed), asyncio.Event()
            clients: list[Awaitable[None]] = [arm.write(number, stop) for number in range(WRITERS)]
            clients += [arm.read(number, stop) for number in range(READERS)]
            running = asyncio.gather(*clients)
            try:
                yield arm
            finally:
                stop.set()
                await running
            await arm.settle()
            arm.tracebacks = fleet.logged(RETRIEVER, TRACEBACK)


def _member(folder: Path, port: int, switches: Switches | None) -> Member:
    settings = {"port": port, "folder": folder, "embedding": "lexical", "insecure": "true"}
    return Member("tandem.services.retriever", flags_of(settings), switches)


def _upload(document: str, number: int, words: int) -> Upload:
    text = " ".join(f"w{(number * 31 + place) % 997}" for place in range(words))
    return Upload(document, text.encode(), title=f"{document} {number}")


async def _put(address: str, document: str, number: int) -> DocumentChange:
    async with RetrieverClient(address) as client:
        return await _put_by(client, document, number, 5)


async def _put_by(
    client: RetrieverClient, document: str, number: int, words: int
) -> DocumentChange:
    began_s, outcome = time.monotonic(), Outcome.UNKNOWN
    try:
        async for answer in client.ingest([_upload(document, number, words)], CALL_S):
            stored = answer.outcome in (pb.OUTCOME_ADDED, pb.OUTCOME_UPDATED)
            outcome = Outcome.ACKNOWLEDGED if stored else Outcome.REFUSED
    except Rejected as error:
        outcome = _failed(error)
    return DocumentChange(document, number, True, began_s, time.monotonic(), outcome)


async def _deleted(client: RetrieverClient, document: str, number: int) -> DocumentChange:
    began_s, outcome = time.monotonic(), Outcome.ACKNOWLEDGED
    try:
        await client.delete([document], CALL_S)
    except Rejected as error:
        outcome = _failed(error)
    return DocumentChange(document, number, False, began_s, time.monotonic(), outcome)


def _failed(error: Rejected) -> Outcome:
    """Return the outcome of a rejected change: REFUSED if the answer says that nothing was changed,
    which then has to be true, else UNKNOWN."""
    refused = error.code.name == _NO_ROOM and "nothing was changed" in str(error)
    return Outcome.REFUSED if refused else Outcome.UNKNOWN


@contextmanager
def _small_disk(at: Path) -> Iterator[Path | None]:
    """Yield the folder of a file system that can be filled without harm; None where this user may
    not mount one."""
    at.mkdir()
    command = ("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(at))
    try:
        mounted = subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    try:
        yield at if mounted else None
    finally:
        if mounted:
            subprocess.run(("umount", "--lazy", str(at)), check=True)


def _fill(ballast: Path) -> None:
    """Fill the disk until it takes no further byte."""
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            with suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
