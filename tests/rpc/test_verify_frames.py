"""Bad frames over real gRPC: each its exact status, and nobody else on the server notices."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError

from services.verifier.servicer import VerifierLimits
from tandem.core.codecs import Precision
from tandem.core.laws import Sampling, law_from_logits
from tandem.core.noise import coupled_token
from tandem.core.sparse_laws import sparse_law_to_bytes
from tandem.engine.base import Segment
from tandem.rpc.aggregator_client import Generated
from tandem.rpc.generation import GenerationRequest
from tandem_api.common.v1 import sampling_pb2
from tandem_api.verifier.v1 import verifier_pb2 as pb
from tests.rpc.scripted_suite import CONTEXT, VOCABULARY, Suite, scripted_suite, target_engine
from tests.rpc.verifier_peer import (
    PROMPT,
    Ending,
    control,
    draft,
    dsd_draft,
    dssd_draft,
    edge_peer,
    opening,
    raw_ending,
)

HUGE = 2**32 - 1
BYSTANDER_PROMPT = tuple(range(1, 10))
BYSTANDER = GenerationRequest(BYSTANDER_PROMPT, "coupled", max_tokens=80, seed=9, ignore_eos=True)


@cache
def own_text(prompt_ids: tuple[int, ...], seed: int, count: int) -> list[int]:
    """The target's own text under shared noise, without any service."""
    engine = target_engine()
    session = engine.open(len(prompt_ids) + count)
    token_ids, fed = list(prompt_ids), 0
    while len(token_ids) < len(prompt_ids) + count:
        (logits,) = engine.forward([Segment(session, tuple(token_ids[fed:]), 1)])
        law = law_from_logits(logits[0], Sampling())
        fed = len(token_ids)
        token_ids.append(coupled_token(law, seed, fed))
    return token_ids[len(prompt_ids) :]


@asynccontextmanager
async def unharmed(suite: Suite) -> AsyncIterator[None]:
    """Another session generates meanwhile: its text is its own, and nothing is left behind."""
    stream = suite.client.stream(BYSTANDER)
    result = Generated()
    async for result in stream:
        if result.token_ids:
            break
    yield
    # The result grows in place.
    assert [_ async for _ in stream][-1] is result
    assert result.token_ids == own_text(BYSTANDER_PROMPT, BYSTANDER.seed, BYSTANDER.max_tokens)
    await suite.idle()


async def ending_of(*frames: Any, limits: VerifierLimits | None = None) -> Ending:
    """How a verifier ends a stream with these frames, checked to have harmed nobody."""
    async with (
        scripted_suite(verifier_limits=limits) as suite,
        unharmed(suite),
        edge_peer(suite.verifier.target) as peer,
    ):
        await peer.send(*frames)
        ending = await peer.ending()
    return ending


def sampling(**changes: float) -> sampling_pb2.Sampling:
    return sampling_pb2.Sampling(**{"temperature": 1.0, "top_p": 1.0, **changes})  # type: ignore[arg-type]


def opening_with(*images: bytes) -> pb.VerifyRequest:
    """For a model that reads text only."""
    frame = opening()
    frame.open.images.extend(images)
    return frame


LONG = tuple([1] * CONTEXT)

