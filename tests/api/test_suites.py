"""The public Python API over suites of scripted models: whole and streamed, sync and async."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest

import tandem
from tandem.api import suites
from tandem.generation.client import Generated
from tandem.generation.figures import Figures, answer_figures
from tandem.suite.embedded import EmbeddedSuite
from tandem.suite.models import ModelPair
from tandem_api.common.v1 import generation_pb2
from tests.unit.cli.scripted_pair import scripted_pair

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> ModelPair:
    """What `embedded` loads."""
    loaded = scripted_pair()
    monkeypatch.setattr(suites, "load_pair", lambda draft, target: loaded)
    return loaded


@pytest.fixture
def suite(pair: ModelPair) -> Iterator[tandem.Suite]:
    with tandem.embedded() as suite:
        yield suite


def test_a_whole_answer(suite: tandem.Suite) -> None:
    answer = suite.generate("hello", max_tokens=24, seed=3, preset="dssd")
    assert len(answer.token_ids) == len(answer.token_sources) == 24
    assert (answer.finish_reason, answer.seed) == ("length", 3)
    assert set(answer.token_sources) == {"draft", "target"}
    figures = answer.figures
    assert (figures.preset, figures.tokens) == ("dssd", 24)
    assert figures.acceptance_rate == figures.accepted / figures.drafted
    assert figures.ttft_s is not None
    assert 0 < figures.ttft_s < figures.duration_s
    assert figures.device is None


def test_pieces_make_the_answer(suite: tandem.Suite) -> None:
    with suite.stream("hello", max_tokens=24, seed=3, logprobs=True, top_logprobs=2) as stream:
        pieces = list(stream)
    answer = stream.answer
    assert answer == replace(answer, text="".join(piece.text for piece in pieces))
    assert answer.token_ids == tuple(token for piece in pieces for token in piece.token_ids)
    assert answer.logprobs == tuple(one for piece in pieces for one in piece.logprobs)
    assert [len(top) for top in answer.top_logprobs] == [2] * 24
    assert len(pieces) > 1


def test_token_ids_and_messages(suite: tandem.Suite) -> None:
    ids = suite.generate("hello", max_tokens=8, seed=1)
    again = suite.generate([ord(letter) % 64 for letter in "hello"], max_tokens=8, seed=1)
    assert again.text == ids.text
    chatted = suite.chat(MESSAGES, max_tokens=8, seed=1)
    assert chatted.text == ids.text  # the template adds nothing
    assert chatted.text == "".join(p.text for p in suite.stream(MESSAGES, max_tokens=8, seed=1))


def test_leaving_a_stream_cancels_the_request(suite: tandem.Suite, pair: ModelPair) -> None:
    with suite.stream("hello", max_tokens=400) as stream:
        next(stream)
    with pytest.raises(tandem.TandemError, match="without a summary"):
        _ = stream.answer
    while pair.draft.sessions_open or pair.target.sessions_open:  # until the test's time is up
        suite.generate("hello", max_tokens=1)


def test_threads_may_share_a_suite(suite: tandem.Suite) -> None:
    texts: list[str] = []

    def ask() -> None:
        texts.append(suite.generate("hello", max_tokens=16, seed=5).text)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [texts[0]] * 3


def test_nothing_is_left_of_a_closed_suite(pair: ModelPair) -> None:
    before = {*threading.enumerate()}  # some of earlier tests, which may end
    with tandem.embedded() as suite:
        suite.generate("hello", max_tokens=2)
    assert {*threading.enumerate()} <= before
    assert (pair.draft.sessions_open, pair.target.sessions_open) == (0, 0)
    with pytest.raises(tandem.FailedPrecondition, match="the suite is closed"):
        suite.generate("hello")
    with pytest.raises(tandem.FailedPrecondition, match="not open"):
        asyncio.run(tandem.embedded_async().generate("hello"))


def test_what_kept_a_suite_from_opening_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(draft: object, target: object) -> ModelPair:
        raise tandem.CannotLoad("no room")

    monkeypatch.setattr(suites, "load_pair", fail)
    before = {*threading.enumerate()}  # some of earlier tests, which may end
    with pytest.raises(tandem.CannotLoad, match="no room"), tandem.embedded():
        pass
    suite = tandem.embedded()
    for _ in range(2):  # the second tries again
        with pytest.raises(tandem.CannotLoad, match="no room"):
            suite.generate("hello")
    assert {*threading.enumerate()} <= before


async def test_a_suite_needs_no_context_even_where_an_event_loop_runs(pair: ModelPair) -> None:
    before = {*threading.enumerate()}
    suite = tandem.embedded()
    assert {*threading.enumerate()} <= before, "opened before it is asked"
    assert len(suite.generate("hello", max_tokens=4).token_ids) == 4
    pieces = suite.stream("hello", max_tokens=4)
    assert "".join(piece.text for piece in pieces) == pieces.answer.text
    suite.close()
    suite.close()
    assert {*threading.enumerate()} <= before


def test_what_nobody_holds_is_closed(pair: ModelPair) -> None:
    before = {*threading.enumerate()}
    stream = tandem.embedded().stream("hello", max_tokens=24, seed=3)
    assert len([token for piece in stream for token in piece.token_ids]) == 24
    del stream
    while not {*threading.enumerate()} <= before:  # until the test's time is up
        time.sleep(0.01)
    assert (pair.draft.sessions_open, pair.target.sessions_open) == (0, 0)


def test_a_stream_ends_with_its_suite(pair: ModelPair) -> None:
    suite = tandem.embedded()
    stream = suite.stream("hello", max_tokens=200)
    next(stream)
    suite.close()
    with pytest.raises(tandem.FailedPrecondition, match="the suite is closed"):
        next(stream)
    stream.close()


async def test_the_same_in_asyncio(pair: ModelPair) -> None:
    async with tandem.embedded_async(rtt_s=0.02) as suite:
        answer, chatted = await asyncio.gather(
            suite.generate("hello", max_tokens=12, seed=2),
            suite.chat(MESSAGES, max_tokens=12, seed=2),
        )
        async with suite.stream("hello", max_tokens=12, seed=2) as stream:
            pieces = [piece async for piece in stream]
    assert answer.figures.ttft_s is not None
    assert answer.figures.ttft_s >= 0.02
    assert "".join(piece.text for piece in pieces) == stream.answer.text == answer.text
    assert len(chatted.token_ids) == 12


async def test_a_running_suite_and_its_refusals() -> None:
    async with (
        EmbeddedSuite(scripted_pair()) as running,
        tandem.connect_async(running.target) as suite,
    ):
        assert len((await suite.generate("hello", max_tokens=5)).token_ids) == 5
        with pytest.raises(tandem.InvalidArgument) as refused:
            await suite.generate((5, 64))
        assert refused.value.field == "prompt"
        with pytest.raises(tandem.DeadlineExceeded) as late:
            await suite.generate("hello", max_tokens=400, timeout_s=0.001)
        assert isinstance(late.value, TimeoutError)
    async with (
        EmbeddedSuite(scripted_pair(draft_vocabulary=32)) as running,
        tandem.connect_async(running.target) as suite,
    ):
        with pytest.raises(tandem.FailedPrecondition, match="vocabular"):
            await suite.generate("hello")
    async with tandem.connect_async("127.0.0.1:1") as suite:
        with pytest.raises(tandem.Unavailable, match=r"^127\.0\.0\.1:1: "):
            await suite.generate("hello")


def test_bad_arguments_of_an_embedded_suite(tmp_path: object) -> None:
    with pytest.raises(tandem.CannotLoad, match="no such folder, file or model"):
        tandem.embedded("nothing-here")
    with pytest.raises(tandem.InvalidArgument, match="mbps"):
        tandem.embedded(mbps=-1)
    with pytest.raises(tandem.InvalidArgument, match="does not exist"):
        tandem.embedded(device_documents=["nothing-here"])
    wrong: dict[str, Any] = {
        "rtt_s": "far",
        "threads": 1.5,
        "draft": 3,
        "device_documents": "notes",
    }
    for name, value in wrong.items():
        with pytest.raises(tandem.InvalidArgument, match="must be of type") as refused:
            tandem.embedded(**{name: value})
        assert refused.value.field == name
    with pytest.raises(tandem.InvalidArgument, match=r"^endpoint: must be of type str, is 3"):
        tandem.connect(3)  # type: ignore[arg-type]


def test_figures_are_those_of_the_command_line() -> None:
    summary = generation_pb2.Summary()
    summary.device.SetInParent()
    summary.choice.SetInParent()
    told = answer_figures(Generated(summary=summary))
    assert {field.name for field in fields(Figures)} == set(told)


def test_importing_is_cheap_and_the_names_are_there() -> None:
    program = (
        "import sys, tandem\n"
        "print(*sys.modules)\n"
        "assert dir(tandem) == sorted(tandem.__all__)\n"
        "[getattr(tandem, name) for name in tandem.__all__]\n"
        "assert tandem.connect.__doc__ and 'torch' not in sys.modules\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert not {"torch", "grpc", "numpy", "tandem.api"} & set(ended.stdout.split())
    assert set(tandem.__all__) == {*tandem.api.__all__, "__version__"}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tandem.nothing  # noqa: B018
