"""Up to which number a decoder, a preset or a side's draft goes, and what is counted on the way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tandem.core.errors import InvalidArgument
from tandem.core.probs import SamplingParams, Truncation, truncate
from tandem.core.randomness import SeededRandom
from tandem.specdec.overrides import parse_overrides, with_overrides
from tandem.two_sided.protocol.decoder_machine import DecoderMachine, RelevanceEstimate
from tandem.two_sided.protocol.local_drafting import local_draft, local_drafting
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import (
    AGGREGATION_PRESETS,
    MAX_AHEAD,
    MAX_HEAD,
    MAX_REWEIGH_EVERY,
    MAX_TOP,
    Draw,
    LocalProbs,
    ProbsPayload,
)
from tests.unit.two_sided.decoder_frames import (
    MODEL,
    PROMPT,
    RELEVANCES,
    Engine,
    machine,
    opening,
    target,
)

PROBS = np.array([0.1, 0.45, 0.25, 0.2], dtype=np.float32)


def test_an_answer_has_one_token_at_least() -> None:
    assert machine(max_tokens=1).max_tokens == 1
    with pytest.raises(InvalidArgument) as refused:
        machine(max_tokens=0)
    assert refused.value.field == "max_tokens"
    assert machine(max_tokens=2, committed_ids=(4,)).max_tokens == 2
    with pytest.raises(InvalidArgument) as refused:
        machine(max_tokens=2, committed_ids=(4, 5))
    assert refused.value.field == "committed_ids"


def made(prompt: int, document: int, leading_length: int = 0) -> DecoderMachine:
    """In a context of 40."""
    return DecoderMachine(
        opening(),
        prompt_ids=(1,) * prompt,
        documents=[(1,) * document],
        model=MODEL,
        leading_length=leading_length,
    )


def test_prompt_and_document_leave_room_for_one_token() -> None:
    assert made(35, 4).max_tokens == 1
    assert made(35, 5, leading_length=1).max_tokens == 1
    for prompt, document, field in ((35, 5, "documents[0]"), (40, 1, "prompt"), (41, 1, "prompt")):
        with pytest.raises(InvalidArgument) as refused:
            made(prompt, document)
        assert refused.value.field == field
    assert made(39, 1, leading_length=1).max_tokens == 1


def test_drafts_and_those_that_became_tokens_are_counted() -> None:
    decoder = machine()
    engine = Engine(decoder)
    drafts = engine.steps()
    assert decoder.drafted_tokens == 4
    decoder.receive(target(decoder, drafts[0].token_id))
    decoder.receive(target(decoder, drafts[1].token_id, 49))
    assert decoder.accepted_tokens == 2
    assert (decoder.epoch, decoder.phase.value) == (1, "decoding")
    assert len(engine.steps()) == 4
    assert decoder.drafted_tokens == 8


def test_an_estimate_is_due_where_drafting_waits_for_it() -> None:
    decoder = machine(reweigh_every=2, ahead=3, max_tokens=3)
    assert decoder.work() is not None
    assert decoder.estimate() is None, "a work is under way"
    decoder.running = None
    engine = Engine(decoder)
    drafts = engine.steps()
    assert len(drafts) == 2
    answer = tuple(draft.token_id for draft in drafts)
    assert decoder.estimate() == RelevanceEstimate(len(PROMPT) + 2, answer), "for one more token"
    decoder.estimated(RelevanceEstimate(len(PROMPT) + 2, answer), RELEVANCES)
    assert decoder.estimate() is None
    assert len(engine.steps()) == 1
    full = machine(reweigh_every=2, ahead=2)
    Engine(full).steps()
    assert full.estimate() is None, "no more may be drafted"
    complete = machine(reweigh_every=2, ahead=3, max_tokens=2)
    Engine(complete).steps()
    assert complete.estimate() is None, "the answer is as long as it may be"


@pytest.mark.parametrize(
    ("field", "least", "most"),
    [("ahead", 1, MAX_AHEAD), ("top", 1, MAX_TOP), ("reweigh_every", 0, MAX_REWEIGH_EVERY)],
)
def test_the_bounds_of_a_preset_s_numbers(field: str, least: int, most: int) -> None:
    preset = AGGREGATION_PRESETS["dragon"]
    for number, allowed in ((least, True), (most, True), (least - 1, False), (most + 1, False)):
        changes: dict[str, Any] = {field: number}
        changed = replace(preset, **changes)
        if allowed:
            changed.validate()
        else:
            with pytest.raises(InvalidArgument) as refused:
                changed.validate()
            assert refused.value.field == field


@pytest.mark.parametrize(
    ("choices", "field"),
    [
        ({"truncation": Truncation(top_k=4)}, ""),
        ({"truncation": Truncation(top_k=5)}, "local_top_k"),
        ({"truncation": Truncation(top_k=-1)}, "local_top_k"),
        ({"truncation": Truncation(top_p=1.0)}, ""),
        ({"truncation": Truncation(top_p=0.0)}, "local_top_p"),
        ({"truncation": Truncation(top_p=1.01)}, "local_top_p"),
        ({"payload": ProbsPayload.FULL}, "precision"),
        ({"payload": ProbsPayload.FULL, "precision": "float32"}, ""),
        ({"payload": ProbsPayload.NONE}, ""),
        ({"payload": ProbsPayload.HEAD, "head": 1}, ""),
        ({"payload": ProbsPayload.HEAD, "head": MAX_HEAD}, ""),
        ({"payload": ProbsPayload.HEAD}, "head"),
        ({"payload": ProbsPayload.HEAD, "head": MAX_HEAD + 1}, "head"),
        ({"head": -1}, "head"),
        ({"cut_after_draw": True}, ""),
        ({"cut_after_draw": True, "payload": ProbsPayload.NONE}, "cut_after_draw"),
    ],
)
def test_what_of_a_distribution_can_be_sent(choices: dict[str, Any], field: str) -> None:
    probs = LocalProbs(**choices)
    if not field:
        probs.validate(4)
        return
    with pytest.raises(InvalidArgument) as refused:
        probs.validate(4)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("choices", "lossy"),
    [
        ({"payload": ProbsPayload.HEAD, "head": 1}, False),
        ({"payload": ProbsPayload.FULL, "precision": "float32"}, False),
        ({"payload": ProbsPayload.SPARSE, "precision": "float32"}, False),
        ({"payload": ProbsPayload.SPARSE}, True),
        ({"payload": ProbsPayload.HEAD, "head": 1, "truncation": Truncation(top_k=9)}, True),
        ({"payload": ProbsPayload.NONE, "truncation": Truncation(top_p=0.5)}, True),
        ({"payload": ProbsPayload.NONE, "draw": Draw.LIKELIEST}, True),
        ({"cut_after_draw": True, "precision": "float32"}, True),
    ],
)
def test_what_is_cut_or_rounded_before_it_is_drawn_from_is_lossy(
    choices: dict[str, Any], lossy: bool
) -> None:
    assert LocalProbs(**choices).lossy is lossy


def test_the_size_of_the_head_can_be_set_by_name() -> None:
    shorter = with_overrides(AGGREGATION_PRESETS["dragon"], parse_overrides(("head=8",)))
    shorter.validate()
    assert (shorter.probs.head, shorter.lossy) == (8, False)
    with pytest.raises(InvalidArgument, match="head"):
        with_overrides(shorter, parse_overrides(("head=0",))).validate()


def test_a_side_draws_from_what_it_sends() -> None:
    rng = SeededRandom(5)
    cut = LocalProbs(truncation=Truncation(top_k=2), precision="float32")
    for position in range(20):
        token, sent = local_draft(PROBS, cut, rng=rng, position=position, side=Side.DEVICE)
        np.testing.assert_array_equal(sent, truncate(PROBS, Truncation(top_k=2)))
        assert token in (1, 2)
    coarse = LocalProbs(truncation=Truncation(top_k=2))
    _, sent = local_draft(PROBS, coarse, rng=rng, position=0, side=Side.DEVICE)
    assert isinstance(sent, np.ndarray)
    assert (sent != truncate(PROBS, Truncation(top_k=2))).any()
    after = replace(cut, cut_after_draw=True)
    drawn = [
        local_draft(PROBS, after, rng=rng, position=position, side=Side.CLOUD)[0]
        for position in range(60)
    ]
    assert set(drawn) == {0, 1, 2, 3}
    silent = LocalProbs(Draw.LIKELIEST, ProbsPayload.NONE)
    assert local_draft(PROBS, silent, rng=rng, position=0, side=Side.CLOUD) == (1, None)
    one = [
        local_draft(PROBS, LocalProbs(), rng=rng, position=position, side=Side.DEVICE)[0]
        for position in range(60)
    ]
    two = [
        local_draft(PROBS, LocalProbs(), rng=rng, position=position, side=Side.CLOUD)[0]
        for position in range(60)
    ]
    assert one != two, "each side has its own noise"


def test_at_temperature_0_distributions_are_sent_only_where_they_are_mixed() -> None:
    greedy = SamplingParams(temperature=0.0)
    for name, preset in AGGREGATION_PRESETS.items():
        chosen = local_drafting(preset, greedy)
        mixed = name.startswith(("dragon", "drdg-tw"))
        assert chosen.probs.payload is (ProbsPayload.FULL if mixed else ProbsPayload.NONE)
        assert chosen.sampling == SamplingParams()
        assert chosen.probs.draw is Draw.LIKELIEST
        warm = SamplingParams(temperature=0.5)
        assert local_drafting(preset, warm).sampling == warm
        assert local_drafting(preset, warm).probs == preset.probs
