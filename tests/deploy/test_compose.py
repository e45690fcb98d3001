"""The composed suite, running and undisturbed: what it answers, who can reach whom."""

from __future__ import annotations

import asyncio
import time

import pytest
import requests

from tandem.backends.model_source import ModelChoice
from tandem.generation.client import AggregatorClient, Generated
from tandem.generation.request import GenerationRequest
from tandem.specdec.messages import GenerationParams
from tandem.suite.embedded import EmbeddedSuite
from tandem.suite.models import load_pair
from tests.deploy.composed import ROOT, SERVICES, Composed
from tests.deploy.traffic import ask, completion, from_documents

ANSWERED = ("coupled", "dssd", "stream", "auto")
SEED = 5
EDGE = ("edge-aggregator", "drafter", "edge-retriever")
CLOUD = ("verifier", "cloud-retriever", "cloud-aggregator")
pytestmark = pytest.mark.timeout(1800)  # the first test waits for images and suite

REACH = """
import socket, sys
from concurrent.futures import ThreadPoolExecutor
def reach(place):
    host, port = place.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), 2).close()
        return "reached"
    except OSError:
        return "not"
print(*ThreadPoolExecutor(len(sys.argv)).map(reach, sys.argv[1:]))
"""


def test_every_service_is_healthy(suite: Composed) -> None:
    assert {service: suite.health(service) for service in SERVICES} == dict.fromkeys(
        SERVICES, "healthy"
    )


@pytest.fixture(scope="module")
def embedded() -> dict[str, Generated]:
    """What one process of this machine answers to the same requests."""

    async def generate() -> dict[str, Generated]:
        target = str(ROOT / "models" / "demo-target")
        pair = load_pair(ModelChoice(str(ROOT / "models" / "demo-draft")), ModelChoice(target))
        async with EmbeddedSuite(pair) as local, AggregatorClient(local.target) as client:
            return {preset: await client.generate(request(preset)) for preset in ANSWERED}

    def request(preset: str) -> GenerationRequest:
        body = completion(preset, SEED)
        return GenerationRequest(
            body["prompt"], preset=preset, params=GenerationParams(max_tokens=60, seed=SEED)
        )

    return asyncio.run(generate())


@pytest.mark.parametrize("preset", ANSWERED)
def test_an_answer_is_the_embedded_suites_own(
    suite: Composed, embedded: dict[str, Generated], preset: str
) -> None:
    """Through HTTP, edge, link and cloud: the same text for the same seed."""
    body = completion(preset, SEED, max_tokens=60)
    del body["tandem"]["draft_length"]
    answer = ask(suite.address("edge-aggregator", 8000), body)
    assert (answer.status, len(answer.token_ids)) == ("ok", answer.figures["tokens"])
    assert answer.token_ids == embedded[preset].token_ids
    assert answer.text == embedded[preset].text


@pytest.mark.usefixtures("documents")
def test_both_sides_answer_from_their_documents(suite: Composed) -> None:
    answers = [ask(suite.address("edge-aggregator", 8000), from_documents()) for _ in range(2)]
    for answer in answers:
        assert answer.status == "ok"
        assert answer.text == answers[0].text != ""
        for side in ("device", "cloud"):
            assert answer.figures[side]["documents"] >= 1
            assert answer.figures[side]["drafted"] > 0


@pytest.mark.usefixtures("documents")
@pytest.mark.parametrize("service", ["edge-retriever", "cloud-retriever"])
def test_documents_are_found_by_their_meaning(suite: Composed, service: str) -> None:
    """By embeddings, as nobody set anything: the question shares no word with the text."""
    best, *_ = suite.search(service, "when does ice close ports")
    assert best["document_id"].endswith("brimmond.md")
    assert (best["dense_rank"], best["lexical_rank"]) == (1, None)
    assert best["similarity"] > 0.2


