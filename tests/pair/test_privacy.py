"""No private document leaves the device: everything that it sends towards the cloud is read here.

Real services over TCP, with one demo model at both sides, so that keys and values may come down.
Taps lie before the cloud's aggregator and the verifier, which are all that the device ever calls.
Ingest, searches and thirty answers, by every preset that uses the device's documents. What is
sought is any 16 bytes in a row of a private document that are neither in a question nor in an
answer: in the bytes as they travelled, in every string and bytes field, and in the text of every
token id: prompts, drafts in a row, and distributions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path

import httpx2
import pytest

from tandem.core.probs import SamplingParams
from tandem.gateway.app import GatewaySettings, make_app
from tandem.generation.client import AggregatorClient, Generated
from tandem.generation.request import GenerationRequest
from tandem.net.lifecycle import RunningService, Service
from tandem.net.retriever_client import RetrieverClient
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.servicer import AggregatorServicer
from tandem.services.drafter.servicer import DrafterLimits, DrafterServicer
from tandem.services.verifier.servicer import VerifierLimits, VerifierServicer
from tandem.specdec.messages import GenerationParams
from tandem.suite.models import ModelPair, choose_model, demo_source, load_pair
from tandem.suite.suite_documents import demo_documents, fill
from tandem.telemetry.metrics import Metrics, new_registry
from tandem.testing.listed_tokens import likeliest_first
from tandem.text import Tokenizer
from tandem.two_sided.decoding.document_decoder import Documents
from tandem.two_sided.protocol.messages import SideDraftFrame
from tandem.two_sided.serving.peer_codec import CloudSideCodec
from tandem_api.aggregator.v1 import aggregator_pb2
from tandem_api.verifier.v1 import verifier_pb2
from tests.long_runs import LONG
from tests.services.scripted_suite import started
from tests.services.two_sided_suite import retriever
from tests.wire_tap import WireTap, id_lists_in, leaked, texts_in, wire_tap

ANSWERS = 30
FEW_ANSWERS = 12
"""In `make test`: every preset and question; `make test-long` has each with more of the others."""
AT_ONCE = 10
TOKENS = 6
PIECE = 16
PRESETS = (
    *("dragon", "dragon-coupled", "dragon-lossy", "drdg-tw", "drdg-sw"),
    *("dragon placement=cloud", "dragon placement=random", "crcg-device", "drcg-text", "drcg-kv"),
)
QUOTED = "The build machine is called grebe"
"""Stands in a note, and in one of the questions: what is asked does leave."""
QUESTIONS = (
    "How long is a Python release maintained, and which ones does Heron support?",
    "Question: What did the linter refuse after the incident of the Lund clinic?\nAnswer:",
    f"{QUOTED} and its base Python is",
    "Where does the time go, and what about the interpreter lock?",
    "Who has the passphrase of the test database?",
    "Where does the wren winter, and whom does its finder call?",
)


@dataclass(frozen=True, slots=True)
class Tapped:
    """A suite, and what its device sends to the cloud's aggregator and to the verifier."""

    client: AggregatorClient
    page: httpx2.AsyncClient
    notes: RetrieverClient
    cloud: WireTap
    verifier: WireTap


DROPPED = """# Wren

The wren winters in the boathouse at Skarvik. Its harness is orange, and number 8841 is scratched
into the clasp. Who finds it calls Mirjam Oduya before noon; she keeps the log in the tin box.
"""
"""A file that the page's visitor drops for the device while the taps listen."""


@pytest.mark.parametrize("count", [FEW_ANSWERS, pytest.param(ANSWERS, marks=LONG)])
async def test_no_private_document_leaves_the_device(count: int, tmp_path: Path) -> None:
    model = choose_model(demo_source("demo-draft"))
    pair = load_pair(model, model)
    async with tapped_suite(pair, tmp_path) as suite:
        dropped = {"name": "wren.md", "content": DROPPED}
        assert (await suite.page.post("/v1/tandem/documents", json=dropped)).status_code == 200
        for question in QUESTIONS:
            assert (await suite.notes.search(question, 5)).hits
        answers = await answered(suite.client, count)
    assert len(answers) == count
    assert sum(bool(one.token_ids) for one in answers) == count
    private = [path.read_bytes() for path in demo_documents().device[0].glob("*.md")]
    assert len(private) == 5
    private.append(DROPPED.encode())
    assert any("wren.md" in one.summary.device.names for one in answers if one.summary)
    public = [text.encode() for text in (*QUESTIONS, *(one.text for one in answers))]
    seen = seen_by_the_cloud(suite, pair.tokenizer, count)
    assert leaked(private, seen, public, PIECE) == b""
    # The search is not blind: what a question quotes is on the wire, once as text, once as ids.
    assert leaked([QUOTED.encode()], suite.cloud.everything, [], PIECE)
    assert seen.count(QUOTED.encode()) > suite.cloud.everything.count(QUOTED.encode())


async def test_a_device_that_answers_alone_sends_nothing(tmp_path: Path) -> None:
    model = choose_model(demo_source("demo-draft"))
    async with tapped_suite(load_pair(model, model), tmp_path) as suite:
        request = GenerationRequest(
            QUESTIONS[0],
            "crcg-device",
            GenerationParams(max_tokens=TOKENS, ignore_eos=True),
            documents=2,
        )
        answer = await suite.client.generate(request, 60.0)
        assert len(answer.token_ids) == TOKENS
        assert not suite.cloud.messages(aggregator_pb2.CollaborateRequest)
        assert not suite.verifier.messages(verifier_pb2.VerifyRequest)
        assert leaked([QUESTIONS[0].encode()], suite.cloud.everything, [], PIECE) == b""
        asked = replace(request, preset="dragon-coupled")
        await suite.client.generate(asked, 60.0)
        assert leaked([QUESTIONS[0].encode()], suite.cloud.everything, [], PIECE)


