"""`bench faults`: services are killed, the link goes dead and disks fail, while clients record what
they did and saw; afterwards the records are compared with what a correct suite could have done.

Three groups of real processes. A retriever with clients that put, delete and search documents:
every acknowledged change must be seen by every later read, a restart's included. A suite of real
models, whose decoders keep documents' keys and values on failing disks: the answers stay the same.
And all services with an emulated link and callers whose texts are known: a text is the undisturbed
run's, token for token. The models of these are scripted, with passes of a declared time: so a
resumed text is the same to the last bit, and the machine is not the limit. `--part` runs some.

*Detection* is how long somebody was in the dark: a caller until its call failed, the edge until it
took the cloud for lost. *Recovery* counts from the end of the cause (a process that listens again,
a link that carries again, a disk that works again) until each client has been served again. What it
took to start a process again is shown beside it.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from lab.bench.faults.decoders_arm import DECODERS, DecodersArm, decoders_arm
from lab.bench.faults.document_history import acknowledged
from lab.bench.faults.documents_arm import RETRIEVER, DiskFault, DocumentsArm, documents_arm
from lab.bench.faults.suite_members import SERVICES
from lab.bench.faults.text_history import all_wrong_tokens, improper_ends
from lab.bench.faults.texts_arm import TextsArm, texts_arm
from lab.bench.harness.models import Models
from lab.bench.harness.report import Goal, Report, Row, counted, make_row
from tandem.core.errors import InvalidArgument
from tandem.net.process import run_loop

TOLD_WITHIN_S = 3.0
FLOWS_WITHIN_S = 5.0
DOCUMENTS = "documents"
KEYS_AND_VALUES = "keys-and-values"
LINK = "link"
PARTS = (DOCUMENTS, KEYS_AND_VALUES, *SERVICES, LINK)
LIMITED = ("verifier", "drafter", "aggregator", "cloud-aggregator")
COLUMNS = (
    *("service", "fault", "count", "detection_max_s", "recovery_max_s", "restart_max_s"),
    *("acknowledged_changes", "changes_lost", "tokens", "tokens_wrong"),
)

Arm = DocumentsArm | DecodersArm | TextsArm
Planned = Mapping[tuple[str, str], int]
"""How often each fault of each service is to happen at least."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """How many of each: kills of each service, blackholes, each kind of fail-point of the retriever
    and of each decoder, and shortages of descriptors of each other service."""

    kills: int = 50
    blackholes: int = 20
    fail_points: int = 20
    shortages: int = 20


QUICK = FaultPlan(kills=1, blackholes=2, fail_points=2, shortages=1)


def run(report: Report, models: Models, part: Sequence[str] = (), logs: Path | None = None) -> None:
    """Run the groups and report what was lost. The goals are exact, whatever the machine. `part`:
    some of `PARTS`; empty: all. `logs`: where the services' logs are kept. Raises InvalidArgument
    for an unknown part."""
    plan, parts = QUICK if report.quick else FaultPlan(), part or PARTS
    if unknown := set(parts) - set(PARTS):
        raise InvalidArgument("part", f"{', '.join(unknown)}; there are {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory(prefix="tandem-faults-") as place:
        arms = run_loop(_all(logs or Path(place), plan, parts, models, report.seed))
    rows = [row for arm in arms for row in _rows(arm)]
    report.add("Faults under load: processes killed, link dead, disk failing", COLUMNS, rows)
    planned: dict[tuple[str, str], int] = {}
    for arm in arms:
        planned |= _planned(arm, plan, parts)
        report.notes += _notes(arm)
    ends = sum(len(improper_ends(arm.answers)) for arm in arms if not isinstance(arm, DocumentsArm))
    report.goals += goals(rows, planned, ends)


async def _all(
    place: Path, plan: FaultPlan, parts: Sequence[str], models: Models, seed: int
) -> list[Arm]:
    """Run the groups that have one of `parts` side by side, and return them."""
    breaking: dict[str, Coroutine[Any, Any, Arm]] = {}
    if DOCUMENTS in parts:
        breaking[DOCUMENTS] = break_documents(place / DOCUMENTS, plan, seed)
    if KEYS_AND_VALUES in parts:
        breaking[KEYS_AND_VALUES] = break_decoders(place / KEYS_AND_VALUES, plan, models)
    if texts := [part for part in parts if part in (*SERVICES, LINK)]:
        breaking["texts"] = break_texts(place / "texts", plan, seed, texts)
    for name in breaking:
        (place / name).mkdir(parents=True)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(fault) for fault in breaking.values()]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    return [task.result() for task in tasks]


async def break_documents(place: Path, plan: FaultPlan, seed: int) -> DocumentsArm:
    """Cause every fault of the plan that concerns the retriever, its kinds in turn, and return the
    arm with what clients did and saw."""
    source = random.Random(f"documents {seed}")
    async with documents_arm(place, seed) as arm:
        for turn in counted(range(max(plan.kills, plan.fail_points)), lambda turn: "retriever"):
            if turn < plan.kills:
                await arm.killed(source)
            if turn < plan.fail_points:
                for kind in arm.breakable:
                    await arm.disturbed(kind, source)
                await arm.without_descriptors(source)
                if arm.switches is not None:
                    await arm.not_opened(arm.switches)
                    await arm.not_renamed(f"new{turn}")
    return arm


async def break_decoders(place: Path, plan: FaultPlan, models: Models) -> DecodersArm:
    """Cause every kind of failure of the disk that decoders keep keys and values on, restart the
    decoders, and return the arm with the answers."""
    async with decoders_arm(place, models) as arm:
        for _ in counted(range(plan.fail_points), lambda turn: "decoders"):
            for kind in arm.breakable:
                await arm.disturbed(kind)
        await arm.restarted()
    return arm


async def break_texts(place: Path, plan: FaultPlan, seed: int, parts: Sequence[str]) -> TextsArm:
    """Cause every other fault of the plan in the services in `parts`, and on the link if it is in
    there, kinds in turn; return the arm with what callers got."""
    source = random.Random(f"texts {seed} {' '.join(parts)}")
    async with texts_arm(place, seed) as arm:
        turns = range(max(plan.kills, plan.blackholes, plan.shortages))
        for turn in counted(turns, lambda turn: "suite"):
            for part in parts:
                if part == LINK and turn < plan.blackholes:
                    await arm.blackholed(source)
                if part in SERVICES and turn < plan.kills:
                    await arm.killed(part, source)
                if part in LIMITED and turn < plan.shortages:
                    await arm.without_descriptors(part, source)
    return arm


def _planned(arm: Arm, plan: FaultPlan, parts: Sequence[str]) -> Planned:
    match arm:
        case DocumentsArm():
            kinds = [*arm.breakable, "descriptors"]
            kinds += [] if arm.switches is None else ["open", "rename"]
            disk = {(RETRIEVER, kind): plan.fail_points for kind in kinds}
            return {(RETRIEVER, "kill -9"): plan.kills, **disk}
        case DecodersArm():
            pairs = [(name, kind) for name in DECODERS for kind in arm.breakable]
            return dict.fromkeys(pairs, plan.fail_points)
        case TextsArm():
            kills = {(part, "kill -9"): plan.kills for part in parts if part in SERVICES}
            shortages = {(p, "descriptors"): plan.shortages for p in parts if p in LIMITED}
            return (
                kills
                | shortages
                | ({(LINK, "blackhole"): plan.blackholes} if LINK in parts else {})
            )


def _rows(arm: Arm) -> list[Row]:
    match arm:
        case DocumentsArm():
            return document_rows(arm)
        case DecodersArm():
            return decoder_rows(arm)
        case TextsArm():
            return text_rows(arm)


def document_rows(arm: DocumentsArm) -> list[Row]:
    """Return a row for each kind of fault, and one for all together, which counts what was lost."""
    rows = [
        _row(RETRIEVER, kind, [f for f in arm.faults if f.kind == kind])
        for kind in dict.fromkeys(fault.kind for fault in arm.faults)
    ]
    return [
        *rows,
        make_row(
            service=RETRIEVER,
            fault="all",
            acknowledged_changes=acknowledged(arm.changes),
            changes_lost=len(arm.wrong()),
            reads=len(arm.reads),
        ),
    ]


def decoder_rows(arm: DecodersArm) -> list[Row]:
    rows = [
        _row(name, kind, [f for decoder, f in arm.faults if (decoder, f.kind) == (name, kind)])
        for name in DECODERS
        for kind in arm.breakable
    ]
    return [*rows, _tokens_row("decoders", arm)]


def text_rows(arm: TextsArm) -> list[Row]:
    rows = []
    for service, kind in dict.fromkeys((f.service, f.kind) for f in arm.faults):
        known = [
            DiskFault(f.kind, f.began_s, f.over_s, f.restart_s, arm.reported_s(f), arm.flows_s(f))
            for f in arm.faults
            if (f.service, f.kind) == (service, kind)
        ]
        rows.append(_row(service, kind, known))
    return [*rows, _tokens_row("suite", arm)]


def _tokens_row(service: str, arm: DecodersArm | TextsArm) -> Row:
    return make_row(
        service=service,
        fault="all",
        tokens=sum(len(answer.token_ids) for answer in arm.answers),
        tokens_wrong=sum(all_wrong_tokens(arm.answers, arm.undisturbed).values()),
        answers=len(arm.answers),
    )


def goals(rows: Sequence[Row], planned: Planned, improper: int) -> list[Goal]:
    """Return the goals of a run: what must hold, and that as many faults happened as were planned.
    `improper`: number of answers that ended as no fault may end them."""

    def total(figure: str) -> float:
        return float(sum(row.get(figure) or 0 for row in rows))

    def worst(figure: str) -> float:
        return max((row[figure] for row in rows if row.get(figure) is not None), default=inf)

    counts = {(row["service"], row["fault"]): row.get("count") or 0 for row in rows}
    short = sum(counts.get(key, 0) < most for key, most in planned.items())
    return [
        Goal("acknowledged changes lost", total("changes_lost"), 0, "at most"),
        Goal("tokens lost, repeated or different", total("tokens_wrong"), 0, "at most"),
        Goal("answers that blame the caller or the code", improper, 0, "at most"),
        Goal("slowest detection (s)", worst("detection_max_s"), TOLD_WITHIN_S, "at most"),
        Goal("slowest recovery (s)", worst("recovery_max_s"), FLOWS_WITHIN_S, "at most"),
        Goal("kinds of fault with fewer than planned", short, 0, "at most"),
    ]


def _row(service: str, kind: str, faults: Sequence[DiskFault]) -> Row:
    return make_row(
        service=service,
        fault=kind,
        count=len(faults),
        detection_max_s=max(
            (f.reported_s for f in faults if f.reported_s is not None), default=None
        ),
        recovery_max_s=max((f.flows_s for f in faults), default=None),
        restart_max_s=max((f.restart_s for f in faults if f.restart_s is not None), default=None),
    )


def _notes(arm: Arm) -> list[str]:
    """Return notes on a few of the errors to look into, and on what was left out."""
    if isinstance(arm, DocumentsArm):
        notes = [f"no correct store answers so: {wrong}" for wrong in arm.wrong()[:5]]
        if arm.tracebacks:
            notes.append(f"the retriever logged {arm.tracebacks} tracebacks")
        if arm.disk is None:
            notes.append("full disk: left out, as only root may mount a small file system")
        if arm.switches is None:
            notes.append("open, fsync, rename: left out, as this kernel cannot ask about calls")
        return notes
    wrong = all_wrong_tokens(arm.answers, arm.undisturbed)
    notes = [f"request {number}: {count} wrong tokens" for number, count in wrong.items()]
    improper = improper_ends(arm.answers)
    notes += [
        f"request {request.request}: {request.status} {request.why}" for request in improper[:5]
    ]
    return notes