def test_the_link_is_the_only_way(suite: Composed) -> None:
    """Neither by name nor by address does anybody reach the other side, but through the link."""
    for near, far in ((EDGE, CLOUD), (CLOUD, EDGE)):
        for service in near:
            places = []
            for other in far:
                places += [f"{place}:50060" for place in (other, *suite.addresses(other))]
            wrote = suite.run(service, "python", "-c", REACH, *places)
            assert wrote.split() == ["not"] * len(places), (service, places)
    assert suite.run("drafter", "python", "-c", REACH, "cloud:50051").split() == ["reached"]


def test_a_sealed_container_has_no_way_out(suite: Composed) -> None:
    """Docker forwards nothing from an internal network to elsewhere."""
    for service in set(SERVICES) - {"edge-aggregator"}:
        networks = suite.container(service).attrs["NetworkSettings"]["Networks"].values()
        for network in networks:
            assert suite.docker.networks.get(network["NetworkID"]).attrs["Internal"], service


def test_another_link_starts_the_link_anew_and_nothing_else(suite: Composed) -> None:
    def running() -> dict[str, str]:
        return {service: str(suite.container(service).id) for service in SERVICES}

    before = running()
    try:
        suite.up(LINK_RTT_MS="61")
        after = running()
    finally:
        suite.up()
    assert {service for service in SERVICES if after[service] != before[service]} == {"link"}


def test_what_is_published_is_on_loopback(suite: Composed) -> None:
    published = {
        (service, port, place["HostIp"])
        for service in (*SERVICES, "prometheus")
        for port, places in suite.container(service).ports.items()
        for place in places or ()
    }
    assert published == {
        ("edge-aggregator", "8000/tcp", "127.0.0.1"),
        ("prometheus", "9090/tcp", "127.0.0.1"),
    }


def test_the_containers_can_change_nothing(suite: Composed) -> None:
    for service in SERVICES:
        host = suite.container(service).attrs["HostConfig"]
        assert host["ReadonlyRootfs"]
        assert host["CapDrop"] == ["ALL"]
        assert host["SecurityOpt"] == ["no-new-privileges:true"]
        assert host["Memory"] > 0
        assert host["NanoCpus"] > 0
        assert host["PidsLimit"] > 0


def test_a_side_holds_its_own_private_key_only(suite: Composed) -> None:
    listed = "import os; print(*os.listdir('/access'))"
    for service in SERVICES:
        if service != "link":
            assert "ca.key" not in suite.run(service, "python", "-c", listed)
    read = "print(open('/access/tls.key').read())"
    edge, cloud = (
        suite.run("drafter", "python", "-c", read),
        suite.run("verifier", "python", "-c", read),
    )
    assert edge != cloud
    assert "PRIVATE KEY" in edge


def test_a_caller_without_certificate_is_refused(suite: Composed) -> None:
    code = (
        "import asyncio, grpc\n"
        "from tandem.generation.client import AggregatorClient\n"
        "from tandem.net.status import Rejected\n"
        "async def main():\n"
        "    async with AggregatorClient('127.0.0.1:50050') as client:\n"
        "        try:\n"
        "            await client.describe()\n"
        "        except Rejected as refused:\n"
        "            print(refused.code.name)\n"
        "asyncio.run(main())\n"
    )
    assert suite.run("edge-aggregator", "python", "-c", code).strip() == "UNAVAILABLE"


def test_prometheus_sees_every_service_and_loads_the_rules(suite: Composed) -> None:
    address = f"http://{suite.address('prometheus', 9090)}/api/v1"
    wanted = {*EDGE, *CLOUD}
    deadline_s = time.monotonic() + 30
    up: set[str] = set()
    while not wanted <= up and time.monotonic() < deadline_s:
        found = requests.get(f"{address}/query", {"query": "up == 1"}, timeout=10).json()
        up = {one["metric"].get("service", "") for one in found["data"]["result"]}
        time.sleep(0.2)
    assert wanted <= up
    groups = requests.get(f"{address}/rules", timeout=10).json()["data"]["groups"]
    assert any(rule["type"] == "alerting" for group in groups for rule in group["rules"])
    assert all(rule["health"] != "err" for group in groups for rule in group["rules"])