async def answered(client: AggregatorClient, count: int) -> list[Generated]:
    """As many answers as there are pairs of a preset and a question in this order, some at once, a
    fifth at temperature 0."""
    asked = zip(cycle(PRESETS), cycle(QUESTIONS), range(count), strict=False)
    requests = [
        GenerationRequest(
            question,
            method.split()[0],
            GenerationParams(
                sampling=SamplingParams(temperature=0.0 if number % 5 == 4 else 1.0),
                max_tokens=TOKENS,
                seed=number,
                ignore_eos=True,
            ),
            documents=2,
            overrides=tuple(method.split()[1:]),
        )
        for method, question, number in asked
    ]
    answers: list[Generated] = []
    for start in range(0, count, AT_ONCE):
        group = requests[start : start + AT_ONCE]
        answers += await asyncio.gather(*(client.generate(one, 60.0) for one in group))
    return answers


@asynccontextmanager
async def tapped_suite(pair: ModelPair, folder: Path) -> AsyncIterator[Tapped]:
    """Both sides on loopback, filled with the demo's documents while the taps listen."""
    async with AsyncExitStack() as stack:

        async def serve(service: Service) -> str:
            running: RunningService = await started(service)
            stack.push_async_callback(running.drain, 0.5)
            return running.target

        device, cloud = (Metrics(new_registry(), side) for side in ("device", "cloud"))
        notes = await stack.enter_async_context(retriever(folder / "device", "device"))
        pages = await stack.enter_async_context(retriever(folder / "cloud", "cloud"))
        decoded = Documents(pair.tokenizer, weights=lambda: "the demo's")
        verifier = await serve(
            VerifierServicer(pair.target, VerifierLimits(), cloud, documents=decoded)
        )
        to_verifier = await stack.enter_async_context(wire_tap(verifier))
        drafter = await serve(
            DrafterServicer(
                *(pair.draft, pair.tokenizer, to_verifier.address, DrafterLimits(), device),
                documents=decoded,
            )
        )
        settings = AggregatorSettings(
            side="cloud", decoder=verifier, retriever=pages.running.target, http=False
        )
        to_cloud = await stack.enter_async_context(
            wire_tap(await serve(AggregatorServicer(settings, Metrics(new_registry(), "cloud"))))
        )
        settings = AggregatorSettings(
            drafter=drafter,
            retriever=notes.running.target,
            cloud=to_cloud.address,
            http=False,
        )
        servicer = AggregatorServicer(settings, Metrics(new_registry(), "device"))
        front = await serve(servicer)
        adding = GatewaySettings(documents=servicer.requests.documents)
        transport = httpx2.ASGITransport(make_app(servicer.requests, device, adding))
        page = await stack.enter_async_context(
            httpx2.AsyncClient(base_url="http://localhost", transport=transport)
        )
        addresses = {"device": notes.running.target, "cloud": pages.running.target}
        await fill(demo_documents(), addresses)
        client = await stack.enter_async_context(AggregatorClient(front))
        await client.describe()
        yield Tapped(client, page, notes.client, to_cloud, to_verifier)


def seen_by_the_cloud(suite: Tapped, tokenizer: Tokenizer, answers: int) -> bytes:
    """All that the device sent: as bytes, as fields, and as the text that its ids spell."""
    seen = [suite.cloud.everything, suite.verifier.everything]
    frames = [
        frame
        for frame in suite.cloud.messages(aggregator_pb2.CollaborateRequest)
        if frame.WhichOneof("message")  # else it is of another kind
    ]
    fetched = suite.cloud.messages(aggregator_pb2.FetchDocumentsRequest)
    assert any(message.HasField("want") for message in fetched)
    asked = suite.verifier.messages(verifier_pb2.VerifyRequest)
    for message in (*frames, *fetched, *asked):
        seen += texts_in(message)
        seen += [spelled(tokenizer, ids) for _, ids in id_lists_in(message)]
    drafted = drafts_and_distributions(frames)
    assert len(drafted) > answers
    return b"\0".join([*seen, *(spelled(tokenizer, ids) for ids in drafted)])


def drafts_and_distributions(
    frames: Sequence[aggregator_pb2.CollaborateRequest],
) -> list[list[int]]:
    """Of each stream the drafts in a row, and the likeliest tokens of their distributions in a row;
    and each token that a distribution or top list has, alone, since they are alternatives and no
    text."""
    rows: list[list[int]] = []
    alone: set[int] = set()
    end = CloudSideCodec()
    for frame in frames:
        if frame.HasField("open"):
            end = CloudSideCodec()
            rows += [], []
        message = end.decode(frame)
        if frame.HasField("open"):
            end.opened(frame.open.vocabulary_size)
        if isinstance(message, SideDraftFrame):
            rows[-2].append(message.token_id)
            alternatives = likeliest_first(message.probs)
            rows[-1] += alternatives[:1]
            alone.update(alternatives)
    return [*rows, *([token] for token in alone)]


def spelled(tokenizer: Tokenizer, token_ids: Sequence[int]) -> bytes:
    stream = tokenizer.detokenizer()
    return (stream.push(token_ids) + stream.finish()).encode()
