"""A small `tandem bench faults`: a retriever that is killed and whose disk fails, under clients."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from lab.bench.faults.document_history import acknowledged
from lab.bench.faults.documents_arm import documents_arm
from lab.bench.faults.faults import document_rows


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
