"""`bench faults`: services are killed, the link goes dead and disks fail, while clients record what
they did and saw; afterwards the records are compared with what a correct suite could have done.

Three groups of real processes run side by side. A retriever with clients that put, delete and
search documents: every acknowledged change must be seen by every later read, a restart's included.
All services with an emulated link and callers whose texts are known: a text is the undisturbed
run's, token for token. The models of these are scripted, with passes of a declared time: so a
resumed text is the same to the last bit, and the machine is not the limit. And a suite of real
models, whose decoders keep documents' keys and values on failing disks: the answers stay the same.

*Detection* is how long somebody was in the dark: a caller until its call failed, the edge until it
took the cloud for lost. *Recovery* counts from the end of the cause (a process that listens again,
a link that carries again, a disk that works again) until each client has been served again. What it
took to start a process again is shown beside it.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from bench.faults.decoders_arm import DECODERS, FAILING, DecodersArm, decoders_arm
from bench.faults.document_history import acknowledged
from bench.faults.documents_arm import RETRIEVER, DiskFault, DocumentsArm, documents_arm
from bench.faults.suite_members import SERVICES
from bench.faults.text_history import all_wrong_tokens
from bench.faults.texts_arm import TextsArm, texts_arm
from bench.harness.report import Goal, Report, Row, make_row, progress
from bench.harness.suite import Models
from tandem.net.process import run_loop

TOLD_WITHIN_S, FLOWS_WITHIN_S = 3.0, 5.0
DISTURBED = ("fsync", "write", "full disk")
DISK_KINDS = (*DISTURBED, "open", "rename")
LIMITED = ("verifier", "drafter", "aggregator", "cloud-aggregator")
COLUMNS = (
    *("service", "fault", "count", "detection_max_s", "recovery_max_s", "restart_max_s"),
    *("acknowledged_changes", "changes_lost", "tokens", "tokens_wrong"),
)


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """How many of each: kills of every service, kills of the retriever under writes, blackholes,
    each kind of fail-point of the retriever and of the decoders, and shortages of descriptors of
    each other service."""

    kills: int = 9
    retriever_kills: int = 20
    blackholes: int = 20
    fail_points: int = 20
    shortages: int = 20


QUICK = FaultPlan(kills=1, retriever_kills=3, blackholes=2, fail_points=2, shortages=1)


def run(report: Report, models: Models) -> None:
    """The goals are exact, whatever the machine."""
    plan = QUICK if report.quick else FaultPlan()
    with tempfile.TemporaryDirectory(prefix="tandem-faults-") as place:
        arms = run_loop(_all(Path(place), plan, models, report.seed))
    documents, decoders, texts = arms
    rows = [*document_rows(documents), *decoder_rows(decoders), *text_rows(texts)]
    report.add("Faults under load: processes killed, link dead, disk failing", COLUMNS, rows)
    report.goals += goals(rows, plan)
    report.notes += [*_contradictions(documents), *_wrong(decoders), *_wrong(texts)]
    if documents.tracebacks:
        report.notes.append(f"the retriever logged {documents.tracebacks} tracebacks")
    if documents.disk is None:
        report.notes.append("full disk: left out, as only root may mount a small file system")


async def _all(
    place: Path, plan: FaultPlan, models: Models, seed: int
) -> tuple[DocumentsArm, DecodersArm, TextsArm]:
    folders = [place / name for name in ("documents", "decoders", "texts")]
    for folder in folders:
        folder.mkdir()
    try:
        async with asyncio.TaskGroup() as group:
            documents = group.create_task(break_documents(folders[0], plan, seed))
            decoders = group.create_task(break_decoders(folders[1], plan, models))
            texts = group.create_task(break_texts(folders[2], plan, seed))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    return documents.result(), decoders.result(), texts.result()


async def break_documents(place: Path, plan: FaultPlan, seed: int) -> DocumentsArm:
    """Every fault of the plan that concerns the retriever, kinds in turn."""
    source = random.Random(f"documents {seed}")
    async with documents_arm(place, seed) as arm:
        for turn in range(max(plan.retriever_kills, plan.fail_points)):
            progress(f"retriever, turn {turn + 1}")
            if turn < plan.retriever_kills:
                await arm.killed(source)
            if turn < plan.fail_points:
                for kind in DISTURBED:
                    if kind != "full disk" or arm.disk is not None:
                        await arm.disturbed(kind, source)
                await arm.without_descriptors(source)
                await arm.not_opened(source)
                await arm.not_renamed(f"new{turn}")
    return arm


async def break_decoders(place: Path, plan: FaultPlan, models: Models) -> DecodersArm:
    """Every kind of failure of the disk that decoders keep keys and values on."""
    async with decoders_arm(place, models) as arm:
        for turn in range(plan.fail_points):
            progress(f"decoders, turn {turn + 1}")
            for kind in FAILING:
                await arm.disturbed(kind)
        await arm.restarted()
    return arm


async def break_texts(place: Path, plan: FaultPlan, seed: int) -> TextsArm:
    """Every other fault of the plan, kinds in turn."""
    source = random.Random(f"texts {seed}")
    async with texts_arm(place, seed) as arm:
        for turn in range(max(plan.kills, plan.blackholes, plan.shortages)):
            progress(f"suite, turn {turn + 1}")
            if turn < plan.kills:
                for service in SERVICES:
                    await arm.killed(service, source)
            if turn < plan.blackholes:
                await arm.blackholed(source)
            if turn < plan.shortages:
                for service in LIMITED:
                    await arm.without_descriptors(service, source)
    return arm


def document_rows(arm: DocumentsArm) -> list[Row]:
    """One for each kind of fault; what was lost is counted once, under all."""
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
        _row(name, kind, [f for own, f in arm.faults if (own, f.kind) == (name, kind)])
        for name in DECODERS
        for kind in FAILING
    ]
    return [*rows, _tokens_row("decoders", arm)]


def text_rows(arm: TextsArm) -> list[Row]:
    rows = []
    for service, kind in dict.fromkeys((f.service, f.kind) for f in arm.faults):
        known = [
            DiskFault(f.kind, f.began_s, f.over_s, f.restart_s, arm.told_s(f), arm.flows_s(f))
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


def goals(rows: Sequence[Row], plan: FaultPlan) -> list[Goal]:
    """What every run must show, and that it broke as much as it was to."""

    def total(figure: str) -> float:
        return float(sum(row.get(figure) or 0 for row in rows))

    def worst(figure: str) -> float:
        return max((row[figure] for row in rows if row.get(figure) is not None), default=inf)

    counts: dict[str, int] = {}
    for row in rows:
        counts[row["fault"]] = counts.get(row["fault"], 0) + (row.get("count") or 0)
    kills = plan.retriever_kills + plan.kills * len(SERVICES)
    shortages = plan.fail_points + plan.shortages * len(LIMITED)
    by_kind = {kind: plan.fail_points * (1 + 2 * (kind in FAILING)) for kind in DISK_KINDS}
    wanted = {"kill -9": kills, "blackhole": plan.blackholes, "descriptors": shortages}
    wanted |= {kind: most for kind, most in by_kind.items() if kind in counts}
    return [
        Goal("acknowledged changes lost", total("changes_lost"), 0, "at most"),
        Goal("tokens lost, repeated or different", total("tokens_wrong"), 0, "at most"),
        Goal("slowest detection (s)", worst("detection_max_s"), TOLD_WITHIN_S, "at most"),
        Goal("slowest recovery (s)", worst("recovery_max_s"), FLOWS_WITHIN_S, "at most"),
        *(Goal(f"faults: {k}", counts.get(k, 0), most, "at least") for k, most in wanted.items()),
    ]


def _row(service: str, kind: str, faults: Sequence[DiskFault]) -> Row:
    return make_row(
        service=service,
        fault=kind,
        count=len(faults),
        detection_max_s=max((f.told_s for f in faults if f.told_s is not None), default=None),
        recovery_max_s=max((f.flows_s for f in faults), default=None),
        restart_max_s=max((f.restart_s for f in faults if f.restart_s is not None), default=None),
    )


def _contradictions(arm: DocumentsArm) -> list[str]:
    """A few, to look into."""
    return [f"no correct store answers so: {wrong}" for wrong in arm.wrong()[:5]]


def _wrong(arm: DecodersArm | TextsArm) -> list[str]:
    wrong = all_wrong_tokens(arm.answers, arm.undisturbed)
    return [f"request {number}: {count} wrong tokens" for number, count in wrong.items()]
