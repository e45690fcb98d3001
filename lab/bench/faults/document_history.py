"""What clients did to documents and what they saw, and whether one correct store explains it.

Every document has one writer, which makes its changes one after the other, and any number of
readers. A change is known by its number, which is part of the text. The store is correct if there
is one order of all changes and reads of a document in which each lies between its beginning and its
end, and each read sees the change before it. A change that was not acknowledged may be in that
order at any later time, or never; one that was refused may not. With one writer this can be
decided exactly: see `wrong_reads`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf


class Outcome(Enum):
    """The outcome of a change, as its caller knows it."""

    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class DocumentChange:
    """Change `number` (from 1 on) of a document; `put` False removes it. Times in seconds."""

    document: str
    number: int
    put: bool
    began_s: float
    ended_s: float
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class DocumentRead:
    """What a search found; `seen` is the change whose text it was, None for no document."""

    document: str
    seen: int | None
    began_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class WrongRead:
    """A read that no correct store could have answered so."""

    read: DocumentRead
    possible: tuple[int | None, ...]
    lost_change: int | None
    """The last acknowledged change that the read should have seen, if it is that which is gone."""


def wrong_reads(
    changes: Iterable[DocumentChange], reads: Iterable[DocumentRead]
) -> list[WrongRead]:
    """Return the reads that contradict the changes or an earlier read."""
    changes_of: dict[str, list[DocumentChange]] = defaultdict(list)
    for change in changes:
        changes_of[change.document].append(change)
    reads_of: dict[str, list[DocumentRead]] = defaultdict(list)
    for read in reads:
        reads_of[read.document].append(read)
    wrong: list[WrongRead] = []
    for document, reads_of_one in reads_of.items():
        wrong += _wrong_of_one(changes_of[document], reads_of_one)
    return wrong


def _wrong_of_one(
    changes: Sequence[DocumentChange], reads: Sequence[DocumentRead]
) -> list[WrongRead]:
    """Return the reads of one document that contradict its changes or an earlier read. Each read is
    given the earliest change that explains it, so that later ones are judged no more strictly than
    they must be."""
    in_order = sorted(changes, key=lambda change: change.number)
    acks = [change for change in in_order if change.outcome is Outcome.ACKNOWLEDGED]
    ack_ends = [c.ended_s for c in acks]
    begins = [c.began_s for c in in_order]
    put = {change.number for change in in_order if change.put}
    wrong: list[WrongRead] = []
    # of reads so far: when they ended, the latest change seen by then
    ends = [-inf]
    explained = [0]
    for read in sorted(reads, key=lambda read: read.ended_s):
        ack = bisect_right(ack_ends, read.began_s)
        acknowledged = acks[ack - 1].number if ack else 0
        earliest = max(acknowledged, explained[bisect_right(ends, read.began_s) - 1])
        later = in_order[bisect_right(in_order, earliest, key=_number) :]
        last = bisect_right(begins, read.ended_s)
        under_way = [
            change.number
            for change in later[: max(0, last - (len(in_order) - len(later)))]
            if change.outcome is not Outcome.REFUSED
        ]
        possible = {n: n if n in put else None for n in (earliest, *under_way)}
        fitting = [number for number, text in possible.items() if text == read.seen]
        if fitting:
            ends.append(read.ended_s)
            explained.append(max(explained[-1], min(fitting)))
        else:
            gone = acknowledged if earliest == acknowledged and acknowledged else None
            wrong.append(WrongRead(read, tuple(possible.values()), gone))
    return wrong


def _number(change: DocumentChange) -> int:
    return change.number


_ACK = Outcome.ACKNOWLEDGED


def acknowledged(changes: Iterable[DocumentChange]) -> int:
    return sum(change.outcome is Outcome.ACKNOWLEDGED for change in changes)


def reported_s(
    failures: Iterable[tuple[float, float]], began_s: float, over_s: float
) -> float | None:
    """Return the longest time in seconds for which a failed call went without an answer under a
    fault; None where no call failed. Each of `failures` is the beginning and end of a call."""
    delays_s = [
        ended_s - max(began_s, call_began_s)
        for call_began_s, ended_s in failures
        if ended_s >= began_s and call_began_s <= over_s
    ]
    return max(delays_s, default=None)


def flowing_again_s(
    changes: Iterable[DocumentChange], writers: Iterable[Iterable[str]], over_s: float
) -> float:
    """Return the seconds from the end of a fault's cause until every writer has had a change
    acknowledged that it began after that; infinite if one has not. Each of `writers` is the names
    of that writer's documents."""
    first: dict[str, float] = {}
    for change in changes:
        if change.outcome is _ACK and change.began_s >= over_s:
            earlier = first.get(change.document, inf)
            first[change.document] = min(earlier, change.ended_s)
    ends = [min((first.get(name, inf) for name in names), default=inf) for names in writers]
    return max(ends, default=inf) - over_s
