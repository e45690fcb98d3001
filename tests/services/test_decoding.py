"""DecodingService at both places over real gRPC: the drafts it should give, and what it refuses."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from prometheus_client import generate_latest

from tandem.core.probs import SamplingParams, Truncation
from tandem.core.prompt import Turn
from tandem.specdec.messages import GoingAway, Pong
from tandem.testing.paced import PacedEngine
from tandem.two_sided.decoding.document_decoder import Documents
from tandem.two_sided.protocol.messages import (
    ContextDocument,
    DecodingTarget,
    SideDraftFrame,
)
from tandem.two_sided.protocol.mixture import Side, log_mass
from tandem.two_sided.protocol.presets import Draw, LocalProbs, ProbsPayload
from tandem.two_sided.serving.decoding_service import DecodingServicer
from tests.services.decoding_peer import (
    CONTEXT,
    DOCUMENTS,
    PROMPT,
    SESSION,
    TOKENIZER,
    Place,
    aggregator_peer,
    decoder,
    expected_draft,
    expected_text,
    opening,
    prefix_of,
    scripted,
)
from tests.services.scripted_suite import health_of, until

SPARSE = LocalProbs(truncation=Truncation(top_k=8))


@pytest.mark.parametrize("place", ["verifier", "drafter"])
@pytest.mark.parametrize("documents", [DOCUMENTS, DOCUMENTS[:1], ()])
async def test_a_side_s_own_text_comes_ahead_of_what_is_settled(
    place: Place, documents: tuple[ContextDocument, ...]
) -> None:
    message = opening(documents=documents)
    async with decoder(place) as one, aggregator_peer(one.running) as peer:
        opened = await peer.open(message)
        assert opened.prompt_ids == tuple(TOKENIZER.encode(PROMPT))
        assert (opened.base, opened.prefix_hash) == (len(peer.text), prefix_of(peer.text))
        assert opened.log_mass == log_mass([document.relevance for document in documents])
        wanted = expected_text(message, peer.text, 12)
        found: list[int] = []
        for draft in await peer.drafts(4):
            assert (draft.base, draft.committed) == (len(peer.text) + len(found), len(peer.text))
            assert draft.prefix_hash == prefix_of((*peer.text, *found))
            assert draft.probs is None
            found.append(draft.token_id)
        for committed in range(8):  # one committed, one more drafted
            await peer.send_target(found[committed])
            found += [draft.token_id for draft in await peer.drafts(1)]
        assert found == wanted
        assert await peer.cancel() == ("OK", "")


@pytest.mark.parametrize(
    "probs",
    [
        SPARSE,
        LocalProbs(Draw.GUMBEL, ProbsPayload.SPARSE, "float16"),
        LocalProbs(Draw.LIKELIEST, ProbsPayload.FULL, "float32"),
        LocalProbs(truncation=Truncation(top_p=0.8), cut_after_draw=True),
    ],
)
@pytest.mark.parametrize("side", [Side.DEVICE, Side.CLOUD])
async def test_the_distribution_that_travels_is_the_distribution_that_was_drawn_from(
    probs: LocalProbs, side: Side
) -> None:
    temperature = 0.0 if probs.draw is Draw.LIKELIEST else 0.8
    message = opening(probs=probs, side=side, sampling=SamplingParams(temperature, 20, 0.95))
    async with decoder() as one, aggregator_peer(one.running, probs) as peer:
        await peer.open(message)
        text = list(peer.text)
        for draft in await peer.drafts(4):
            token_id, wanted = expected_draft(message, text)
            assert draft.token_id == token_id
            assert isinstance(draft.probs, np.ndarray)
            assert isinstance(wanted, np.ndarray)
            assert np.array_equal(draft.probs, wanted)
            text.append(token_id)


def rescore(query: str, texts: Sequence[str]) -> list[float]:
    """Some relevances that change with every token."""
    assert list(texts) == [document.text for document in DOCUMENTS]
    mark = sum(map(ord, query))
    return [mark % 3 - 1.0, mark % 5 / 2.0, mark % 7 / 3.0]


@pytest.mark.parametrize("every", [1, 3])
async def test_relevances_are_estimated_anew_from_the_text(every: int) -> None:
    message = opening(probs=SPARSE, reweigh_every=every)
    start = tuple(TOKENIZER.encode(PROMPT))

    def expected(text: tuple[int, ...]) -> tuple[tuple[int, Any], float]:
        answer = text[len(start) :][: (len(text) - len(start)) // every * every]
        query = "".join(f"<{token}>" for token in (*start, *answer))
        scores = rescore(query, [it.text for it in DOCUMENTS]) if answer else None
        relevances = scores or [document.relevance for document in DOCUMENTS]
        return expected_draft(message, text, relevances), log_mass(relevances)

    documents = Documents(TOKENIZER, rescore=rescore)
    async with (
        decoder(documents=documents) as one,
        aggregator_peer(one.running, SPARSE) as peer,
    ):
        await peer.open(message)
        committed = (9, 8, 7, 6)  # the drafts for these do not matter
        await peer.send_target(*committed)
        text, drafts = (*start, *committed), 0
        while drafts < 4:
            draft = await peer.answer(SideDraftFrame)
            if draft.committed < len(text) - drafts:
                continue  # drawn before the target came
            (token_id, probs), mass = expected(text)
            assert (draft.token_id, draft.log_mass) == (token_id, mass)
            assert np.array_equal(draft.probs, probs)
            text += (token_id,)
            drafts += 1
    async with decoder() as one, aggregator_peer(one.running, SPARSE) as peer:
        await peer.send(message)
        wanted = ("INVALID_ARGUMENT", "reweigh_every: this service has no re-ranker")
        assert await peer.ending() == wanted


async def test_a_session_goes_on_where_another_was_lost() -> None:
    message = opening()
    async with decoder() as one:
        async with aggregator_peer(one.running) as peer:
            await peer.open(message)
            committed = [draft.token_id for draft in await peer.drafts(3)]
        resumed = opening(committed_ids=tuple(committed))
        async with aggregator_peer(one.running) as peer:
            await peer.open(resumed)
            start = TOKENIZER.encode(PROMPT)
            found = [draft.token_id for draft in await peer.drafts(4)]
            assert one.documents_found("memory") == len(resumed.documents)
            assert committed + found == expected_text(message, start, 7)


async def test_pings_are_answered_while_the_engine_is_busy() -> None:
    slow = PacedEngine(scripted(), 0.2, 0.0)
    async with decoder(engine=slow) as one, aggregator_peer(one.running) as peer:
        await peer.open(opening())
        await peer.ping(5)
        assert (await peer.answer(Pong)).nonce == 5
        assert len(peer.answers) == 2  # before the first draft


@pytest.mark.parametrize("place", ["verifier", "drafter"])
async def test_a_drain_says_going_away_and_refuses_new_sessions(place: Place) -> None:
    async with decoder(place) as one, aggregator_peer(one.running) as peer:
        await peer.open(opening())
        assert await health_of(one.running.target, DecodingServicer.full_name) == "SERVING"
        draining = asyncio.create_task(one.running.drain(30.0))
        assert isinstance(await peer.answer(GoingAway), GoingAway)
        async with aggregator_peer(one.running) as late:
            await late.send(opening())
            assert await late.ending() == ("UNAVAILABLE", "the decoder is stopping")
        assert await health_of(one.running.target, DecodingServicer.full_name) == "NOT_SERVING"
        assert await peer.cancel() == ("OK", "")
        await draining
        assert one.engine.kv_bytes_in_use == 0


async def test_who_leaves_frees_the_session_and_leaves_the_documents() -> None:
    async with decoder() as one:
        async with aggregator_peer(one.running) as peer:
            await peer.open(opening())
            await peer.drafts(1)
        await until(lambda: one.engine.sessions_open <= len(DOCUMENTS))
        of_series = 'model_name="scripted",side="cloud"'
        shown = generate_latest(one.metrics.registry).decode()
        assert f'document_kv_lookups_total{{{of_series},source="computed"}} 3.0' in shown
        held = sum(len(document.text) + 2 for document in DOCUMENTS)
        assert f"document_kv_bytes{{{of_series}}} {held}.0" in shown


async def test_without_a_tokenizer_prompts_are_ids() -> None:
    async with decoder(documents=Documents()) as one:
        async with aggregator_peer(one.running) as peer:
            message = opening(prompt=(5, 6), documents=())
            await peer.open(message)
            found = [draft.token_id for draft in await peer.drafts(4)]
            assert found == expected_text(message, (5, 6), 4)
        for changes, field in (
            ({"prompt": (5, 6)}, "documents"),
            ({"prompt": (5, 6), "documents": (), "wants_text": True}, "wants_text"),
            ({"documents": ()}, "prompt"),
        ):
            async with aggregator_peer(one.running) as peer:
                await peer.send(opening(**changes))
                code, details = await peer.ending()
                assert code == "INVALID_ARGUMENT"
                assert details.startswith(f"{field}: this model has no tokenizer")


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
