"""Every field of each frame that the machines of a two-sided answer make: a field that is left out
or taken from elsewhere would show as another frame."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tandem.core.errors import FailedPrecondition
from tandem.core.probs import SamplingParams
from tandem.core.processors import Processors
from tandem.core.randomness import SeededRandom
from tandem.core.tokens import EMPTY_PREFIX, PrefixedTokens, TokenSource, extend_prefix
from tandem.specdec.messages import Ping
from tandem.two_sided.protocol.decoder_machine import DecoderMachine, LocalDraft
from tandem.two_sided.protocol.draft_head import DraftHead
from tandem.two_sided.protocol.messages import (
    KV_PART_BYTES,
    AggregationRequest,
    CollaborationOpen,
    CollaborationOpened,
    ContextDocument,
    DecodingOpen,
    DecodingOpened,
    DecodingTarget,
    KvModel,
    SideDraftFrame,
    TargetFrame,
    ToDecoder,
    ToPeer,
)
from tandem.two_sided.protocol.mixture import Side, coupled_side, log_mass, side_weights
from tandem.two_sided.protocol.presets import (
    AGGREGATION_PRESETS,
    LocalProbs,
    Placement,
    ProbsPayload,
)
from tandem.two_sided.protocol.side_machine import SideMachine
from tests.unit.two_sided.decoder_frames import DOCUMENTS, MODEL, PROMPT, RELEVANCES, opening
from tests.unit.two_sided.test_side_machine import device, frame, own, request_for, told
from tests.unit.two_sided.test_side_machine import head as prefix_after

DRAGON = AGGREGATION_PRESETS["dragon"]
SAMPLING = SamplingParams(temperature=0.5, top_k=3)
BANNED = Processors(banned_token_ids=(9,))
REQUEST = AggregationRequest(
    session=7,
    prompt_ids=(1, 2, 3),
    vocabulary_hash="hash",
    vocabulary_size=50,
    sampling=SAMPLING,
    seed=11,
    max_tokens=20,
    preset=replace(DRAGON, placement=Placement.CLOUD, ahead=5, reweigh_every=6),
    committed_ids=(4, 5),
    eos_token_ids=frozenset({0}),
    query="which?",
    documents=3,
    processors=BANNED,
)
TEXTS = (ContextDocument("one", 0.5), ContextDocument("two", -0.5, imported=True))


def prefix(*token_ids: int) -> int:
    return extend_prefix(EMPTY_PREFIX, token_ids)


def test_a_session_at_a_decoder_opens_with_all_that_the_request_says() -> None:
    found = REQUEST.decoding_opening(Side.CLOUD, prompt="a question", documents=TEXTS)
    assert found == DecodingOpen(
        session=7,
        base=0,
        prefix_hash=0,
        prompt="a question",
        committed_ids=(4, 5),
        documents=TEXTS,
        sampling=SAMPLING,
        seed=11,
        side=Side.CLOUD,
        probs=LocalProbs(payload=ProbsPayload.HEAD, head=64),
        ahead=5,
        max_tokens=20,
        preset="dragon",
        reweigh_every=6,
        processors=BANNED,
        joined=False,
    )


@pytest.mark.parametrize("name", AGGREGATION_PRESETS)
def test_documents_are_joined_where_one_side_decodes_alone(name: str) -> None:
    request = replace(REQUEST, preset=AGGREGATION_PRESETS[name])
    found = request.decoding_opening(Side.DEVICE, prompt="a question", documents=TEXTS)
    assert found.joined is (name in {"crcg-device", "crcg-cloud", "drcg-text", "drcg-kv"})
    assert found.preset == name


def test_a_stream_to_the_cloud_opens_at_the_committed_text() -> None:
    committed = PrefixedTokens((1, 2, 3, 8, 9))
    found = REQUEST.opening(committed, 0.25)
    assert found == CollaborationOpen(
        session=7,
        base=5,
        prefix_hash=prefix(1, 2, 3, 8, 9),
        request=replace(REQUEST, committed_ids=(8, 9)),
        log_mass=0.25,
    )
    assert found.answer_header == {
        "session": 7,
        "base": 5,
        "prefix_hash": prefix(1, 2, 3, 8, 9),
    }


def test_keys_and_values_are_of_one_model_whatever_it_is_called() -> None:
    model = KvModel("weights of the first", "vocabulary", "first")
    model.check_used_by(KvModel("weights of the first", "vocabulary", "another name"))
    for other in (
        KvModel("weights of another", "vocabulary", "first"),
        KvModel("weights of the first", "another vocabulary", "first"),
    ):
        with pytest.raises(FailedPrecondition) as refused:
            model.check_used_by(other)
        words = str(refused.value)
        assert words.startswith("document_kv: of another model; fetch the documents' text instead")
        assert "here are of first (weights weights of t, vocabulary vocabulary)" in words
        assert f"(weights {other.weights[:12]}, vocabulary {other.vocabulary_hash[:12]})" in words
    with pytest.raises(FailedPrecondition, match=r"of a model \(weights not named, vocabulary v\)"):
        KvModel("", "v").check_used_by(KvModel("w", "v"))


def test_a_chunk_of_keys_and_values_fits_the_smallest_message_that_a_service_takes() -> None:
    """64 KiB with what surrounds the chunk. Other releases send and expect chunks of this size."""
    assert KV_PART_BYTES == 61_440


def decoder(leading_length: int = 0, **changes: object) -> DecoderMachine:
    return DecoderMachine(
        opening(**changes),
        prompt_ids=PROMPT,
        documents=DOCUMENTS,
        model=MODEL,
        leading_length=leading_length,
    )


def test_a_decoder_says_all_of_itself_when_it_opens() -> None:
    found = decoder(committed_ids=(4,), ahead=3).opened()
    assert found == DecodingOpened(
        session=9,
        base=4,
        prefix_hash=prefix(*PROMPT, 4),
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
    machine = decoder(committed_ids=(4,))
    work = machine.work()
    assert work is not None
    known = DraftHead(np.array([6]), np.array([1.0]))
    assert machine.drafted(work, LocalDraft(6, None, 4), 0.5) is not None
    found = machine.drafted(work, LocalDraft(7, known, 5, log_left=-0.5), 0.25)
    assert found == SideDraftFrame(
        session=9,
        base=5,
        prefix_hash=prefix(*PROMPT, 4, 6),
        token_id=7,
        probs=known,
        log_mass=log_mass(RELEVANCES) - 0.5,
        committed=4,
        decode_s=0.25,
    )


def test_a_side_s_draft_goes_to_the_other_side_with_what_is_known_of_it() -> None:
    machine = device("dragon placement=cloud")
    machine.receive(Ping(1, 2, prefix_after(()), nonce=1), 1.0)
    known = DraftHead(np.array([0]), np.array([1.0]))
    drafted = own(token=3, probs=known, log_mass=0.5, decode_s=0.25)
    (sent,) = told(machine.drafted(drafted, 3.5), SideDraftFrame)
    assert sent == SideDraftFrame(
        session=1,
        base=2,
        prefix_hash=prefix_after(()),
        token_id=3,
        probs=known,
        log_mass=0.5,
        committed=2,
        decode_s=0.25,
        held_s=2.5,
        heard=2,
    )


def test_the_cloud_opens_with_its_weight_and_its_limit() -> None:
    machine = SideMachine(Side.CLOUD, request_for("dragon-device"), peer_log_mass=0.0)
    assert machine.opened(1.5, 0.0) == [
        ToPeer(
            CollaborationOpened(
                session=1,
                base=2,
                prefix_hash=prefix_after(()),
                log_mass=1.5,
                max_tokens=4,
            )
        )
    ]


def test_a_decided_token_goes_to_the_other_side_and_to_the_decoder() -> None:
    machine = device()
    machine.drafted(own(), 0.0)
    outputs = machine.receive(frame(), 0.0)
    assert outputs[0] == ToPeer(
        TargetFrame(
            session=1,
            base=2,
            prefix_hash=prefix_after(()),
            token_ids=(0,),
            hands_over=False,
            token_sources=(TokenSource.BOTH,),
        )
    )
    assert outputs[1] == ToDecoder(
        DecodingTarget(session=1, base=2, prefix_hash=prefix_after(()), token_ids=(0,), last=False)
    )


def test_the_device_keeps_what_the_cloud_said_of_itself() -> None:
    machine = SideMachine(Side.DEVICE, request_for("dragon-device"), log_mass=0.0)
    assert machine.peer_opened is None
    machine.connect(0.0)
    said = CollaborationOpened(1, 2, prefix_after(()), log_mass=0.0, max_tokens=4, documents=2)
    machine.receive(said, 0.0)
    assert machine.peer_opened is said


def test_a_whole_answer_that_is_decided_at_once_is_one_side_s_too() -> None:
    """Its drafts were there before the decoder said what its documents weigh."""
    request = request_for("drdg-sw", max_tokens=2)
    machine = SideMachine(Side.CLOUD, request, peer_log_mass=-90.0)
    for answer in ((), (0,)):
        assert machine.drafted(own(answer), 0.0) == []
    (target,) = told(machine.opened(0.0, 0.0), TargetFrame)
    assert target.token_ids == (0, 0)
    assert target.token_sources == (TokenSource.CLOUD,) * 2


def test_both_ends_may_be_given_another_generator_than_the_seed_s() -> None:
    """A coin of that generator says whose draft is the token."""
    weights = side_weights(0.0, 0.0)
    for seed in range(8):
        rng = SeededRandom(seed)
        machine = SideMachine(Side.CLOUD, request_for("dragon-coupled"), peer_log_mass=0.0, rng=rng)
        machine.opened(0.0, 0.0)
        decided = machine.drafted(own(probs=None), 0.0) != []
        assert decided is (coupled_side(weights, rng, 2) is Side.CLOUD), seed
