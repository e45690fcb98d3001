"""Documents of a conversation stand in its system turn, the same on both sides and in transfers."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from tandem.backends.torch.engine import HuggingFaceEngine
from tandem.core.prompt import Turn
from tandem.generation.request import GenerationRequest
from tandem.specdec.messages import GenerationParams
from tandem.testing.scripted import ScriptedTokenizer
from tandem.text.chat_rendering import NO_VARIABLES
from tandem.text.document_place import SYSTEM_TEXT, document_head
from tandem.two_sided.decoding.document_decoder import SEPARATOR, Documents
from tandem.two_sided.protocol.messages import ContextDocument
from tandem_api.decoding.v1 import decoding_pb2 as pb
from tandem_api.decoding.v1 import decoding_pb2_grpc as pb_grpc
from tests.services.decoding_peer import (
    VOCABULARY,
    OneDecoder,
    aggregator_peer,
    decoder,
    opening,
)
from tests.services.scripted_suite import sample
from tests.services.two_sided_suite import two_sides
from tests.unit.backends.reference_models import VOCABULARY as TINY_VOCABULARY
from tests.unit.backends.reference_models import pair

TEXT = "the heron note"
ASKED = (Turn("user", "what of the heron?"),)
TIMEOUT_S = 30.0


class TurnTokenizer(ScriptedTokenizer):
    """Writes who speaks before each turn, as chat templates do."""

    template_tells_date = False

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        images: int = 0,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> list[int]:
        turns = (f"[{message['role']}]{message['content']}" for message in messages)
        return self.encode("".join(turns) + "[assistant]")

    def encode_piece(self, text: str) -> list[int]:
        return self.encode(text)


TOKENIZER = TurnTokenizer(VOCABULARY)


def kept_tokens(one: OneDecoder) -> float:
    """Tokens of documents whose keys and values the decoder has."""
    kept = sample(one.metrics, "tandem_document_kv_bytes", model_name=one.engine.model_name)
    return kept / one.engine.kv_bytes_per_token


async def test_documents_follow_the_beginning_of_the_system_turn() -> None:
    """They are computed once for all conversations, whatever these say, and apart for texts."""
    head = document_head(TOKENIZER)
    document = TOKENIZER.encode(TEXT + SEPARATOR)
    async with decoder("verifier", documents=Documents(TOKENIZER)) as one:
        for prompt in (ASKED, (Turn("system", "Be brief."), *ASKED)):
            async with aggregator_peer(one.running) as peer:
                opened = await peer.open(
                    opening(prompt=prompt, documents=(ContextDocument(TEXT, 0.0),))
                )
                await peer.drafts(1)
                await peer.cancel()
            system = SYSTEM_TEXT if prompt == ASKED else "Be brief."
            said = f"[system]{system}[user]what of the heron?[assistant]"
            assert opened.prompt_ids == tuple(TOKENIZER.encode(said))
            assert kept_tokens(one) == len(head) + len(document)
        # The other side gets the prompt as token ids, and finds the same place.
        async with aggregator_peer(one.running) as peer:
            await peer.open(
                opening(prompt=opened.prompt_ids, documents=(ContextDocument(TEXT, 0.0),))
            )
            await peer.drafts(1)
            await peer.cancel()
        assert kept_tokens(one) == len(head) + len(document)
        async with aggregator_peer(one.running) as peer:
            await peer.open(opening(prompt="a text", documents=(ContextDocument(TEXT, 0.0),)))
            await peer.drafts(1)
            await peer.cancel()
        assert kept_tokens(one) == len(head) + 2 * len(document)
        async with grpc.aio.insecure_channel(one.running.target) as channel:
            stub = pb_grpc.DecodingServiceStub(channel)
            await stub.ForgetDocuments(pb.ForgetDocumentsRequest(texts=[TEXT]), timeout=TIMEOUT_S)
        assert kept_tokens(one) == 0


@pytest.mark.parametrize("preset", ["drcg-text", "drcg-kv"])
async def test_transferred_keys_and_values_are_used_in_conversations(
    preset: str, tmp_path: Path
) -> None:
    """They are of the document in its place: otherwise the device would compute them again."""
    request = GenerationRequest(
        ASKED,
        preset,
        GenerationParams(seed=5, max_tokens=12),
        query="heron",
        documents=2,
    )
    public = ("public heron text " * 6, "a heron in general")
    models: list[Any] = [copy.deepcopy(pair("llama").reference) for _ in range(2)]
    engines = [
        HuggingFaceEngine(model, model_name="llama", vocabulary_hash="v") for model in models
    ]
    async with two_sides(
        tmp_path,
        public=public,
        engines=engines,
        weights=("the weights", "the weights"),
        tokenizer=TurnTokenizer(TINY_VOCABULARY),
    ) as sides:
        by_transfer = await sides.client.generate(request)
        alone = await sides.client.generate(replace(request, preset="drcg-text"))
        lookups = partial(sample, sides.drafter_metrics, "tandem_document_kv_lookups_total")
        imported = lookups(model_name="llama", source="imported")
    assert by_transfer.token_ids == alone.token_ids
    assert imported == (1 if preset == "drcg-kv" else 0)  # the sequence of both
