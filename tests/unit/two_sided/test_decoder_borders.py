"""Up to which number a decoder, a preset or a side's draft goes, and what is counted on the way."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tandem.core.errors import InvalidArgument
from tandem.core.probs import SamplingParams, Truncation, truncate
from tandem.core.processors import Processors
from tandem.core.randomness import SeededRandom
from tandem.specdec.overrides import with_overrides
from tandem.two_sided.protocol.decoder_machine import (
    DecoderMachine,
    DecoderPhase,
    LocalMixture,
)
from tandem.two_sided.protocol.local_drafting import local_draft, local_drafting
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import (
    AGGREGATION_PRESETS,
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


def test_an_estimate_is_due_where_drafting_waits_for_it() -> None:
    decoder = machine(reweigh_every=2, ahead=3, max_tokens=9)
    assert decoder.work() is not None
    assert decoder.estimate() is None, "a work is under way"
    decoder.running = None
    engine = Engine(decoder)
    drafts = engine.steps()
    assert len(drafts) == 2
    answer = tuple(draft.token_id for draft in drafts)
    assert decoder.estimate() == answer, "for one more token"
    decoder.estimated(answer, RELEVANCES)
    assert decoder.estimate() is None
    assert len(engine.steps()) == 1
    decoder.receive(target(decoder, *answer))
    assert len(engine.steps()) == 1, "its stretch has begun, and what is known of it is kept"
    full = machine(reweigh_every=2, ahead=2)
    Engine(full).steps()
    assert full.estimate() is None, "no more may be drafted"
    complete = machine(reweigh_every=2, ahead=3, max_tokens=2)
    Engine(complete).steps()
    assert complete.estimate() is None, "the answer is as long as it may be"


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
    shorter = with_overrides(AGGREGATION_PRESETS["dragon"], ("head=8",))
    shorter.validate()
    assert (shorter.probs.head, shorter.lossy) == (8, False)
    with pytest.raises(InvalidArgument, match="head"):
        with_overrides(shorter, ("head=0",)).validate()


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


def joined(*lengths: int, leading_length: int = 0) -> DecoderMachine:
    """Documents of these lengths in one sequence, with a prompt of 3 tokens in a context of 40."""
    return DecoderMachine(
        opening(joined=True),
        prompt_ids=PROMPT,
        documents=[(1,) * length for length in lengths],
        model=MODEL,
        leading_length=leading_length,
    )


def test_joined_documents_leave_room_for_one_token_together() -> None:
    assert joined(20, 16).max_tokens == 1
    assert joined(20, 17, leading_length=1).max_tokens == 1
    for lengths, leading_length in (((20, 17), 0), ((20, 18), 1)):
        with pytest.raises(InvalidArgument) as refused:
            joined(*lengths, leading_length=leading_length)
        assert refused.value.field == "documents"
    assert joined(10, 10).max_tokens == 17, "what is left of the context"
    plain = DecoderMachine(opening(joined=True), prompt_ids=PROMPT, documents=[], model=MODEL)
    assert plain.max_tokens == 20


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"end_ids": (49,)}, ""),
        ({"end_ids": (50,)}, "end_ids"),
        ({"committed_ids": (49,)}, ""),
        ({"committed_ids": (50,)}, "committed_ids"),
        ({"processors": Processors(banned_token_ids=(49,))}, ""),
        ({"processors": Processors(banned_token_ids=(50,))}, "banned_token_ids"),
        ({"sampling": SamplingParams(top_k=50)}, ""),
        ({"sampling": SamplingParams(top_p=1.5)}, "top_p"),
        ({"probs": LocalProbs(truncation=Truncation(top_k=50))}, ""),
        ({"probs": LocalProbs(truncation=Truncation(top_k=51))}, "local_top_k"),
        ({"vocabulary_hash": "hash", "vocabulary_size": 0}, ""),
        ({"vocabulary_hash": "", "vocabulary_size": 50}, ""),
    ],
)
def test_all_that_names_tokens_is_of_the_model_s_vocabulary(
    changes: dict[str, Any], field: str
) -> None:
    if not field:
        machine(**changes)
        return
    with pytest.raises(InvalidArgument) as refused:
        machine(**changes)
    assert refused.value.field == field


def test_an_estimate_has_one_number_for_each_document() -> None:
    decoder = machine(reweigh_every=2)
    Engine(decoder).steps()
    due = decoder.estimate()
    assert due is not None
    for relevances in ((1.0,), (1.0, 1.0, 1.0)):
        with pytest.raises(InvalidArgument, match="relevances"):
            decoder.estimated(due, relevances)
    assert decoder.estimate() == due


def test_what_processors_leave_of_each_document_is_its_weight() -> None:
    """Of the first document's three quarters a third is left, of the second's quarter all."""
    mixture = LocalMixture.of((math.log(3), 0.0))
    assert mixture.weights == pytest.approx((0.75, 0.25))
    assert mixture.log_mass == pytest.approx(math.log(4))
    weights, left = mixture.left((math.log(1 / 3), 0.0))
    assert weights.tolist() == pytest.approx([0.5, 0.5])
    assert left == pytest.approx(math.log(0.5))
    weights, left = mixture.left((-math.inf, 0.0))
    assert weights.tolist() == [0.0, 1.0]
    assert left == pytest.approx(math.log(0.25))
    with pytest.raises(InvalidArgument, match="relevances"):
        mixture.left((-math.inf, -math.inf))
    alone = LocalMixture.of((0.0, -math.inf))
    weights, left = alone.left((math.log(0.5), 0.0))
    assert weights.tolist() == [1.0, 0.0]
    assert left == pytest.approx(math.log(0.5))


def test_a_complete_answer_stays_complete_when_its_text_ends() -> None:
    decoder = machine(max_tokens=1)
    decoder.receive(target(decoder, 5))
    decoder.text_ended()
    assert decoder.phase is DecoderPhase.COMPLETE
    stopped = machine()
    stopped.text_ended()
    assert stopped.phase is DecoderPhase.STOPPED
    assert stopped.estimate() is None
