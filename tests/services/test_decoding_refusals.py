"""What DecodingService refuses over real gRPC, each with its exact status."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tandem.core.probs import SamplingParams, Truncation
from tandem.core.prompt import Turn
from tandem.two_sided.decoding.document_decoder import Documents
from tandem.two_sided.protocol.messages import (
    ContextDocument,
    DecodingTarget,
)
from tandem.two_sided.protocol.presets import LocalProbs
from tests.services.decoding_peer import (
    CONTEXT,
    DOCUMENTS,
    SESSION,
    TOKENIZER,
    aggregator_peer,
    decoder,
    expected_text,
    opening,
    prefix_of,
)


@pytest.mark.parametrize(
    ("changes", "code", "reason"),
    [
        ({"prompt": ""}, "INVALID_ARGUMENT", "prompt: is empty"),
        ({"prompt": (1, 64)}, "INVALID_ARGUMENT", "prompt: [1] = 64"),
        (
            {"prompt": "x" * CONTEXT},
            "INVALID_ARGUMENT",
            "prompt: 128 tokens; the context holds 128",
        ),
        ({"prompt": "x" * 8193}, "INVALID_ARGUMENT", "prompt: 8193 characters; the context"),
        (
            {"documents": (ContextDocument("x", 1.0), ContextDocument("x" * 8193, 1.0))},
            "INVALID_ARGUMENT",
            "documents[1]: 8193 characters; the context holds 128 tokens",
        ),
        (
            {"prompt": (Turn("user", "x" * 9000),)},
            "INVALID_ARGUMENT",
            "prompt: 9004 characters",
        ),
        (
            {"documents": (ContextDocument(" \n", 1.0),)},
            "INVALID_ARGUMENT",
            "documents[0]: is empty",
        ),
        (
            {"documents": (ContextDocument("x" * 120, 1.0),)},
            "INVALID_ARGUMENT",
            "documents[0]: 122 tokens; 122 of the context are left beside the prompt",
        ),
        ({"documents": (ContextDocument("x", math.nan),)}, "INVALID_ARGUMENT", "relevance: nan"),
        ({"committed_ids": (64,)}, "INVALID_ARGUMENT", "committed_ids: [0] = 64"),
        ({"sampling": SamplingParams(math.nan)}, "INVALID_ARGUMENT", "temperature: nan"),
        (
            {"probs": LocalProbs(truncation=Truncation(top_k=65))},
            "INVALID_ARGUMENT",
            "local_top_k: 65",
        ),
        ({"stop": ("",)}, "INVALID_ARGUMENT", "stop: each must have 1…256 characters"),
        ({"ahead": 65}, "INVALID_ARGUMENT", "ahead: 65 is above 64"),
        ({"vocabulary_hash": "x"}, "FAILED_PRECONDITION", "vocabulary_hash: the two sides"),
    ],
)
async def test_a_bad_opening_gets_its_exact_status(
    changes: dict[str, Any], code: str, reason: str
) -> None:
    message = opening(wants_text=True, **changes)
    async with decoder() as one, aggregator_peer(one.running) as peer:
        await peer.send(message)
        found = await peer.ending()
        assert (found[0], found[1][: len(reason)]) == (code, reason)
        assert one.engine.sessions_open == 0


@pytest.mark.parametrize(
    ("changes", "code", "reason"),
    [
        ({"session": 1}, "INVALID_ARGUMENT", "session: 1 is not"),
        ({"base": 99}, "INVALID_ARGUMENT", "base: 99 is not where the committed text ends"),
        ({"prefix_hash": 1}, "DATA_LOSS", "prefix: the two ends differ before position 6"),
        ({"token_ids": (64,)}, "INVALID_ARGUMENT", "token_ids: [0] = 64"),
        ({"token_ids": (1,) * 31}, "INVALID_ARGUMENT", "token_ids: more than max_tokens"),
    ],
)
async def test_a_bad_frame_ends_its_own_session_only(
    changes: dict[str, Any], code: str, reason: str
) -> None:
    message = opening()
    async with (
        decoder() as one,
        aggregator_peer(one.running) as bystander,
        aggregator_peer(one.running) as peer,
    ):
        await bystander.open(message)
        await peer.open(message)
        known = {"session": SESSION, "base": 6, "prefix_hash": prefix_of(peer.text)}
        await peer.send(DecodingTarget(**{**known, "token_ids": (5,), **changes}))
        found = await peer.ending()
        assert (found[0], found[1][: len(reason)]) == (code, reason)
        drafts = [draft.token_id for draft in await bystander.drafts(4)]
        assert drafts == expected_text(message, bystander.text, 4)


async def test_the_first_frame_must_open_and_only_once() -> None:
    async with decoder() as one:
        async with aggregator_peer(one.running) as peer:
            await peer.ping(1)
            found = await peer.ending()
            assert found == ("INVALID_ARGUMENT", "open: must be the first message of a stream")
        async with aggregator_peer(one.running) as peer:
            await peer.call.done_writing()
            found = await peer.ending()
            assert found == ("INVALID_ARGUMENT", "open: the stream ended before it")
        async with aggregator_peer(one.running) as peer:
            await peer.open(opening())
            await peer.send(opening())
            found = await peer.ending()
            assert found == ("INTERNAL", "open in state decoding: the session is open already")


async def test_what_finds_no_room_is_refused() -> None:
    tokens = sum(len(document.text) + 2 for document in DOCUMENTS)
    async with (
        decoder(documents=Documents(TOKENIZER, budget_bytes=tokens)) as one,
        aggregator_peer(one.running) as first,
        aggregator_peer(one.running) as second,
    ):
        await first.open(opening())
        await first.drafts(4)
        await second.send(opening(documents=(ContextDocument("one more", 0.0),)))
        code, details = await second.ending()
        assert code == "RESOURCE_EXHAUSTED"
        assert details.startswith("document kv budget: 10 bytes wanted, 0 of")
    async with decoder(kv_budget_bytes=100) as one, aggregator_peer(one.running) as peer:
        await peer.send(opening())
        code, details = await peer.ending()
        assert (code, details[:28]) == ("RESOURCE_EXHAUSTED", "108 bytes of KV cache needed")
    async with (
        decoder(max_sessions=1) as one,
        aggregator_peer(one.running) as first,
        aggregator_peer(one.running) as second,
    ):
        await first.open(opening())
        await second.send(opening())
        found = await second.ending()
        assert found == ("RESOURCE_EXHAUSTED", "all 1 sessions are in use; try again")
