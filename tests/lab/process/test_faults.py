"""A small `tandem bench faults`: a retriever that is killed and whose disk fails, under clients;
and a suite whose drafts are remembered and learned."""

from __future__ import annotations

import random
import urllib.request
from math import inf
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lab.bench.faults.document_history import acknowledged
from lab.bench.faults.documents_arm import documents_arm
from lab.bench.faults.faults import document_rows
from lab.bench.faults.text_history import OK, all_wrong_tokens, improper_ends
from lab.bench.faults.texts_arm import TextsArm, texts_arm
from lab.bench.harness.models import Models

STEPS = "tandem_learning_steps_total"


@pytest.mark.timeout(300)
async def test_no_acknowledged_document_is_lost(tmp_path: Path) -> None:
    source = random.Random(5)
    async with documents_arm(tmp_path, seed=5) as arm:
        kinds = [*arm.breakable, "kill -9"]
        for kind in arm.breakable:
            await arm.disturbed(kind, source)
        await arm.killed(source)
        if arm.switches is not None:
            await arm.not_opened(arm.switches)
            await arm.not_renamed("new")
            kinds += ["open", "rename"]
    assert arm.wrong() == []
    assert acknowledged(arm.changes) > 10
    assert len(arm.reads) > 10
    assert [fault.kind for fault in arm.faults] == kinds
    noticed = [fault for fault in arm.faults if fault.kind != "rename"]  # of a retriever of its own
    assert all(fault.reported_s is not None for fault in noticed), "a fault that did nothing"
    assert arm.tracebacks == 0
    (whole,) = (row for row in document_rows(arm) if row["fault"] == "all")
    assert (whole["changes_lost"], whole["reads"]) == (0, len(arm.reads))


@pytest.mark.timeout(400)
async def test_no_fault_changes_a_text_where_drafts_are_remembered_and_learned(
    tmp_path: Path,
) -> None:
    """Kills, cuts and stalls of a suite that remembers texts on both sides, and whose draft model
    is trained between and beside the answers."""
    source = random.Random(6)
    async with texts_arm(tmp_path, seed=6, learning=Models()) as arm:
        await arm.blackholed(source)
        await arm.stalled("verifier", source)
        await arm.rested(lambda: trains(arm))
        drafted = figures(arm)
        await arm.killed("drafter", source)
        await arm.stalled("drafter", source)
        await arm.killed("verifier", source)
        await arm.blackholed(source)
        await arm.rested(lambda: trains(arm))
        await arm.killed("aggregator", source)
        again = figures(arm)
    assert all_wrong_tokens(arm.answers, arm.undisturbed) == {}
    assert improper_ends(arm.answers) == []
    assert len([answer for answer in arm.answers if answer.status == OK]) > 20
    assert sum(answer.links_lost for answer in arm.answers) > 0
    assert [arm.flows_s(fault) < inf for fault in arm.faults] == [True] * 7
    for each in (drafted, again):
        assert each["tandem_memory_tokens_total"] > 0, "nothing was drafted from earlier texts"
        assert each.get(STEPS, 0.0) > 0, "nothing was learned"


def trains(arm: TextsArm) -> bool:
    return figures(arm).get(STEPS, 0.0) > 0


def figures(arm: TextsArm) -> dict[str, float]:
    """The drafter's metrics; those of one name are added up."""
    address = f"http://127.0.0.1:{arm.suite.metrics['drafter']}/metrics"
    with urllib.request.urlopen(address, timeout=30) as answer:
        page = answer.read().decode()
    summed: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            summed[sample.name] = summed.get(sample.name, 0.0) + sample.value
    return summed
