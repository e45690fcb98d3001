"""A draft model whose logits are no numbers, as with a damaged adapter: any draft will do, so the
answer goes on, and who is to blame is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tandem.backends.interface import ForwardRequest, Logits, never
from tandem.core.errors import InvalidArgument
from tandem.core.probs import SamplingParams
from tandem.core.randomness import SeededRandom
from tandem.runtime.session_jobs import DraftJob, DraftRequest
from tandem.runtime.tree_jobs import TreeDraftJob
from tandem.specdec.events import Drafted, DraftTask
from tandem.specdec.presets import PRESETS
from tandem.specdec.rules import acceptance_rule
from tandem.testing.scripted import ScriptedEngine, scripted_probs

VOCABULARY = 16


class Broken(ScriptedEngine):
    """Its second pass and all after it give NaN."""

    def __init__(self) -> None:
        super().__init__(VOCABULARY, scripted_probs(1, VOCABULARY))
        self.passes = 0

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        self.passes += 1
        answers = super().forward(batch, cancelled)
        return answers if self.passes == 1 else [np.full_like(each, np.nan) for each in answers]


def drafted(name: str, temperature: float, on_broken: Callable[[], None] | None) -> list[Drafted]:
    engine = Broken()
    preset = PRESETS[name].fitted(VOCABULARY)
    session = engine.open(20, spare=20)
    task = DraftTask(
        keep=0, token_ids=(1, 2), position=2, count=3, expansion=preset.expansion, alternatives=2
    )
    rule = acceptance_rule(preset, 3, SeededRandom(3))
    sampling = SamplingParams(temperature=temperature)
    request = DraftRequest(task, sampling, rule, preset, on_broken=on_broken)
    job = (TreeDraftJob if preset.expansion else DraftJob)(session, request)
    while True:
        (logits,) = engine.forward([job.request()])
        if job.take(logits):
            return job.result()[0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["coupled", "dsd", "dssd", "tslt", "mc-dsd", "auto"])
def test_drafts_go_on_and_who_is_to_blame_is_told(name: str, temperature: float) -> None:
    told: list[str] = []
    drafts = drafted(name, temperature, lambda: told.append("broken"))
    assert told
    assert len(drafts) == (14 if PRESETS[name].expansion else 3)
    for each in drafts:
        assert 0 <= each.token_id < VOCABULARY
        if len(each.draft_probs):
            assert each.draft_probs.sum() == pytest.approx(1.0, abs=1e-3)
            assert each.draft_probs[each.token_id] > 0


@pytest.mark.parametrize("name", ["coupled", "dssd", "mc-dsd"])
def test_where_nothing_else_is_to_blame_the_task_fails(name: str) -> None:
    with pytest.raises(InvalidArgument, match="logits"):
        drafted(name, 1.0, None)


def test_what_is_wrong_with_the_caller_s_settings_blames_nobody() -> None:
    told: list[str] = []
    engine = ScriptedEngine(VOCABULARY, scripted_probs(1, VOCABULARY))
    task = DraftTask(keep=0, token_ids=(1, 2), position=2, count=2)
    preset = PRESETS["dssd"]
    request = DraftRequest(
        task,
        replace(SamplingParams(), top_k=VOCABULARY + 1),
        acceptance_rule(preset, 3, SeededRandom(3)),
        preset,
        on_broken=lambda: told.append("broken"),
    )
    job = DraftJob(engine.open(20), request)
    (logits,) = engine.forward([job.request()])
    with pytest.raises(InvalidArgument):
        job.take(logits)
    assert not told