BAD_OPENS = [
    (opening(prompt_ids=()), "prompt_ids"),
    (opening(prompt_ids=(1, VOCABULARY)), "prompt_ids"),
    (opening(prompt_ids=(1, HUGE)), "prompt_ids"),
    (opening(prompt_ids=LONG), "prompt_ids"),
    (opening(committed_ids=(VOCABULARY,)), "committed_ids"),
    (opening(committed_ids=(HUGE,)), "committed_ids"),
    (opening(committed_ids=(1, 2), max_tokens=2), "committed_ids"),
    (opening(max_tokens=0), "max_tokens"),
    (opening(max_tokens=CONTEXT), "max_tokens"),
    (opening(max_tokens=HUGE), "max_tokens"),
    (opening(acceptance=0), "acceptance"),
    (opening(acceptance=99), "acceptance"),
    (opening(uplink=99), "uplink"),
    (opening(uplink_precision=99), "uplink_precision"),
    (opening(answer=99), "answer"),
    (opening(answer_top=4097), "answer_top"),
    (opening(answer_tail_draws=257), "answer_tail_draws"),
    (opening(window=257), "window"),
    (opening(window=0), "decode_when_idle"),
    (opening(uplink=pb.UPLINK_PAYLOAD_IDS), "uplink"),
    (opening("coupled", answer=pb.REJECTION_ANSWER_FULL_LAW), "answer"),
    (opening(sampling=sampling(temperature=math.nan)), "temperature"),
    (opening(sampling=sampling(temperature=-1.0)), "temperature"),
    (opening(sampling=sampling(temperature=math.inf)), "temperature"),
    (opening(sampling=sampling(top_k=VOCABULARY + 1)), "top_k"),
    (opening(sampling=sampling(top_p=0.0)), "top_p"),
    (opening(sampling=sampling(top_p=math.nan)), "top_p"),
    (opening("tslt", draft_top_k=VOCABULARY + 1), "draft_top_k"),
    (opening("tslt", draft_top_p=0.0), "draft_top_p"),
    (opening("tslt", draft_top_p=1.5), "draft_top_p"),
    (opening("tslt", draft_top_p=math.nan), "draft_top_p"),
    (opening_with(b"GIF89a"), "images"),
    (opening_with(b""), "images"),
    (opening_with(*[b"x"] * 100), "images"),
    (opening("mc-dsd", expansion=(2, 0, 2)), "expansion"),
    (opening("mc-dsd", expansion=(5, 5, 5)), "expansion"),
    (opening("mc-dsd", expansion=(2, 2)), "expansion"),
    (opening("mc-dsd", bonus=False), "expansion"),
    (opening("mc-dsd", uplink=pb.UPLINK_PAYLOAD_IDS), "uplink"),
    (opening("coupled", expansion=(1,) * 4, with_replacement=True), "with_replacement"),
    (opening(base=2), "base"),
    (opening(base=HUGE), "base"),
    (dssd_draft(1, 2), "open"),
    (control("ping"), "open"),
    (control("cancel"), "open"),
    (pb.VerifyRequest(), "message"),
]


@pytest.mark.parametrize(("frame", "field"), BAD_OPENS, ids=[f for _, f in BAD_OPENS])
async def test_bad_opening_is_refused_by_name(frame: pb.VerifyRequest, field: str) -> None:
    ending = await ending_of(frame)
    assert ending.code == "INVALID_ARGUMENT"
    assert ending.details.startswith(f"{field}: ")
    assert not ending.answers


@pytest.mark.parametrize("change", [{"vocabulary_hash": "other"}, {"vocabulary_size": 65}])
async def test_another_vocabulary_is_a_failed_precondition(change: dict[str, Any]) -> None:
    ending = await ending_of(opening(**change))
    assert ending.code == "FAILED_PRECONDITION"
    assert ending.details.startswith("vocabulary_hash: ")


async def test_another_text_at_the_opening_is_data_loss() -> None:
    ending = await ending_of(opening(prefix=5))
    assert ending.code == "DATA_LOSS"
    assert ending.details.startswith("prefix: ")


LAW = np.full(VOCABULARY, 1 / VOCABULARY, dtype=np.float32)
WITHOUT_5 = np.where(np.arange(VOCABULARY) == 5, 0, 1 / (VOCABULARY - 1))
NOT_A_NUMBER = np.where(np.arange(VOCABULARY) == 5, np.nan, LAW)
NEGATIVE = LAW.copy()
NEGATIVE[:2] = (-LAW[0], 3 * LAW[0])


def sparse(law: Any, precision: Precision = "float16") -> bytes:
    return sparse_law_to_bytes(law, precision)


