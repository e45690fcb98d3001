"""A model behind a server of either kind has the logits of the model itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tandem.backends.interface import (
    EngineFailed,
    ForwardCancelled,
    ForwardRequest,
    Logits,
    Session,
)
from tandem.backends.remote.dialects import Dialect, Sglang, Vllm
from tandem.backends.remote.engine import Check, RemoteEngine, unchanged
from tandem.backends.remote.server import RemoteServer
from tandem.core.errors import ResourceExhausted
from tandem.testing.remote_server import FakeServer, serving
from tandem.testing.scripted import scripted_probs

VOCABULARY = 97
PROBS = scripted_probs(5, VOCABULARY, order=40)
DIALECTS: dict[str, Dialect] = {"vllm": Vllm(), "sglang": Sglang()}


@pytest.fixture(params=sorted(DIALECTS))
def fake(request: pytest.FixtureRequest) -> Iterator[FakeServer]:
    with serving(FakeServer(PROBS, VOCABULARY, dialect=request.param)) as server:
        yield server


@pytest.fixture
def engine(fake: FakeServer) -> Iterator[RemoteEngine]:
    engine = engine_of(fake)
    yield engine
    engine.close()


def engine_of(
    fake: FakeServer,
    known: int = 20,
    silent_s: float = 30.0,
    logits: int = 0,
    check: Check = unchanged,
) -> RemoteEngine:
    return RemoteEngine(
        RemoteServer(fake.url, key=fake.key, silent_s=silent_s),
        DIALECTS[fake.dialect],
        served_name=fake.model,
        model_name="fake",
        vocabulary_size=VOCABULARY,
        vocabulary_hash="hash",
        context_length=fake.context_length,
        known_tokens=known,
        logits=logits,
        check=check,
    )


def feed(engine: RemoteEngine, session: Session, token_ids: list[int], rows: int) -> Logits:
    (logits,) = engine.forward([ForwardRequest(session, tuple(token_ids), rows)])
    return logits


def assert_rows(logits: Logits, text: list[int], known: int = 20) -> None:
    """The rows are those after the last tokens of a text: exact in the likeliest tokens, and
    even in all others."""
    for back, row in enumerate(reversed(logits)):
        probs = np.asarray(PROBS(tuple(text[: len(text) - back])))
        best = np.argsort(-probs, kind="stable")[:known]
        np.testing.assert_allclose(row[best], np.log(probs[best]), atol=1e-5)
        others = np.delete(row, best)
        assert (others == others[0]).all()
        assert others[0] <= row[best].min()
        assert np.exp(row.astype(np.float64)).sum() == pytest.approx(1, abs=1e-4)


def greedy(text: list[int], count: int) -> list[int]:
    text = list(text)
    for _ in range(count):
        text.append(int(np.argmax(PROBS(tuple(text)))))
    return text[-count:]


def test_a_round_of_drafts_is_one_request(engine: RemoteEngine, fake: FakeServer) -> None:
    session = engine.open(200)
    text = [3, 1, 4, 1, 5, 9, 2, 6]
    assert_rows(feed(engine, session, text, 1), text)
    requests = len(fake.asked)
    drafts = [*greedy(text, 2), 7, 8]
    assert_rows(feed(engine, session, drafts, 4), [*text, *drafts])
    assert len(fake.asked) == requests + 1
    session.rollback(len(text) + 2)
    more = [*greedy([*text, *drafts[:2]], 1), 11, 12]
    assert_rows(feed(engine, session, more, 3), [*text, *drafts[:2], *more])


def test_the_target_alone_is_one_streamed_request(engine: RemoteEngine, fake: FakeServer) -> None:
    session = engine.open(64)
    text = [2, 7, 1, 8]
    logits = feed(engine, session, text, 1)
    for _ in range(20):
        text.append(int(logits[-1].argmax()))
        logits = feed(engine, session, text[-1:], 1)
        assert_rows(logits, text)
    assert text[4:] == greedy(text[:4], 20)
    assert len(fake.asked) == 1


def test_another_token_than_the_server_wrote_begins_another_stream(
    engine: RemoteEngine, fake: FakeServer
) -> None:
    session = engine.open(64)
    text = [2, 7, 1, 8]
    logits = feed(engine, session, text, 1)
    for step in range(6):
        likely = int(logits[-1].argmax())
        text.append(likely if step % 2 else (likely + 1) % VOCABULARY)
        logits = feed(engine, session, text[-1:], 1)
        assert_rows(logits, text)
    assert len(fake.asked) == 4


def test_a_stream_is_read_again_after_a_rollback(engine: RemoteEngine, fake: FakeServer) -> None:
    session = engine.open(64)
    text = [2, 7, 1, 8]
    feed(engine, session, text, 1)
    ahead = greedy(text, 4)
    for token_id in ahead:
        feed(engine, session, [token_id], 1)
    session.rollback(6)
    assert_rows(feed(engine, session, [ahead[2]], 1), [*text, *ahead[:3]])
    session.rollback(5)
    other = (ahead[1] + 1) % VOCABULARY
    assert_rows(feed(engine, session, [other], 1), [*text, ahead[0], other])
    assert len(fake.asked) == 2


def test_tokens_without_rows_cost_no_request(engine: RemoteEngine, fake: FakeServer) -> None:
    session = engine.open(64)
    feed(engine, session, [1, 2, 3], 0)
    assert not fake.asked
    assert_rows(feed(engine, session, [4], 1), [1, 2, 3, 4])


def test_sessions_of_a_pass_are_asked_for_at_once(engine: RemoteEngine, fake: FakeServer) -> None:
    texts = [[1, 2, 3, number] for number in range(4)]
    sessions = [engine.open(64) for _ in texts]
    batch = [
        ForwardRequest(session, tuple(text), 2)
        for session, text in zip(sessions, texts, strict=True)
    ]
    for logits, text in zip(engine.forward(batch), texts, strict=True):
        assert_rows(logits, text)
    assert len({str(asked.get("cache_salt", asked.get("extra_key"))) for asked in fake.asked}) == 4


def test_a_cancelled_pass_leaves_the_session_as_it_was(
    engine: RemoteEngine, fake: FakeServer
) -> None:
    session = engine.open(64)
    feed(engine, session, [1, 2], 1)
    fake.pass_s = 0.2
    with pytest.raises(ForwardCancelled):
        engine.forward([ForwardRequest(session, (3, 4), 2)], lambda: True)
    fake.pass_s = 0.0
    assert session.length == 2
    assert_rows(feed(engine, session, [3, 4], 2), [1, 2, 3, 4])


def test_a_closed_session_frees_the_servers_slot(engine: RemoteEngine, fake: FakeServer) -> None:
    fake.pass_s = 0.01
    session = engine.open(2000)
    feed(engine, session, [1, 2], 1)
    session.close()
    wait_until(lambda: fake.streams_left == 1)


def test_a_busy_server_is_asked_again_when_it_says(engine: RemoteEngine, fake: FakeServer) -> None:
    fake.status, fake.retry_after, fake.refusals = 429, "0.1", 2
    session = engine.open(64)
    assert_rows(feed(engine, session, [1, 2], 2), [1, 2])


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_stays_busy_is_said_to_be(
    engine: RemoteEngine, fake: FakeServer, status: int
) -> None:
    fake.status, fake.retry_after = status, "0.1"
    session = engine.open(64)
    with pytest.raises(ResourceExhausted, match="busy"):
        feed(engine, session, [1, 2], 2)
    fake.status, fake.retry_after = status, "3600"
    with pytest.raises(ResourceExhausted, match="busy"):
        feed(engine, session, [1, 2], 1)
    fake.status = 200
    assert_rows(feed(engine, session, [1, 2], 1), [1, 2])


def nothing(answer: object) -> object:
    return {}


def without_rows(answer: dict[str, object]) -> object:
    return {**answer, "meta_info": {}, "choices": []}


def not_numbers(answer: object) -> object:
    return changed(answer, lambda logprob: float("nan"))


def above_one(answer: object) -> object:
    return changed(answer, lambda logprob: 0.0)


def other_vocabulary(answer: object) -> object:
    return changed(answer, lambda logprob: logprob, lambda token_id: token_id + VOCABULARY)


def same(token_id: int) -> int:
    return token_id


def changed(
    answer: Any, number: Callable[[float], float], token: Callable[[int], int] = same
) -> Any:
    """Return an answer with other log-probabilities and token ids in its rows."""
    if isinstance(answer, dict):
        return {
            (f"token_id:{token(int(key[9:]))}" if key.startswith("token_id:") else key): (
                number(entry) if key.startswith("token_id:") else changed(entry, number, token)
            )
            for key, entry in answer.items()
        }
    if isinstance(answer, list):
        if len(answer) == 3 and isinstance(answer[0], float) and answer[2] is None:
            return [number(answer[0]), token(answer[1]), None]
        return [changed(entry, number, token) for entry in answer]
    return answer


def row_missing(answer: Any) -> object:
    """Return an answer that leaves out the second row."""
    left = {**answer, "choices": answer.get("choices", [])[:1]}
    if "meta_info" in answer:
        rows = answer["meta_info"].get("input_top_logprobs", [])[:1]
        left["meta_info"] = {"input_top_logprobs": rows, "output_top_logprobs": []}
    return left


def twice_the_same(answer: Any) -> object:
    """Return an answer that has a row's number twice, or too few rows where they have none."""
    if "choices" not in answer:
        return row_missing(answer)
    choices = answer["choices"]
    return {"choices": [{**choices[0]} for _ in choices]}


