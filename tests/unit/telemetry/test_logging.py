"""Structured logs: form, context, and that a user's words stay out of them."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from grpc import _common as grpc_common

from tandem.telemetry.logging import (
    WARNING_PERIOD_S,
    WARNINGS_PER_PERIOD,
    EventLogger,
    configure_logging,
    get_logger,
    log_context,
)
from tandem_api.verifier.v1.verifier_pb2 import VerifyResponse


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """The root logger writes JSON here, and is put back afterwards."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    stream = io.StringIO()
    configure_logging("debug", stream)
    yield stream
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.fixture
def log(stream: io.StringIO) -> EventLogger:
    return get_logger("tandem.example")


def entries(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_json_line(log: EventLogger, stream: io.StringIO) -> None:
    log.info("opened", window=4, peer="cloud:1")
    (entry,) = entries(stream)
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "level": "info",
        "logger": "tandem.example",
        "event": "opened",
        "window": 4,
        "peer": "cloud:1",
    }


def test_context_is_added_nested_and_taken_back(log: EventLogger, stream: io.StringIO) -> None:
    with log_context(session="7f3a"):
        with log_context(preset="dsd"):
            log.info("inner")
        log.info("outer")
    log.info("after")
    inner, outer, after = entries(stream)
    assert (inner["session"], inner["preset"]) == ("7f3a", "dsd")
    assert outer["session"] == "7f3a"
    assert "preset" not in outer
    assert "session" not in after


async def test_context_belongs_to_its_task(log: EventLogger, stream: io.StringIO) -> None:
    both_inside = asyncio.Barrier(2)

    async def serve(session: str) -> None:
        with log_context(session=session):
            await both_inside.wait()
            log.info("served", own=session)

    await asyncio.gather(serve("a"), serve("b"))
    log.info("after")
    *served, after = [entry for entry in entries(stream) if entry["logger"] == "tandem.example"]
    assert sorted(entry["session"] for entry in served) == ["a", "b"]
    assert all(entry["session"] == entry["own"] for entry in served)
    assert "session" not in after


async def test_a_generator_closed_by_another_task_does_no_harm(log: EventLogger) -> None:
    async def stream_tokens() -> Any:
        with log_context(session="a"):
            yield 1
            yield 2

    answers = stream_tokens()
    assert await anext(answers) == 1
    await asyncio.create_task(answers.aclose())


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("prompt", "my secret", "<9 characters>"),
        ("text", "", "<0 characters>"),
        ("token_ids", [5, 6, 7], "<3 items>"),
        ("token_ids", np.arange(4), "<4 items>"),
        ("token_id", 17, "<private>"),
        ("document", object(), "<private>"),
        ("prompt", None, None),
        ("tokens", 128, 128),
    ],
)
def test_private_fields_are_replaced_by_their_size(
    log: EventLogger, stream: io.StringIO, field: str, value: object, shown: object
) -> None:
    log.info("seen", **{field: value})
    with log_context(**{field: value}):
        log.error("failed")
    assert [entry[field] for entry in entries(stream)] == [shown, shown]


def test_a_failure_carries_its_trace_on_the_same_line(
    log: EventLogger, stream: io.StringIO
) -> None:
    try:
        raise KeyError("session")
    except KeyError:
        log.exception("failed", session="a")
    (entry,) = entries(stream)
    assert entry["level"] == "error"
    assert "KeyError: 'session'" in entry["trace"]


def test_records_of_libraries_are_written_too(stream: io.StringIO) -> None:
    with log_context(session="a"):
        logging.getLogger("grpc").warning("%d streams\nleft", 2)
    (entry,) = entries(stream)
    assert (entry["logger"], entry["event"], entry["session"]) == ("grpc", "2 streams\nleft", "a")


def test_a_message_that_grpc_cannot_read_is_one_line_however_often_it_comes(
    stream: io.StringIO,
) -> None:
    """By gRPC's own code, which logs with a traceback."""
    reader = VerifyResponse.FromString
    for _ in range(1000):
        assert grpc_common.deserialize(b"\xff\xff", reader) is None
    written = entries(stream)
    assert len(written) == WARNINGS_PER_PERIOD
    assert all("trace" not in entry and "DecodeError" in entry["why"] for entry in written)


def test_what_a_library_warns_of_is_bounded_by_place_and_time(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever words a stranger puts into it; what this program says itself is all written."""
    library = logging.getLogger("example_library.errors")
    own = get_logger("tandem.example")
    now_s = 1000.0
    monkeypatch.setattr("time.time", lambda: now_s)
    monkeypatch.setattr("time.time_ns", lambda: int(now_s * 1e9))
    for number in range(100):
        library.warning("Invalid request %s", number)
        library.info("served")
        own.warning("refused", number=number)
    library.error("from another place")
    now_s += WARNING_PERIOD_S
    library.warning("Later")
    events = Counter(entry["event"].partition(" ")[0] for entry in entries(stream))
    assert events == {
        "Invalid": WARNINGS_PER_PERIOD,
        "served": 100,
        "refused": 100,
        "from": 1,
        "Later": 1,
    }