def tree(
    token_ids: Iterable[int], parents: tuple[int, ...], laws: int = 1, **changes: Any
) -> pb.VerifyRequest:
    """A draft as `mc-dsd` sends it, with so many laws."""
    return draft(token_ids, parents=parents, sparse_laws=[sparse(LAW)] * laws, **changes)


BAD_FRAMES = [
    ("dssd", dssd_draft(1, VOCABULARY), "token_ids"),
    ("dssd", dssd_draft(HUGE), "token_ids"),
    ("coupled", draft((1, VOCABULARY)), "token_ids"),
    ("coupled", draft((HUGE,)), "token_ids"),
    *(
        ("dssd", draft((1, 2), probabilities=[0.5, bad]), "probabilities")
        for bad in (math.nan, -0.5, 0.0, 1.5, math.inf, -math.inf)
    ),
    ("dssd", draft((1, 2), probabilities=[0.5]), "probabilities"),
    ("dssd", draft((1, 2)), "probabilities"),
    ("coupled", draft((1,), probabilities=[0.5]), "probabilities"),
    ("dssd", draft(()), "draft_length"),
    ("dssd", dssd_draft(1, 2, 3, 4, 5), "draft_length"),
    ("dsd", dsd_draft(*range(1, 6)), "draft_length"),
    ("dsd", draft((1,)), "laws"),
    ("dsd", draft((1,), laws=b"\0" * 4 * (VOCABULARY - 1)), "laws"),
    ("dsd", draft((1,), laws=b"\0" * 4 * (VOCABULARY + 1)), "laws"),
    ("dsd", draft((1, 2), laws=LAW.tobytes()), "laws"),
    ("dsd", draft((), laws=LAW.tobytes()), "laws"),
    ("dsd", dsd_draft(1, law=LAW / 2), "laws"),
    ("dsd", dsd_draft(1, law=LAW * 2), "laws"),
    ("dsd", dsd_draft(1, law=np.zeros(VOCABULARY)), "laws"),
    ("dsd", dsd_draft(1, law=NOT_A_NUMBER), "laws"),
    ("dsd", dsd_draft(1, law=NEGATIVE), "laws"),
    ("dsd", dsd_draft(5, law=WITHOUT_5), "laws"),
    ("tslt", draft((1,)), "laws"),
    ("tslt", draft((1,), sparse_laws=[b"\xff"]), "sparse_laws"),
    ("tslt", draft((1,), sparse_laws=[sparse(LAW), sparse(LAW)]), "sparse_laws"),
    ("tslt", draft((1, 2), sparse_laws=[sparse(LAW)]), "laws"),
    ("tslt", draft((5,), sparse_laws=[sparse(WITHOUT_5)]), "laws"),
    ("tslt", draft((1,), sparse_laws=[sparse(LAW)], laws=LAW.tobytes()), "laws"),
    ("dssd", draft((1,), sparse_laws=[sparse(LAW, "float32")]), "probabilities"),
    ("mc-dsd", draft((1, 2), sparse_laws=[sparse(LAW)]), "parents"),
    ("tslt", draft((1,), sparse_laws=[sparse(LAW)], parents=(-1,)), "parents"),
    ("mc-dsd", tree((1, 2, 3), (-1, -1)), "parents"),
    ("mc-dsd", tree((1, 2), (1, -1)), "parents"),
    ("mc-dsd", tree((1, 2), (1, 0)), "parents"),
    ("mc-dsd", tree((1, 2), (-1, 1)), "parents"),
    ("mc-dsd", tree((1,), (0,)), "parents"),
    ("mc-dsd", tree((1,), (-2,)), "parents"),
    ("mc-dsd", tree((1, 2), (-1, -(2**31))), "parents"),
    ("mc-dsd", tree((1, 2, 3), (-1, -1, -1)), "parents"),
    ("mc-dsd", tree((1, 2, 3, 4), (-1, 0, 1, 2), laws=4), "parents"),
    ("mc-dsd", tree(range(15), (-1,) * 15), "draft_length"),
    ("mc-dsd", tree((1, 1), (-1, -1)), "token_ids"),
    ("mc-dsd", tree((1, VOCABULARY), (-1, -1)), "token_ids"),
    ("mc-dsd", tree((1, 2), (-1, -1), laws=2), "laws"),
    ("mc-dsd", tree((1, 2, 3), (-1, -1, 0)), "laws"),
    ("mc-dsd", tree((1, 2), (-1, -1), laws=0), "laws"),
    ("mc-dsd", draft((1, 5), sparse_laws=[sparse(WITHOUT_5)], parents=(-1, -1)), "laws"),
    ("mc-dsd", tree((1, 2), (-1, -1), after=PROMPT[:2]), "base"),
    ("dssd", dsd_draft(1), "probabilities"),
    ("coupled", dsd_draft(1), "laws"),
    ("dssd", dssd_draft(1, epoch=1), "epoch"),
    ("dssd", dssd_draft(1, epoch=HUGE), "epoch"),
    ("dssd", dssd_draft(1, after=(*PROMPT, 4, 4)), "base"),
    ("dssd", dssd_draft(1, after=PROMPT[:2]), "base"),
    ("dssd", control("ping", session=8), "session"),
    ("dssd", control("cancel", session=8), "session"),
    ("dssd", opening("dssd"), "open"),
    ("dssd", pb.VerifyRequest(session=7), "message"),
    ("dssd", control("recovered", token_id=1), "recovered"),
    ("dssd", control("need_full_law"), "need_full_law"),
]