@pytest.mark.parametrize("fault", [row_missing, twice_the_same])
def test_rows_that_are_missing_are_refused(
    engine: RemoteEngine, fake: FakeServer, fault: Any
) -> None:
    session = engine.open(64)
    fake.corrupt = fault
    with pytest.raises(EngineFailed, match="nonsense"):
        feed(engine, session, [1, 2, 3], 3)
    assert session.length == 0


@pytest.mark.parametrize(
    "fault", [nothing, without_rows, not_numbers, above_one, other_vocabulary, lambda answer: [1]]
)
@pytest.mark.parametrize("rows", [1, 3])
def test_nonsense_is_refused_and_changes_nothing(
    engine: RemoteEngine, fake: FakeServer, fault: object, rows: int
) -> None:
    session = engine.open(64)
    fake.corrupt = fault  # type: ignore[assignment]
    with pytest.raises(EngineFailed, match="nonsense"):
        feed(engine, session, [1, 2, 3], rows)
    assert session.length == 0
    fake.corrupt = lambda answer: answer
    assert_rows(feed(engine, session, [1, 2, 3], rows), [1, 2, 3])


def test_a_stream_that_ends_early_is_followed_by_another(
    engine: RemoteEngine, fake: FakeServer
) -> None:
    fake.stream_ends_after = 3
    session = engine.open(64)
    text = [5, 6]
    logits = feed(engine, session, text, 1)
    for _ in range(8):
        text.append(int(logits[-1].argmax()))
        logits = feed(engine, session, text[-1:], 1)
        assert_rows(logits, text)


