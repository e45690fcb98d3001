"""The decoder's machine: what it drafts, and what targets and relevances make void."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tandem.core.errors import FailedPrecondition, InvalidArgument, ProtocolError
from tandem.core.probs import SamplingParams
from tandem.core.processors import Processors
from tandem.core.tokens import PrefixMismatch
from tandem.specdec.messages import Cancel, Ping, Pong
from tandem.two_sided.protocol.decoder_machine import (
    DecoderMachine,
    DecoderPhase,
    LocalDraft,
    probs_sampling,
)
from tandem.two_sided.protocol.draft_head import DraftHead
from tandem.two_sided.protocol.messages import (
    DecodingOpened,
    SideDraftFrame,
)
from tandem.two_sided.protocol.mixture import log_mass
from tests.unit.two_sided.decoder_frames import (
    DOCUMENTS,
    MODEL,
    PROMPT,
    RELEVANCES,
    SESSION,
    VOCABULARY,
    Engine,
    machine,
    next_token,
    opening,
    prefix,
    target,
)


def test_opened_says_what_is_granted() -> None:
    found = machine(committed_ids=(4,), max_tokens=100).opened()
    assert found.max_tokens == 40 - 4 - 3  # the longest document decides
    plain = DecoderMachine(opening(documents=()), prompt_ids=PROMPT, documents=[], model=MODEL)
    assert plain.opened().log_mass == -float("inf")


def test_joined_documents_are_one_sequence_that_leaves_room_together() -> None:
    """Before, each had a sequence, of which the longest decided."""
    joined = machine(joined=True, max_tokens=100)
    opened = joined.opened()
    assert opened.max_tokens == 40 - 3 - (4 + 2)
    assert opened.document_tokens == (4, 2)
    assert opened.log_mass == pytest.approx(log_mass(RELEVANCES))
    work = joined.work()
    assert work is not None
    assert work.mixture.weights == (1.0,)
    apart = machine().work()
    assert apart is not None
    assert len(apart.mixture.weights) == 2
    with pytest.raises(InvalidArgument, match="reweigh_every"):
        machine(joined=True, reweigh_every=2)
    long = [tuple(range(1, 20)), tuple(range(1, 20))]
    with pytest.raises(InvalidArgument, match="documents: 38 tokens; 37 of the context"):
        DecoderMachine(opening(joined=True), prompt_ids=PROMPT, documents=long, model=MODEL)


def test_a_matching_target_lets_the_window_move_and_feeds_nothing_again() -> None:
    decoder = machine()
    engine = Engine(decoder)
    drafts = engine.steps()
    decoder.receive(target(decoder, drafts[0].token_id, drafts[1].token_id))
    assert [draft.base for draft in engine.steps()] == [7, 8]
    assert all(decoder.stands(draft) for draft in drafts[2:])
    assert not any(decoder.stands(draft) for draft in drafts[:2]), "committed"
    assert engine.fed == 3 + 5  # the prompt once, and every draft but the last
    assert (decoder.drafted_tokens, decoder.accepted_tokens) == (6, 2)


def test_a_target_that_overtakes_stops_the_work_and_voids_nothing() -> None:
    decoder = machine()
    engine = Engine(decoder)
    work = decoder.work()
    decoder.receive(target(decoder, 30, 31))
    assert decoder.running is None
    assert work is not None
    assert decoder.drafted(work, LocalDraft(5, None, 3), 0.0) is None
    draft = engine.step()
    assert draft is not None
    assert draft.base == 5
    assert draft.token_id == next_token((*PROMPT, 30, 31))


def scores_of(answer_ids: Sequence[int]) -> tuple[float, float]:
    return float(sum(answer_ids) % 7), float(sum(answer_ids) % 5)


@pytest.mark.parametrize("seed", range(60))
def test_estimated_relevances_are_a_function_of_the_text(seed: int) -> None:
    """Whatever is drafted and taken back, committed in strides or resumed."""
    dice = random.Random(seed)
    every = dice.choice([1, 2, 3, 5])
    committed = tuple(dice.randrange(VOCABULARY) for _ in range(dice.choice([0, 4])))
    changes = {"reweigh_every": every, "committed_ids": committed, "ahead": dice.choice([1, 3, 8])}
    decoder = machine(**changes)
    engine = Engine(decoder)
    late: list[tuple[int, ...]] = []
    while decoder.phase is DecoderPhase.DECODING:
        for _ in range(dice.randrange(8)):
            draft = engine.step()
            if draft is not None:
                answer = engine.text[len(PROMPT) :]
                known = answer[: (draft.base - len(PROMPT)) // every * every]
                wanted = scores_of(known) if known else RELEVANCES
                assert draft.log_mass == log_mass(wanted)
            elif (estimate := decoder.estimate()) is not None:
                late.append(estimate)
                while late and dice.random() < 0.8:  # one may come when its text is gone
                    done = late.pop()
                    decoder.estimated(done, scores_of(done))
            else:
                break
        left = decoder.capacity - len(decoder.committed)
        expected = next_token(decoder.committed.since(0))
        tokens = [expected] if dice.random() < 0.7 else [dice.randrange(VOCABULARY) for _ in "abc"]
        decoder.receive(target(decoder, *tokens[:left]))


def test_without_documents_nothing_is_estimated() -> None:
    plain = DecoderMachine(
        opening(documents=(), reweigh_every=2), prompt_ids=PROMPT, documents=[], model=MODEL
    )
    assert len(Engine(plain).steps()) == 4
    assert plain.estimate() is None


def test_what_begins_every_text_is_fed_with_the_document_only() -> None:
    decoder = DecoderMachine(
        opening(), prompt_ids=PROMPT, documents=[(1, 8, 9), (1, 5)], model=MODEL, leading_length=1
    )
    work = decoder.work()
    assert work is not None
    assert (work.keep, work.token_ids, work.position) == (1, (2, 3), 3)
    assert decoder.max_tokens == 20
    longest = (1, *range(1, 36))
    assert (
        DecoderMachine(
            opening(), prompt_ids=PROMPT, documents=[longest], model=MODEL, leading_length=1
        ).max_tokens
        == 40 - 2 - 36
    )


@pytest.mark.parametrize("seed", range(200))
def test_every_draft_follows_the_settled_text_whatever_happens(seed: int) -> None:
    """Targets that match, differ or overtake, at any moment of a work."""
    dice = random.Random(seed)
    ahead = dice.choice([1, 2, 4, 8])
    leading_length = dice.choice([0, 1])
    decoder = DecoderMachine(
        opening(ahead=ahead),
        prompt_ids=PROMPT,
        documents=DOCUMENTS,
        model=MODEL,
        leading_length=leading_length,
    )
    engine = Engine(decoder)
    heard: list[SideDraftFrame] = []
    while decoder.phase is DecoderPhase.DECODING:
        for _ in range(dice.randrange(6)):
            draft = engine.step()
            if draft is None:
                break
            text = [*decoder.committed.since(0), *(d.token_id for d in heard)]
            assert draft.prefix_hash == prefix(text)
            assert draft.base == len(text) < len(decoder.committed) + ahead
            assert draft.token_id == next_token(text)
            assert decoder.stands(draft)
            heard.append(draft)
        left = decoder.capacity - len(decoder.committed)
        count = dice.randint(1, min(left, 3))
        tokens = [draft.token_id for draft in heard[:count]]
        if dice.random() < 0.5 or not tokens:
            tokens = [*tokens[: dice.randrange(len(tokens) + 1)], dice.randrange(VOCABULARY)]
        matching = len(heard) >= len(tokens) and all(
            draft.token_id == token for draft, token in zip(heard, tokens, strict=False)
        )
        decoder.receive(target(decoder, *tokens[:left]))
        before, heard = heard, heard[len(tokens) :] if matching else []
        assert [draft for draft in before if decoder.stands(draft)] == heard
    assert len(decoder.committed) == decoder.capacity


def test_an_answer_ends_with_its_last_target() -> None:
    decoder = machine()
    Engine(decoder).steps()
    decoder.receive(target(decoder, 5, last=True))
    assert decoder.work() is None
    with pytest.raises(ProtocolError, match="target in state complete"):
        decoder.receive(target(decoder, 6))


def test_targets_under_way_when_a_stop_string_is_complete_are_taken() -> None:
    decoder = machine()
    decoder.receive(target(decoder, 5))
    decoder.text_ended()
    assert decoder.work() is None
    decoder.receive(target(decoder, 6))
    decoder.receive(target(decoder, last=True))
    assert decoder.phase is DecoderPhase.COMPLETE


def test_a_full_answer_is_settled() -> None:
    decoder = machine(max_tokens=2)
    assert [draft.base for draft in Engine(decoder).steps()] == [3, 4]
    decoder.receive(target(decoder, 5, 6))
    assert decoder.phase is DecoderPhase.COMPLETE


def test_nothing_is_decoded_for_a_session_of_text_alone() -> None:
    decoder = machine(ahead=0)
    assert decoder.work() is None
    decoder.receive(target(decoder, 5))
    assert decoder.work() is None


def test_a_dead_end_counts_only_where_the_text_has_come_to_it() -> None:
    decoder = machine(processors=Processors(allowed_token_ids=(4, 5)))
    work = decoder.work()
    assert work is not None
    assert work.answer_ids == ()
    for token in (4, 5):
        assert decoder.drafted(work, LocalDraft(token, None, 2, -0.5), 0.0) is not None
    decoder.ended_dead(work)
    assert decoder.work() is None, "it may never come"
    decoder.receive(target(decoder, 4))
    assert decoder.work() is None
    decoder.receive(target(decoder, 5))
    again = decoder.work()
    assert again is not None
    assert again.answer_ids == (4, 5)
    with pytest.raises(InvalidArgument, match="allowed_token_ids: no token may follow"):
        decoder.ended_dead(again)


def test_another_text_leads_out_of_a_dead_end() -> None:
    decoder = machine(processors=Processors(banned_token_ids=(1,)))
    work = decoder.work()
    assert work is not None
    draft = decoder.drafted(work, LocalDraft(4, None, 2, -0.5), 0.0)
    assert draft is not None
    assert draft.log_mass == work.mixture.log_mass - 0.5
    decoder.ended_dead(work)
    decoder.receive(target(decoder, 3))
    again = decoder.work()
    assert again is not None
    decoder.ended_dead(work)  # of a text that is no more
    assert decoder.running is again


def test_pings_and_cancel() -> None:
    decoder = machine()
    (pong,) = decoder.receive(Ping(SESSION, 3, decoder.committed.prefix, nonce=5))
    assert pong == Pong(SESSION, 3, decoder.committed.prefix, nonce=5)
    decoder.receive(Cancel(SESSION, 0, 0))
    assert decoder.phase is DecoderPhase.ENDED
    with pytest.raises(ProtocolError, match="Ping in state ended"):
        decoder.receive(Ping(SESSION, 0, 0, nonce=5))


def test_at_temperature_0_the_distributions_are_whole() -> None:
    assert probs_sampling(SamplingParams(0.0, 5)) == SamplingParams(1.0, 5)
    assert probs_sampling(SamplingParams(0.3)) == SamplingParams(0.3)


@pytest.mark.parametrize(
    ("changes", "prompt", "documents", "reason"),
    [
        ({}, (), DOCUMENTS, "prompt: is empty"),
        ({}, (1, VOCABULARY), DOCUMENTS, r"prompt: \[1\]"),
        ({}, (1,) * 40, DOCUMENTS, "prompt: 40 tokens; the context holds 40"),
        ({}, PROMPT, [(5,), ()], r"documents\[1\]: is empty"),
        ({}, PROMPT, [(5,), (-1,)], r"documents\[1\]: \[0\] = -1"),
        ({}, PROMPT, [(5,), (5,) * 37], r"documents\[1\]: 37 tokens; 37 of the context are left"),
        ({"committed_ids": (4,) * 20}, PROMPT, DOCUMENTS, "committed_ids: the answer is complete"),
        ({"committed_ids": (99,)}, PROMPT, DOCUMENTS, "committed_ids: .* 99"),
        ({"max_tokens": 0}, PROMPT, DOCUMENTS, "max_tokens: must be at least 1"),
        ({"sampling": SamplingParams(-1)}, PROMPT, DOCUMENTS, "temperature: "),
    ],
)
def test_openings_are_checked(
    changes: dict[str, Any],
    prompt: tuple[int, ...],
    documents: list[tuple[int, ...]],
    reason: str,
) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        DecoderMachine(opening(**changes), prompt_ids=prompt, documents=documents, model=MODEL)


@pytest.mark.parametrize("changes", [{"vocabulary_hash": "x"}, {"vocabulary_size": 49}])
def test_another_vocabulary_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(FailedPrecondition):
        machine(**changes)
    machine(vocabulary_hash="hash", vocabulary_size=VOCABULARY)


@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ({"session": 1}, InvalidArgument, "session: 1"),
        ({"base": 4}, InvalidArgument, "base: 4 is not where the committed text ends, 3"),
        ({"prefix_hash": 1}, PrefixMismatch, "before position 3"),
        ({"token_ids": (50,)}, InvalidArgument, r"token_ids: \[0\] = 50"),
        ({"token_ids": ()}, InvalidArgument, "token_ids: a target that commits nothing"),
        ({"token_ids": (1,) * 21}, InvalidArgument, "token_ids: more than max_tokens, 20"),
    ],
)
def test_a_bad_target_changes_nothing(
    changes: dict[str, Any], error: type[Exception], reason: str
) -> None:
    decoder = machine()
    Engine(decoder).step()
    running = decoder.running
    with pytest.raises(error, match=reason):
        decoder.receive(target(decoder, 5, **changes))
    assert (len(decoder.committed), decoder.running) == (3, running)


def test_a_second_open_is_no_transition() -> None:
    with pytest.raises(ProtocolError, match="open in state decoding"):
        machine().receive(opening())


def test_a_decoder_says_all_of_itself_when_it_opens() -> None:
    found = machine(committed_ids=(4,), ahead=3).opened()
    assert found == DecodingOpened(
        session=9,
        base=4,
        prefix_hash=prefix((*PROMPT, 4)),
        model_name="m",
        vocabulary_hash="hash",
        vocabulary_size=50,
        context_length=40,
        eos_token_ids=frozenset({0}),
        prompt_ids=PROMPT,
        log_mass=log_mass(RELEVANCES),
        max_tokens=20,
        document_tokens=(4, 2),
    )


def test_a_draft_goes_with_what_is_known_of_it() -> None:
    decoder = machine(committed_ids=(4,))
    work = decoder.work()
    assert work is not None
    known = DraftHead(np.array([6]), np.array([1.0]))
    assert decoder.drafted(work, LocalDraft(6, None, 4), 0.5) is not None
    found = decoder.drafted(work, LocalDraft(7, known, 5, log_left=-0.5), 0.25)
    assert found == SideDraftFrame(
        session=9,
        base=5,
        prefix_hash=prefix((*PROMPT, 4, 6)),
        token_id=7,
        probs=known,
        log_mass=log_mass(RELEVANCES) - 0.5,
        committed=4,
        decode_s=0.25,
    )
