"""The keys that `tandem certs` makes are enough for all that the suite does: every preset's way,
ingestion and deletion on both sides, behind the files that each side gets and no others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from tandem.cli import main
from tandem.generation.client import AggregatorClient
from tandem.index.document_index import open_index
from tandem.net.access import ClientAccess, ServerAccess, client_access, server_access
from tandem.net.connection import Connection
from tandem.net.retriever_client import MAX_MESSAGE_BYTES, RetrieverClient, Upload
from tandem.net.status import Rejected
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.servicer import AggregatorServicer
from tandem.services.drafter.servicer import DrafterLimits, DrafterServicer
from tandem.services.retriever.forgetting import Forgetting
from tandem.services.retriever.servicer import RetrieverLimits, RetrieverServicer
from tandem.services.verifier.servicer import VerifierLimits, VerifierServicer
from tandem.settings import ServiceSettings
from tandem.telemetry.metrics import Metrics, Side, new_registry
from tandem.two_sided.decoding.document_decoder import Documents
from tests.services.decoding_peer import TOKENIZER
from tests.services.scripted_suite import serving
from tests.services.test_document_transfer import PUBLIC, REQUEST, engines

NOTES = ("my heron note", "the heron is old")


@dataclass(frozen=True, slots=True)
class Place:
    """What the services of one side have: whom they let in, and what they show."""

    server: ServerAccess
    client: ClientAccess


def places(folder: Path) -> dict[str, Place]:
    """As both sides read the files of `tandem certs`."""
    assert CliRunner().invoke(main, ["certs", "--out", str(folder)]).exit_code == 0
    found = {}
    for side in ("edge", "cloud"):
        settings = ServiceSettings(
            tls_certificate=folder / f"{side}.crt",
            tls_key=folder / f"{side}.key",
            tls_ca=folder / "ca.crt",
            keys_file=folder / f"{side}.keys",
            call_key_file=folder / f"{side}.call-key",
            cloud_key_file=folder / "edge.cloud-key" if side == "edge" else None,
        )
        found[side] = Place(server_access(settings), client_access(settings))
    return found


@dataclass(frozen=True, slots=True)
class Secured:
    """Addresses of the services, and what callers of each side have."""

    targets: Mapping[str, str]
    places: Mapping[str, Place]


@asynccontextmanager
async def secured_sides(folder: Path) -> AsyncIterator[Secured]:
    """Six services, three a side, wired as Compose and the chart wire them."""
    have = places(folder / "certs")
    targets: dict[str, str] = {}
    device, cloud = engines()
    kept = Documents(TOKENIZER, weights=lambda: "the weights")
    async with AsyncExitStack() as stack:

        async def serve(name: str, side: str, service: object) -> None:
            running = serving(service, access=have[side].server)  # type: ignore[arg-type]
            targets[name] = (await stack.enter_async_context(running)).target

        def retriever(side: str, role: Side, decoder: str) -> RetrieverServicer:
            way = Connection(targets[decoder], MAX_MESSAGE_BYTES, have[side].client)
            index = open_index(folder / side, "lexical")
            metrics = Metrics(new_registry(), role)
            make = partial(RetrieverServicer, index, role, (), RetrieverLimits(), metrics)
            return make(forgetting=Forgetting([way]))

        metrics = Metrics(new_registry(), "cloud")
        limits = VerifierLimits()
        await serve("verifier", "cloud", VerifierServicer(cloud, limits, metrics, documents=kept))
        await serve("cloud-retriever", "cloud", retriever("cloud", "cloud", "verifier"))
        settings = AggregatorSettings(
            side="cloud",
            decoder=targets["verifier"],
            retriever=targets["cloud-retriever"],
            http=False,
        )
        served = AggregatorServicer(
            settings, Metrics(new_registry(), "cloud"), have["cloud"].client
        )
        await serve("cloud-aggregator", "cloud", served)
        edge, metrics = have["edge"].client, Metrics(new_registry(), "device")
        drafter = partial(DrafterServicer, device, TOKENIZER, targets["verifier"], DrafterLimits())
        await serve("drafter", "edge", drafter(metrics, edge.to_cloud(), documents=kept))
        await serve("edge-retriever", "edge", retriever("edge", "device", "drafter"))
        settings = AggregatorSettings(
            drafter=targets["drafter"],
            retriever=targets["edge-retriever"],
            cloud=targets["cloud-aggregator"],
            http=False,
        )
        served = AggregatorServicer(settings, Metrics(new_registry(), "device"), edge)
        await serve("edge-aggregator", "edge", served)
        yield Secured(targets, have)


async def test_the_keys_of_each_side_are_enough_for_all_that_it_does(tmp_path: Path) -> None:
    async with secured_sides(tmp_path) as suite:
        for side, texts in (("edge", NOTES), ("cloud", PUBLIC)):
            access, target = suite.places[side].client, suite.targets[f"{side}-retriever"]
            async with RetrieverClient(target, access) as client:
                uploads = [Upload(f"{number}", text.encode()) for number, text in enumerate(texts)]
                assert [answer.last async for answer in client.ingest(uploads)] == [True, True]
        edge = suite.places["edge"].client
        async with AggregatorClient(suite.targets["edge-aggregator"], access=edge) as client:
            for preset in ("coupled", "dragon", "drcg-text", "drcg-kv"):
                request = replace(REQUEST, preset=preset)
                if preset == "coupled":
                    request = replace(request, query="", documents=0)
                answered = await client.generate(request)
                assert answered.token_ids, preset
            described = await client.describe()
            assert described.HasField("target"), described.cloud_error
        for side in ("edge", "cloud"):  # what was decoded leaves the decoder before the answer
            access, target = suite.places[side].client, suite.targets[f"{side}-retriever"]
            async with RetrieverClient(target, access) as client:
                assert (await client.delete(["0"]))[0]


async def test_neither_side_s_keys_open_the_other_side_s_services(tmp_path: Path) -> None:
    async with secured_sides(tmp_path) as suite:
        edge, cloud = suite.places["edge"].client, suite.places["cloud"].client
        for access in (cloud, edge.to_cloud()):  # all that a cloud has or sees
            async with AggregatorClient(suite.targets["edge-aggregator"], access=access) as client:
                with pytest.raises(Rejected, match="the key is unknown"):
                    await client.generate(REQUEST)
        for access, words in ((edge, "the key is unknown"), (edge.to_cloud(), "documents:read")):
            async with RetrieverClient(suite.targets["cloud-retriever"], access) as client:
                with pytest.raises(Rejected, match=words):
                    await client.stats()