@pytest.mark.parametrize(
    ("preset", "frame", "field"), BAD_FRAMES, ids=[f"{p}-{f}" for p, _, f in BAD_FRAMES]
)
async def test_bad_frame_is_refused_by_name(
    preset: str, frame: pb.VerifyRequest, field: str
) -> None:
    ending = await ending_of(opening(preset), frame)
    assert ending.code == "INVALID_ARGUMENT"
    assert ending.details.startswith(f"{field}: ")


async def test_one_tree_is_judged_at_a_time() -> None:
    """A second one before the verdict on the first; one that is deeper than the answer is long."""
    ending = await ending_of(opening("mc-dsd"), tree((1, 2), (-1, -1)), tree((1, 2), (-1, -1)))
    assert ending.code == "INVALID_ARGUMENT"
    assert ending.details.split(":")[0] in ("draft_length", "base")  # by who is faster
    deep = tree((1, 2), (-1, 0), laws=2)
    ending = await ending_of(opening("mc-dsd", max_tokens=1), deep)
    assert (ending.code, ending.details.split(":")[0]) == ("INVALID_ARGUMENT", "token_ids")


async def test_drafts_beyond_the_answer_s_length_are_refused() -> None:
    ending = await ending_of(opening(max_tokens=2), dssd_draft(1, 2, 3))
    assert (ending.code, ending.details.split(":")[0]) == ("INVALID_ARGUMENT", "token_ids")


async def test_another_text_before_a_draft_is_data_loss() -> None:
    frame = dssd_draft(1)
    frame.prefix ^= 1
    ending = await ending_of(opening(), frame)
    assert ending.code == "DATA_LOSS"
    assert ending.details.startswith("prefix: ")


async def test_the_first_frame_is_waited_for_and_no_longer() -> None:
    ending = await ending_of(limits=VerifierLimits(open_timeout_s=0.05))
    assert ending.code == "INVALID_ARGUMENT"
    assert ending.details == "open: no frame within 0.05 s"


async def test_a_stream_without_frames_is_refused() -> None:
    async with scripted_suite() as suite, unharmed(suite):
        ending = await raw_ending(suite.verifier.target)
    assert (ending.code, ending.details) == ("INVALID_ARGUMENT", "open: the stream ended before it")


