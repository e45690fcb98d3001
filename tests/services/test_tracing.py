"""One trace of a request across aggregator, drafter and verifier, recorded in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tandem.generation.client import AggregatorClient
from tandem.generation.request import GenerationRequest
from tandem.net.status import Rejected
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.http import serve_http
from tandem.specdec.messages import GenerationParams
from tandem.telemetry.tracing import RecordedTracing, new_provider
from tests.services.scripted_suite import (
    scripted_suite,
    summary_of,
    until,
)
from tests.services.two_sided_suite import two_sides

PROMPT = "a secret question"
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"
"""A trace that a caller began, as W3C has it, less whether it is recorded."""


def recorded(service: str, spans: InMemorySpanExporter, sample: float = 1.0) -> RecordedTracing:
    provider = new_provider(service, sample)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return RecordedTracing(provider)


@dataclass(frozen=True, slots=True)
class Traced:
    """Both doors of a suite that records."""

    client: AggregatorClient
    url: str


@asynccontextmanager
async def traced_suite(spans: InMemorySpanExporter, sample: float = 1.0) -> AsyncIterator[Traced]:
    """Each service with a provider of its own, as processes have."""
    settings = AggregatorSettings(http_port=0, insecure=True)

    def tracing(service: str) -> RecordedTracing:
        return recorded(service, spans, sample if service == "aggregator" else 1.0)

    async with (
        scripted_suite(settings=settings, tracing=tracing) as suite,
        serve_http(settings, suite.front_metrics, suite.front) as words,
    ):
        yield Traced(suite.client, words.removeprefix("http "))


def named(spans: Sequence[ReadableSpan], name: str) -> list[ReadableSpan]:
    return [span for span in spans if span.name == name]


def service(span: ReadableSpan) -> str:
    return str(span.resource.attributes["service.name"])


def parent_id(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


@pytest.mark.parametrize("preset", ["coupled", "dssd", "stream"])
async def test_a_request_is_one_trace_across_the_services(preset: str) -> None:
    exporter = InMemorySpanExporter()
    async with traced_suite(exporter) as suite:
        request = GenerationRequest(
            PROMPT, preset, GenerationParams(max_tokens=20, ignore_eos=True, seed=1)
        )
        generated = await suite.client.generate(request)
    spans = exporter.get_finished_spans()
    assert len({span.context.trace_id for span in spans if span.context}) == 1
    (root,), (drafting,), (verifying,) = (
        named(spans, name) for name in ("request", "generate", "verify session")
    )
    assert root.context is not None
    assert drafting.context is not None
    assert verifying.context is not None
    parents = [parent_id(span) for span in (root, drafting, verifying)]
    assert parents == [None, root.context.span_id, drafting.context.span_id]
    expected = ["tandem-aggregator", "tandem-drafter", "tandem-verifier"]
    assert [service(span) for span in (root, drafting, verifying)] == expected
    (waited,) = named(spans, "wait for a slot")
    assert parent_id(waited) == root.context.span_id
    rounds, passes = named(spans, "draft round"), named(spans, "verify pass")
    # A cloud that streams may be ahead of every draft, so that no round of drafts comes about.
    assert rounds or preset == "stream"
    assert {parent_id(span) for span in rounds} <= {drafting.context.span_id}
    assert {parent_id(span) for span in passes} == {verifying.context.span_id}
    assert verifying.attributes is not None
    assert len(passes) == verifying.attributes["tandem.target_passes"]
    assert len(passes) >= summary_of(generated).target_passes
    assert root.attributes == {"tandem.preset": preset, "tandem.tokens": 20}
    for span in spans:
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.start_time <= span.end_time
        assert PROMPT not in span.to_json()


async def test_an_answer_from_two_sides_is_one_trace(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    async with two_sides(tmp_path, tracing=lambda name: recorded(name, exporter)) as suite:
        request = GenerationRequest(
            PROMPT, "dragon-coupled", GenerationParams(max_tokens=8), query="heron"
        )
        await suite.client.generate(request)
        # The verifier hears of the end a moment after the caller has the answer.
        await until(lambda: len(named(exporter.get_finished_spans(), "decode")) == 2)
    spans = exporter.get_finished_spans()
    names = {span.context.span_id: service(span) for span in spans if span.context}
    tree = {(span.name, service(span), names.get(parent_id(span) or 0)) for span in spans}
    assert tree == {
        ("collaborate", "tandem-cloud-aggregator", "tandem-aggregator"),
        ("decode", "tandem-drafter", "tandem-aggregator"),
        ("decode", "tandem-verifier", "tandem-cloud-aggregator"),
        ("request", "tandem-aggregator", None),
        ("search", "tandem-cloud-retriever", "tandem-cloud-aggregator"),
        ("search", "tandem-device-retriever", "tandem-aggregator"),
        ("wait for a slot", "tandem-aggregator", "tandem-aggregator"),
    }
    assert len({span.context.trace_id for span in spans if span.context}) == 1
    assert not any(word in span.to_json() for span in spans for word in (PROMPT, "heron"))
    searches = {service(span): span.attributes for span in named(spans, "search")}
    for side in ("device", "cloud"):
        found = {"side": side, "mode": "hybrid", "rerank": False, "documents": 2}
        attributes = {f"tandem.{name}": value for name, value in found.items()}
        assert searches[f"tandem-{side}-retriever"] == attributes


async def test_a_trace_goes_on_through_the_serve_http() -> None:
    exporter = InMemorySpanExporter()
    body = {"model": "scripted", "prompt": PROMPT, "max_tokens": 4}
    async with traced_suite(exporter) as suite, httpx2.AsyncClient(base_url=suite.url) as http:
        for headers in ({"traceparent": f"{CALLER}-01"}, {}):
            answer = await http.post("/v1/completions", json=body, headers=headers)
            assert answer.status_code == 200
    spans = exporter.get_finished_spans()
    parents = [parent_id(span) for span in named(spans, "request")]
    assert parents == [int(CALLER[-16:], 16), None]
    traces = [span.context.trace_id for span in named(spans, "verify session") if span.context]
    assert traces[0] == int(CALLER[3:35], 16) != traces[1]


async def test_what_is_not_sampled_at_the_front_is_recorded_nowhere() -> None:
    exporter = InMemorySpanExporter()
    async with traced_suite(exporter, sample=0.0) as suite:
        await suite.client.generate(
            GenerationRequest(PROMPT, params=GenerationParams(max_tokens=4))
        )
    assert exporter.get_finished_spans() == ()


async def test_a_refused_request_is_marked_without_its_words() -> None:
    exporter = InMemorySpanExporter()
    async with traced_suite(exporter) as suite:
        with pytest.raises(Rejected):
            await suite.client.generate(
                GenerationRequest(PROMPT * 200, params=GenerationParams(max_tokens=4))
            )
    spans = exporter.get_finished_spans()
    (root,) = named(spans, "request")
    assert (root.status.status_code.name, root.status.description) == ("ERROR", "Rejected")
    assert not root.events
    assert not named(spans, "verify session")


@pytest.mark.parametrize(("flag", "spans"), [("01", 1), ("00", 0)])
def test_a_caller_s_trace_is_continued_as_the_caller_decided(flag: str, spans: int) -> None:
    exporter = InMemorySpanExporter()
    tracing = recorded("aggregator", exporter, sample=0.0 if spans else 1.0)
    headers = (("other-bin", b"\xff"), ("traceparent", f"{CALLER}-{flag}"))
    with tracing.span("request", headers) as span:
        assert (span.headers() or ())[0][1].startswith(CALLER[:36])
    finished = exporter.get_finished_spans()
    assert len(finished) == spans
    for done in finished:
        assert parent_id(done) == int(CALLER[-16:], 16)
