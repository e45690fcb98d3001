"""Sessions over vLLM's pages: whatever was drafted, taken back, shared or fed in pieces before, the
logits are those of the text alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tandem.backends.interface import Engine, ForwardCancelled, ForwardRequest, Logits, Session
from tandem.backends.vllm.engine import VllmEngine
from tandem.core.errors import InvalidArgument, ResourceExhausted

WITHIN = 2e-4
"""Of a logit, float32: kernels chosen by size add up in different orders. A wrong key or position
moves logits by whole units."""


@pytest.fixture
def engine(served: tuple[Engine, Engine]) -> VllmEngine:
    found = served[0]
    assert isinstance(found, VllmEngine)
    assert (found.sessions_open, found.kv_bytes_in_use) == (0, 0)
    return found


@pytest.fixture
def on_torch(served: tuple[Engine, Engine]) -> Engine:
    return served[1]


@contextmanager
def passes_of(engine: VllmEngine, tokens: int) -> Iterator[None]:
    """Passes are over so many tokens at most."""
    before, engine.pages.pass_tokens = engine.pages.pass_tokens, tokens
    try:
        yield
    finally:
        engine.pages.pass_tokens = before


def tokens(random: np.random.Generator, count: int) -> list[int]:
    found: list[int] = random.integers(3, 4000, count).tolist()
    return found


def feed(engine: Engine, session: Session, token_ids: list[int], rows: int) -> Logits:
    (logits,) = engine.forward([ForwardRequest(session, tuple(token_ids), rows)])
    return logits


def alone(engine: Engine, token_ids: list[int]) -> Logits:
    """Logits after every token, fed at once to a session of its own."""
    session = engine.open(len(token_ids))
    try:
        return feed(engine, session, token_ids, len(token_ids))
    finally:
        session.close()


def close(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> None:
    assert found.shape == wanted.shape
    assert float(np.abs(found - wanted).max()) <= WITHIN


def test_logits_are_those_of_the_reference_back_end(engine: VllmEngine, on_torch: Engine) -> None:
    text = tokens(np.random.default_rng(1), 200)
    assert engine.vocabulary_hash == on_torch.vocabulary_hash
    assert engine.eos_token_ids == on_torch.eos_token_ids
    # Two workers have a copy each of a key and value that all heads share.
    assert engine.kv_bytes_per_token % on_torch.kv_bytes_per_token == 0
    close(alone(engine, text), alone(on_torch, text))


def test_rounds_of_refused_drafts_over_shared_prefixes(
    engine: VllmEngine, on_torch: Engine
) -> None:
    """300 steps of opening, forking, drafting, taking back and closing, in passes of 64 tokens; a
    page of the prefix cache must never hold a refused draft. The reference keeps no pages."""
    random = np.random.default_rng(0)
    base, live, compared = tokens(random, 200), [], 0
    live = list[tuple[Session, list[int]]]()
    hits = engine.prefix_totals.hit_tokens
    with passes_of(engine, 64):
        for _ in range(300):
            if len(live) < 6 and random.random() < 0.3:
                live.append(begun(engine, random, base, live))
            chosen = [pair for pair in live if random.random() < 0.5]
            fed = [tokens(random, int(random.integers(1, 18))) for _ in chosen]
            answers = engine.forward(
                [
                    ForwardRequest(session, tuple(new), len(new))
                    for (session, _), new in zip(chosen, fed, strict=True)
                ]
            )
            for (session, text), new, logits in zip(chosen, fed, answers, strict=True):
                if random.random() < 0.1:
                    close(logits, alone(on_torch, text + new)[-len(new) :])
                    compared += 1
                # Mostly after the first, which is committed text; at times far before it.
                least = len(text) + 1 if random.random() < 0.95 else 1
                kept = int(random.integers(least, len(text) + len(new) + 1))
                session.rollback(kept)
                text[:] = (text + new)[:kept]
                if len(text) > 500 or random.random() < 0.05:
                    session.close()
                    live = [pair for pair in live if pair[0] is not session]
    for session, _ in live:
        session.close()
    assert compared > 20
    assert engine.prefix_totals.hit_tokens > hits + 1000
    assert (engine.sessions_open, engine.kv_bytes_in_use, engine.pages.used) == (0, 0, 0)


def begun(
    engine: VllmEngine,
    random: np.random.Generator,
    base: list[int],
    live: list[tuple[Session, list[int]]],
) -> tuple[Session, list[int]]:
    """A session over a prompt that others may share, or a fork of one."""
    if live and random.random() < 0.3:
        parent, text = live[int(random.integers(len(live)))]
        length = int(random.integers(1, len(text) + 1))
        return engine.fork(parent, length, 600), text[:length]
    session = engine.open_for("one for all", 600)
    prompt = base[: int(random.integers(20, 200))] + tokens(random, int(random.integers(0, 5)))
    feed(engine, session, prompt, 1)
    return session, prompt


def test_a_prompt_that_was_fed_before_is_found(engine: VllmEngine) -> None:
    """Whole pages of it; and what was only drafted is not."""
    random = np.random.default_rng(2)
    page = engine.pages.page_tokens
    prompt, drafts = tokens(random, 3 * page), tokens(random, 2 * page)
    session = engine.open_for("alice", 600)
    feed(engine, session, prompt + drafts, len(drafts) + 1)
    session.rollback(len(prompt))
    before = engine.prefix_totals
    other = engine.open_for("alice", 600)
    feed(engine, other, prompt + drafts, len(drafts))
    settled = len(prompt) + 1
    assert engine.prefix_totals.since(before) == (1, 0, settled, len(prompt))
    for each in (session, other):
        each.close()


def test_nothing_is_found_of_another_owner(engine: VllmEngine, on_torch: Engine) -> None:
    """Nor by a session that has none, and nothing of such a session's."""
    prompt = tokens(np.random.default_rng(7), 3 * engine.pages.page_tokens + 1)
    first = engine.open_for("alice", 600)
    feed(engine, first, prompt, 1)
    before, opened = engine.prefix_totals, [first]
    for another in (engine.open_for("bob", 600), engine.open(600)):
        opened += [another]
        close(feed(engine, opened[-1], prompt, 1), alone(on_torch, prompt)[-1:])
    opened += [engine.open(600)]
    feed(engine, opened[-1], prompt, 1)
    assert engine.prefix_totals.since(before) == (0, 3, 3 * len(prompt), 0)
    for each in opened:
        each.close()