async def test_a_stale_draft_is_dropped_and_a_repeated_one_refused() -> None:
    """After a refusal the old epoch's drafts mean nothing; after an acceptance a second copy of the
    round would be judged again."""
    own = own_text(PROMPT, 3, 8)
    async with (
        scripted_suite() as suite,
        unharmed(suite),
        edge_peer(suite.verifier.target) as peer,
    ):
        refused = draft(((own[0] + 1) % VOCABULARY, 1))
        await peer.send(opening("coupled"), refused)
        verdict = await peer.answer("verdict")
        assert (verdict.verdict.accepted, verdict.verdict.rejected) == (0, True)
        assert (verdict.epoch, verdict.verdict.token_id) == (1, own[0])
        # A replay, and garbage of the old epoch: both are overtaken, neither is an error.
        await peer.send(refused, draft((VOCABULARY, HUGE)), control("ping", epoch=1, nonce=77))
        assert (await peer.answer("pong")).pong.nonce == 77
        accepted = draft(own[1:4], after=(*PROMPT, own[0]), epoch=1)
        await peer.send(accepted)
        verdict = await peer.answer("verdict")
        assert (verdict.verdict.accepted, verdict.verdict.rejected) == (3, False)
        assert verdict.verdict.token_id == own[4]
        await peer.send(accepted)
        ending = await peer.ending()
    assert ending.code == "INVALID_ARGUMENT"
    assert ending.details.startswith("base: ")
    assert "repeats a round" in ending.details


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"token_id": VOCABULARY}, "INVALID_ARGUMENT", "token_id"),
        ({"token_id": HUGE}, "INVALID_ARGUMENT", "token_id"),
        ({"token_id": 1, "base": 4}, "INVALID_ARGUMENT", "base"),
        ({"token_id": 1, "epoch": 2}, "INVALID_ARGUMENT", "epoch"),
        ({"token_id": 1, "prefix": 5}, "DATA_LOSS", "prefix"),
    ],
)
async def test_bad_recovered_token_is_refused(
    changes: dict[str, Any], code: str, field: str
) -> None:
    frame = control("recovered", **({"epoch": 1} | changes))
    ending = await _ending_after_refusal(frame)
    assert (ending.code, ending.details.split(":")[0]) == (code, field)


async def test_a_draft_before_the_recovered_token_is_refused() -> None:
    ending = await _ending_after_refusal(dssd_draft(1, epoch=1))
    assert (ending.code, ending.details.split(":")[0]) == ("INVALID_ARGUMENT", "draft")


async def _ending_after_refusal(frame: pb.VerifyRequest) -> Ending:
    """The verifier has refused a draft and waits for the token that the edge draws."""
    engine = target_engine()
    (logits,) = engine.forward([Segment(engine.open(8), PROMPT, 1)])
    unlikely = draft((int(logits[0].argmin()),), probabilities=[1.0])
    async with (
        scripted_suite() as suite,
        unharmed(suite),
        edge_peer(suite.verifier.target) as peer,
    ):
        await peer.send(opening(), unlikely)
        verdict = await peer.answer("verdict")
        assert verdict.verdict.rejected
        assert verdict.verdict.HasField("sparse")
        await peer.send(frame)
        ending = await peer.ending()
    return ending


async def test_a_20_mb_frame_is_resource_exhausted() -> None:
    large = draft((1,), laws=b"\0" * 20 * 2**20)
    async with scripted_suite() as suite, unharmed(suite):
        raw = (opening("dsd").SerializeToString(), large.SerializeToString())
        ending = await raw_ending(suite.verifier.target, *raw)
    assert ending.code == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize("before", [(), (opening().SerializeToString(),)], ids=["first", "later"])
async def test_bytes_that_are_no_message_are_refused(before: tuple[bytes, ...]) -> None:
    async with scripted_suite() as suite, unharmed(suite):
        ending = await raw_ending(suite.verifier.target, *before, b"\xff" * 40)
    assert ending.code == "INVALID_ARGUMENT"
    assert ending.details.startswith("message: ")


