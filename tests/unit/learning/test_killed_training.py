"""A process that is killed while it trains loses the step that it was taking, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tandem.backends.interface import never
from tandem.learning.replay_buffer import ReplayBuffer
from tandem.learning.store import TEXTS
from tandem.learning.tenant import TenantLearning
from tests.programs import REPOSITORY
from tests.unit.learning.test_tenant import Noted
from tests.unit.learning.unigrams import VOCABULARY, answers, setup

TEXTS_TOLD = 60
AFTER = 4
"""Steps that are compared after the kill."""

TRAINS = """
import sys
from pathlib import Path
from tests.unit.learning.test_killed_training import begun, take_step

learning, noted = begun(Path(sys.argv[1]), records=True)
while True:
    take_step(learning, len(noted.parts) + 1, noted)
    learning.keep_training()
    print(len(noted.parts), flush=True)
"""


def begun(folder: Path, *, records: bool) -> tuple[TenantLearning, Noted]:
    noted = Noted()
    learning = TenantLearning(folder, setup(noted))
    learning.read()
    for text in answers(TEXTS_TOLD) if records else ():
        learning.record(text)
    return learning, noted


def take_step(learning: TenantLearning, number: int, noted: Noted) -> None:
    """Train up to the step of this number; what is judged in between is concluded."""
    while len(noted.parts) < number:
        assert learning.due
        learning.work(never)
        if learning.evaluated:
            learning.conclude()


@pytest.mark.parametrize("steps", [3, 70])
def test_a_kill_in_mid_training_loses_nothing_but_the_step(steps: int, tmp_path: Path) -> None:
    """Fifty steps are judged: of the seventieth an adapter is in use."""
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    folder = tmp_path / "killed" / "tenant"
    with subprocess.Popen(
        [sys.executable, "-c", TRAINS, str(folder)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    ) as trains:
        assert trains.stdout is not None
        for line in trains.stdout:
            if int(line) == steps:
                trains.kill()  # -9: it is in its next steps
                break
        last = [int(line) for line in trains.stdout.read().split()]
    kept = max([steps, *last])

    whole, all_parts = begun(tmp_path / "whole" / "tenant", records=True)
    take_step(whole, kept + AFTER + 1, all_parts)
    resumed, parts = begun(folder, records=False)
    take_step(resumed, AFTER, parts)
    # A step may have been kept that was not yet told.
    assert parts.parts in [all_parts.parts[first : first + AFTER] for first in (kept, kept + 1)]
    store = ReplayBuffer(folder / TEXTS, 2**16, "vocabulary", VOCABULARY)
    assert len(list(store.read())) == TEXTS_TOLD
    assert (resumed.adapter is not None) == (steps > 50)
