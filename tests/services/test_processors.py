"""Logits processors through the whole suite: every row of every pass, on both ends, follows its own
text, whatever drafted it."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from tandem.core.distribution import LogitsDistribution
from tandem.core.probs import SamplingParams, probs_from_logits
from tandem.core.processors import NO_PROCESSORS, LogitsProcessor, Processors, RowsAfter
from tandem.generation.request import GenerationRequest
from tandem.net.status import Rejected
from tandem.netem.tcp_emulator import TcpLinkEmulator
from tandem.specdec.presets import PRESETS
from tandem.testing.scripted import scripted_probs
from tests.services.scripted_suite import (
    VOCABULARY,
    answer_over,
    emulated,
    scripted_suite,
    summary_of,
    target_engine,
)

PROBS = scripted_probs(1, VOCABULARY, sharpness=9.0)
PROMPT = tuple(ord(letter) % VOCABULARY for letter in "process")
SAMPLING = SamplingParams(0.9, min_p=0.001, typical_p=0.99)
PROCESSORS = Processors(
    logit_bias=((3, 1.5), (40, -2.0)),
    presence_penalty=0.75,
    frequency_penalty=1.5,
    repetition_penalty=1.25,
    banned_token_ids=(7, 8, 9),
    allowed_token_ids=tuple(range(1, 50)),
)
TELLING = [name for name, preset in PRESETS.items() if preset.cloud_draws]
INVARIANT = [name for name in TELLING if PRESETS[name].acceptance == "gumbel"]


def asking(preset: str, **more: Any) -> GenerationRequest:
    own: dict[str, Any] = {"sampling": SAMPLING, "processors": PROCESSORS}
    own |= {"max_tokens": 40, "seed": 5, **more}
    return GenerationRequest("process", preset).with_fields(**own)


def logits_after(answer: tuple[int, ...]) -> np.ndarray:
    logits = np.log(PROBS((*PROMPT, *answer)))
    return LogitsProcessor(PROCESSORS, PROMPT).processed(logits, answer)


def own_text(seed: int, count: int) -> tuple[int, ...]:
    """What the noise takes of the processed distributions, one position after the other."""
    answer: tuple[int, ...] = ()
    for _ in range(count):
        position = len(PROMPT) + len(answer)
        taken = LogitsDistribution(logits_after(answer), SAMPLING).coupled_token(seed, position)
        answer = (*answer, taken)
    return answer


async def test_under_coupling_the_text_is_that_of_the_processed_target() -> None:
    assert len(INVARIANT) > 3
    texts = {seed: own_text(seed, 24) for seed in (1, 2)}
    async with scripted_suite() as suite:
        for preset, seed in zip(INVARIANT, cycle(texts), strict=False):
            answer = await suite.client.generate(asking(preset, seed=seed, max_tokens=24))
            assert tuple(answer.token_ids) == texts[seed], preset
        alone = await suite.client.generate(asking("ar", seed=1))
    assert len(alone.token_ids) == 40


async def test_the_log_probabilities_of_every_preset_are_of_the_processed_target() -> None:
    async with scripted_suite() as suite:
        for preset in TELLING:
            told = await suite.client.generate(asking(preset, logprobs=True, max_tokens=16))
            assert len(told.token_ids) == 16
            for index, token in enumerate(told.token_ids):
                probs = probs_from_logits(logits_after(tuple(told.token_ids[:index])), SAMPLING)
                assert told.logprobs[index] == pytest.approx(math.log(probs[token]), abs=1e-4)


async def test_edge_and_cloud_agree_on_every_row() -> None:
    """The same model on both ends: a draft whose row had followed another text would be rejected
    soon. Draft distributions that are cut or rounded differ from the target's anyway."""
    async with scripted_suite(draft=target_engine()) as suite:
        for name, preset in PRESETS.items():
            answer = await suite.client.generate(asking(name, max_tokens=16))
            assert {*answer.token_ids} <= {*range(1, 50)} - {7, 8, 9}, name
            exact = not preset.truncation.cuts and preset.uplink_precision == "float32"
            if preset.drafts and exact and preset.schedule.stop_and_wait:
                assert summary_of(answer).accepted == summary_of(answer).drafted, name


@pytest.mark.parametrize("preset", ["coupled", "stream", "ar"])
async def test_a_resumed_answer_goes_on_as_if_nothing_had_happened(preset: str) -> None:
    """The cloud's state of the processors is that of the committed text it is told."""
    links: list[TcpLinkEmulator] = []
    way = lambda address: emulated(address, links, 0.005)  # noqa: E731
    async with scripted_suite(path=way) as suite:
        answer = await answer_over(links[0], suite.client, asking(preset))
    assert tuple(answer.token_ids) == own_text(5, 40)
    assert summary_of(answer).resumes > 0


async def test_without_any_there_is_no_processor_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """No object, no row touched: they cost those who ask for none nothing."""

    def refuse(*arguments: object, **named: object) -> None:
        raise AssertionError("nobody asked for a processor")

    for kind in (LogitsProcessor, RowsAfter):
        monkeypatch.setattr(kind, "__init__", refuse)
    async with scripted_suite() as suite:
        for preset in ("ar", "coupled", "dssd", "mc-dsd"):
            answer = await suite.client.generate(asking(preset, processors=NO_PROCESSORS))
            assert answer.token_ids


async def test_what_cannot_be_is_refused_at_the_door() -> None:
    too_high = replace(PROCESSORS, banned_token_ids=(VOCABULARY,))
    async with scripted_suite() as suite:
        with pytest.raises(Rejected, match="banned_token_ids"):
            await suite.client.generate(asking("coupled", processors=too_high))