async def test_an_edge_may_leave_at_any_moment() -> None:
    async with scripted_suite() as suite, unharmed(suite):
        for frames in ((), (opening(),), (opening(), dssd_draft(1, 2))):
            async with edge_peer(suite.verifier.target) as peer:
                await peer.send(*frames)
            async with edge_peer(suite.verifier.target) as peer:
                await peer.send(*frames)
                if frames:
                    await peer.answer("opened")
                    await peer.send(control("cancel"))
                    assert (await peer.ending()).code == "OK"


async def test_an_unknown_preset_name_is_not_counted_under_it() -> None:
    async with scripted_suite() as suite:
        async with edge_peer(suite.verifier.target) as peer:
            await peer.send(_named("x" * 1000), dssd_draft(1, 2))
            await peer.answer("verdict")
        await suite.idle()
        labels = {
            sample.labels["preset"]
            for metric in suite.cloud_metrics.registry.collect()
            for sample in metric.samples
            if "preset" in sample.labels
        }
    assert labels == {"other"}


def _named(preset: str) -> pb.VerifyRequest:
    frame = opening()
    frame.open.preset = preset
    return frame


async def test_mutated_frames_never_make_an_internal_error() -> None:
    """Conversations with a few bytes or a field changed. They may end well or be refused, nothing
    else; and the server serves on."""
    source = random.Random(20)
    allowed = {
        "OK",
        "INVALID_ARGUMENT",
        "FAILED_PRECONDITION",
        "DATA_LOSS",
        "RESOURCE_EXHAUSTED",
    }
    seen = set()
    async with scripted_suite() as suite:
        for block in range(4):
            async with unharmed(suite):
                for _ in range(100):
                    frames = _mutated(source)
                    ending = await raw_ending(suite.verifier.target, *frames)
                    assert ending.code in allowed, (block, ending, [raw.hex() for raw in frames])
                    seen.add(ending.code)
    assert {"OK", "INVALID_ARGUMENT", "FAILED_PRECONDITION", "DATA_LOSS"} <= seen


def _mutated(source: random.Random) -> list[bytes]:
    preset, first = source.choice(
        [("dssd", dssd_draft(1, 2, 3)), ("dsd", dsd_draft(4, 5)), ("coupled", draft((6, 7)))]
    )
    frames = [opening(preset), first, control("ping", nonce=1), control("recovered", epoch=1)]
    raw = [frame.SerializeToString() for frame in frames]
    for _ in range(source.randint(0, 2)):
        which = source.randrange(len(raw))
        raw[which] = source.choice((_flip, _cut, _repeat, _set_field))(raw[which], source)
    if source.random() < 0.1:
        source.shuffle(raw)
    return raw


def _flip(raw: bytes, source: random.Random) -> bytes:
    changed = bytearray(raw)
    for _ in range(source.randint(1, 3) if raw else 0):
        changed[source.randrange(len(raw))] ^= 1 << source.randrange(8)
    return bytes(changed)


def _cut(raw: bytes, source: random.Random) -> bytes:
    return raw[: source.randrange(len(raw) + 1)]


def _repeat(raw: bytes, source: random.Random) -> bytes:
    """Protobuf merges a message that comes twice: lists grow."""
    return raw * 2


def _set_field(raw: bytes, source: random.Random) -> bytes:
    try:
        frame = pb.VerifyRequest.FromString(raw)
    except DecodeError:  # mutated already
        return raw
    field = source.choice(("session", "epoch", "base", "prefix"))
    setattr(frame, field, source.choice((0, 1, 2, 4, HUGE)))
    if frame.HasField("open"):
        name = source.choice(
            ("window", "max_tokens", "answer_top", "acceptance", "uplink", "answer", "bonus")
        )
        setattr(frame.open, name, source.choice((0, 1, 2, 3)))
    return frame.SerializeToString()
