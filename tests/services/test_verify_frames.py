"""Bad frames over real gRPC: each its exact status, and nobody else on the server notices."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from tandem.backends.interface import ForwardRequest
from tandem.core.codecs import Precision, sparse_probs_to_bytes
from tandem_api.verifier.v1 import verifier_pb2 as pb
from tests.services.scripted_suite import VOCABULARY, scripted_suite, target_engine
from tests.services.verifier_peer import (
    PROMPT,
    Ending,
    control,
    draft,
    dsd_draft,
    dssd_draft,
    edge_peer,
    ending_of,
    endings_of,
    opening,
    own_text,
    raw_ending,
    unharmed,
)

HUGE = 2**32 - 1

PROBS = np.full(VOCABULARY, 1 / VOCABULARY, dtype=np.float32)
WITHOUT_5 = np.where(np.arange(VOCABULARY) == 5, 0, 1 / (VOCABULARY - 1))
NOT_A_NUMBER = np.where(np.arange(VOCABULARY) == 5, np.nan, PROBS)
NEGATIVE = PROBS.copy()
NEGATIVE[:2] = (-PROBS[0], 3 * PROBS[0])


NUMBERS = np.array(PROMPT, dtype="<f4").tobytes()
NO_NUMBERS = np.array([1, np.inf, 3], dtype="<f4").tobytes()


def sparse(probs: Any, precision: Precision = "float16") -> bytes:
    return sparse_probs_to_bytes(probs, precision)


def tree(
    token_ids: Iterable[int], parents: tuple[int, ...], distributions: int = 1, **changes: Any
) -> pb.VerifyRequest:
    """A draft as `mc-dsd` sends it, with so many distributions."""
    return draft(
        token_ids, parents=parents, sparse_probs=[sparse(PROBS)] * distributions, **changes
    )


BAD_FRAMES = [
    ("dssd", dssd_draft(1, VOCABULARY), "token_ids"),
    ("dssd", dssd_draft(HUGE), "token_ids"),
    ("coupled", draft((1, VOCABULARY)), "token_ids"),
    ("coupled", draft((HUGE,)), "token_ids"),
    ("coupled", control("hidden_states", after=(), states=NUMBERS), "hidden_states"),
    ("split", control("hidden_states", after=(), states=b""), "hidden_states"),
    ("split", control("hidden_states", after=(), states=NUMBERS[:-1]), "hidden_states"),
    ("split", control("hidden_states", after=(), states=2 * NUMBERS), "hidden_states"),
    ("split", control("hidden_states", after=(), states=NO_NUMBERS), "hidden_states"),
    ("split", control("hidden_states", after=PROMPT[:1], states=NUMBERS), "base"),
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
    ("dsd", draft((1,)), "distributions"),
    ("dsd", draft((1,), distributions=b"\0" * 4 * (VOCABULARY - 1)), "distributions"),
    ("dsd", draft((1,), distributions=b"\0" * 4 * (VOCABULARY + 1)), "distributions"),
    ("dsd", draft((1, 2), distributions=PROBS.tobytes()), "distributions"),
    ("dsd", draft((), distributions=PROBS.tobytes()), "distributions"),
    ("dsd", dsd_draft(1, probs=PROBS / 2), "distributions"),
    ("dsd", dsd_draft(1, probs=PROBS * 2), "distributions"),
    ("dsd", dsd_draft(1, probs=np.zeros(VOCABULARY)), "distributions"),
    ("dsd", dsd_draft(1, probs=NOT_A_NUMBER), "distributions"),
    ("dsd", dsd_draft(1, probs=NEGATIVE), "distributions"),
    ("dsd", dsd_draft(5, probs=WITHOUT_5), "distributions"),
    ("tslt", draft((1,)), "distributions"),
    ("tslt", draft((1,), sparse_probs=[b"\xff"]), "sparse_probs"),
    ("tslt", draft((1,), sparse_probs=[sparse(PROBS), sparse(PROBS)]), "sparse_probs"),
    ("tslt", draft((1, 2), sparse_probs=[sparse(PROBS)]), "distributions"),
    ("tslt", draft((5,), sparse_probs=[sparse(WITHOUT_5)]), "distributions"),
    (
        "tslt",
        draft((1,), sparse_probs=[sparse(PROBS)], distributions=PROBS.tobytes()),
        "distributions",
    ),
    ("dssd", draft((1,), sparse_probs=[sparse(PROBS, "float32")]), "distributions"),
    ("mc-dsd", draft((1, 2), sparse_probs=[sparse(PROBS)]), "parents"),
    ("tslt", draft((1,), sparse_probs=[sparse(PROBS)], parents=(-1,)), "parents"),
    ("mc-dsd", tree((1, 2, 3), (-1, -1)), "parents"),
    ("mc-dsd", tree((1, 2), (1, -1)), "parents"),
    ("mc-dsd", tree((1, 2), (1, 0)), "parents"),
    ("mc-dsd", tree((1, 2), (-1, 1)), "parents"),
    ("mc-dsd", tree((1,), (0,)), "parents"),
    ("mc-dsd", tree((1,), (-2,)), "parents"),
    ("mc-dsd", tree((1, 2), (-1, -(2**31))), "parents"),
    ("mc-dsd", tree((1, 2, 3), (-1, -1, -1)), "parents"),
    ("mc-dsd", tree((1, 2, 3, 4), (-1, 0, 1, 2), distributions=4), "parents"),
    ("mc-dsd", tree(range(15), (-1,) * 15), "draft_length"),
    ("mc-dsd", tree((1, 1), (-1, -1)), "token_ids"),
    ("mc-dsd", tree((1, VOCABULARY), (-1, -1)), "token_ids"),
    ("mc-dsd", tree((1, 2), (-1, -1), distributions=2), "distributions"),
    ("mc-dsd", tree((1, 2, 3), (-1, -1, 0)), "distributions"),
    ("mc-dsd", tree((1, 2), (-1, -1), distributions=0), "distributions"),
    ("mc-dsd", draft((1, 5), sparse_probs=[sparse(WITHOUT_5)], parents=(-1, -1)), "distributions"),
    ("dssd", dsd_draft(1), "distributions"),
    ("coupled", dsd_draft(1), "distributions"),
    ("dssd", control("ping", session=8), "session"),
    ("dssd", control("cancel", session=8), "session"),
    ("dssd", opening("dssd"), "open"),
    ("dssd", pb.VerifyRequest(session=7), "message"),
    ("dssd", control("recovered", token_id=1), "recovered"),
    ("dssd", control("need_full_distribution"), "need_full_distribution"),
]


async def test_bad_frames_are_refused_by_name() -> None:
    endings = await endings_of([(opening(preset), frame) for preset, frame, _ in BAD_FRAMES])
    for (preset, frame, field), ending in zip(BAD_FRAMES, endings, strict=True):
        assert ending.code == "INVALID_ARGUMENT", (preset, frame)
        assert ending.details.startswith(f"{field}: "), (preset, frame)


async def test_a_tree_no_deeper_than_the_answer_is_long() -> None:
    deep = tree((1, 2), (-1, 0), distributions=2)
    ending = await ending_of(opening("mc-dsd", max_tokens=1), deep)
    assert (ending.code, ending.details.split(":")[0]) == ("INVALID_ARGUMENT", "token_ids")


async def test_drafts_beyond_the_answer_s_length_are_refused() -> None:
    ending = await ending_of(opening(max_tokens=2), dssd_draft(1, 2, 3))
    assert (ending.code, ending.details.split(":")[0]) == ("INVALID_ARGUMENT", "token_ids")


async def test_a_stream_without_frames_is_refused() -> None:
    async with scripted_suite() as suite, unharmed(suite):
        ending = await raw_ending(suite.verifier.target)
    assert (ending.code, ending.details) == ("INVALID_ARGUMENT", "open: the stream ended before it")


async def test_late_and_repeated_drafts_are_dropped() -> None:
    """After a refusal those that follow the refused one mean nothing; after an acceptance a second
    copy of the round says nothing new."""
    own = own_text(PROMPT, 3, 8)
    async with (
        scripted_suite() as suite,
        unharmed(suite),
        edge_peer(suite.verifier.target) as peer,
    ):
        refused = draft(((own[0] + 1) % VOCABULARY, 1))
        await peer.send(opening("coupled"), refused)
        committed = (await peer.answer("committed")).committed
        assert (committed.accepted, [*committed.token_ids]) == (0, own[:1])
        # A replay, and what had left before the verdict came: both are void, neither is an error.
        late = draft((2, 3), after=(*PROMPT, (own[0] + 1) % VOCABULARY, 1))
        await peer.send(refused, late, control("ping", nonce=77))
        assert (await peer.answer("pong")).pong.nonce == 77
        accepted = draft(own[1:4], after=(*PROMPT, own[0]))
        await peer.send(accepted)
        committed = (await peer.answer("committed")).committed
        assert (committed.accepted, [*committed.token_ids]) == (3, own[4:5])
        await peer.send(accepted, control("cancel"))
        ending = await peer.ending()
    assert ending.code == "OK"
    assert ending.kinds().count("committed") == 2


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"token_id": VOCABULARY}, "INVALID_ARGUMENT", "token_id"),
        ({"token_id": HUGE}, "INVALID_ARGUMENT", "token_id"),
        ({"token_id": 1, "base": 4}, "INVALID_ARGUMENT", "base"),
        ({"token_id": 1, "prefix": 5}, "DATA_LOSS", "prefix"),
    ],
)
async def test_bad_recovered_token_is_refused(
    changes: dict[str, Any], code: str, field: str
) -> None:
    frame = control("recovered", **changes)
    ending = await _ending_after_refusal(frame)
    assert (ending.code, ending.details.split(":")[0]) == (code, field)


async def _ending_after_refusal(frame: pb.VerifyRequest) -> Ending:
    """The verifier has refused a draft and waits for the token that the edge draws."""
    engine = target_engine()
    (logits,) = engine.forward([ForwardRequest(engine.open(8), PROMPT, 1)])
    unlikely = draft((int(logits[0].argmin()),), probabilities=[1.0])
    async with (
        scripted_suite() as suite,
        unharmed(suite),
        edge_peer(suite.verifier.target) as peer,
    ):
        await peer.send(opening(), unlikely)
        answer = await peer.answer("committed")
        assert answer.committed.HasField("sparse")
        await peer.send(frame)
        ending = await peer.ending()
    return ending


async def test_a_20_mb_frame_is_resource_exhausted() -> None:
    large = draft((1,), distributions=b"\0" * 20 * 2**20)
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