def test_a_server_that_is_gone_is_named(fake: FakeServer) -> None:
    fake.url = "http://127.0.0.1:9"
    engine = engine_of(fake)
    session = engine.open(64)
    for rows in (1, 2):
        with pytest.raises(EngineFailed, match="server cannot be reached"):
            feed(engine, session, [1, 2], rows)


def test_a_silent_server_is_given_up(fake: FakeServer) -> None:
    engine = engine_of(fake, silent_s=0.2)
    fake.pass_s = 1.0
    session = engine.open(64)
    with pytest.raises(EngineFailed, match="says nothing"):
        feed(engine, session, [1, 2], 2)


def test_a_wrong_key_is_said(fake: FakeServer) -> None:
    fake.key = "right"
    engine = engine_of(fake)
    assert_rows(feed(engine, engine.open(64), [1, 2], 2), [1, 2])
    fake.key = "another"
    with pytest.raises(EngineFailed, match="refuses the key"):
        feed(engine, engine.open(64), [1, 2], 2)


def wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    ends_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends_s, "it never came"
        time.sleep(0.01)


async def another() -> None:
    raise EngineFailed("it is another one")


@pytest.mark.parametrize("rows", [1, 3])
def test_a_server_behind_a_new_connection_is_checked_before_it_is_believed(
    fake: FakeServer, rows: int
) -> None:
    engine = engine_of(fake, check=another)
    session = engine.open(64)
    with pytest.raises(EngineFailed, match="another one"):
        feed(engine, session, [1, 2, 3], rows)
    assert session.length == 0


def test_it_is_checked_once_as_long_as_the_connection_lasts(fake: FakeServer) -> None:
    checks = list[int]()

    async def count() -> None:
        checks.append(1)

    engine = engine_of(fake, check=count)
    session = engine.open(64)
    for _ in range(4):
        feed(engine, session, [1, 2, 3], 3)
    assert len(checks) == 1


@pytest.mark.parametrize("rows", [1, 3])
def test_logits_of_no_token_are_left_out(fake: FakeServer, rows: int) -> None:
    """Of a model with more logits than its tokenizer has tokens: what is left is right, and no
    other token is made up in their place."""
    fake.corrupt = lambda answer: changed(
        answer, lambda logprob: logprob, lambda token: token if token % 4 else token + VOCABULARY
    )
    engine = engine_of(fake, logits=2 * VOCABULARY)
    logits = feed(engine, engine.open(64), [1, 2, 3], rows)
    for back, row in enumerate(reversed(logits)):
        probs = np.asarray(PROBS(tuple([1, 2, 3][: 3 - back])))
        told = [token for token in np.argsort(-probs, kind="stable")[:20] if token % 4]
        np.testing.assert_allclose(row[told], np.log(probs[told]), atol=1e-5)
        assert np.isneginf(np.delete(row, told)).all()


def endless(fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.backends.remote.server.MOST_BYTES", 2000)
    fake.corrupt = lambda answer: {**answer, "more": "x" * 300_000}


@pytest.mark.parametrize("rows", [1, 3])
def test_an_answer_that_does_not_end_is_given_up(
    fake: FakeServer, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    engine = engine_of(fake)
    endless(fake, monkeypatch)
    with pytest.raises(EngineFailed, match="nonsense: an answer of more than"):
        feed(engine, engine.open(64), [1, 2, 3], rows)


def test_a_key_follows_no_redirect(fake: FakeServer) -> None:
    fake.key = "secret"
    engine = engine_of(fake)
    fake.status, fake.location = 307, "http://127.0.0.1:9/elsewhere"
    for rows in (1, 3):
        with pytest.raises(EngineFailed, match="307: redirects are not followed"):
            feed(engine, engine.open(64), [1, 2, 3], rows)