def test_a_round_sends_its_new_tokens_and_not_the_text(
    engine: VllmEngine, on_torch: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the workers, which know the others; also after drafts were taken back."""
    random, sent = np.random.default_rng(6), list[int]()
    executor = engine._core.model_executor
    pass_it_on = executor.collective_rpc

    def counting(method: str, args: Any, **rest: Any) -> Any:
        sent.append(sum(len(each.prompt_token_ids) for each in args[0].scheduled_new_reqs))
        return pass_it_on(method, args=args, **rest)

    monkeypatch.setattr(executor, "collective_rpc", counting)
    text, session = tokens(random, 200), engine.open(600)
    feed(engine, session, text, 1)
    for kept, count in ((200, 5), (203, 4), (204, 1), (205, 17)):
        session.rollback(kept)
        text, drafts = text[:kept], tokens(random, count)
        close(feed(engine, session, drafts, count), alone(on_torch, text + drafts)[-count:])
        text += drafts
    assert sent == [200, 5, 4, 1, 17]
    session.close()


def test_a_text_fed_in_pieces_can_be_cancelled_and_fed_again(
    engine: VllmEngine, on_torch: Engine
) -> None:
    random = np.random.default_rng(3)
    kept, text = tokens(random, 40), tokens(random, 300)
    session = engine.open(400)
    with passes_of(engine, 64):
        feed(engine, session, kept, 1)
        signs = iter([False, False, True])
        with pytest.raises(ForwardCancelled):
            engine.forward([ForwardRequest(session, tuple(text), 90)], lambda: next(signs))
        assert session.length == 40
        other = tokens(random, 30)
        close(feed(engine, session, other, 30), alone(on_torch, kept + other)[-30:])
        session.rollback(40)
        close(feed(engine, session, text, 90), alone(on_torch, kept + text)[-90:])
    session.close()


def test_no_more_is_opened_than_there_are_pages(engine: VllmEngine) -> None:
    """Else a pass in the middle of an answer would find no room. One page is left for a probe."""
    most = engine.pages.pages // -(-1000 // engine.pages.page_tokens)
    assert most >= 2
    opened = [engine.open(1000) for _ in range(most)]
    with pytest.raises(ResourceExhausted, match="KV pages"):
        engine.open(1000)
    random = np.random.default_rng(4)
    full = [ForwardRequest(session, tuple(tokens(random, 1000)), 1) for session in opened]
    assert len(engine.forward(full)) == len(opened)
    probe = engine.open(1)
    feed(engine, probe, [0], 1)
    probe.close()
    opened.pop().close()
    opened.append(engine.open(1000))
    for session in opened:
        session.close()
    assert engine.pages.used == 0


def last_and_count(logits: Logits) -> tuple[int, int]:
    """A reader."""
    return int(logits[-1].argmax()), len(logits)


def refusing(logits: Logits) -> None:
    """A reader whose request is at fault."""
    raise InvalidArgument("logits", "maximum is nan")


@pytest.mark.parametrize("pass_tokens", [2048, 64])
def test_a_reader_has_all_rows_however_the_text_is_fed(
    engine: VllmEngine, on_torch: Engine, pass_tokens: int
) -> None:
    text, read = tokens(np.random.default_rng(5), 300), list[object]()
    session, other = engine.open(400), engine.open(400)
    with passes_of(engine, pass_tokens):
        engine.forward(
            [
                ForwardRequest(
                    session, tuple(text), 90, reader=last_and_count, on_read=read.append
                ),
                ForwardRequest(other, tuple(text[:7]), 1, reader=refusing, on_read=read.append),
            ]
        )
    assert read[0] == (int(alone(on_torch, text)[-1].argmax()), 90)
    assert isinstance(read[1], InvalidArgument)
    assert (read[1].field, read[1].why) == ("logits", "maximum is nan")
    assert (session.length, other.length) == (300, 7), "and the engine goes on"
    session.close()
    other.close()
