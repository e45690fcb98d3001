"""What a grammar costs, who waits for it and who pays."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest

import tandem.grammar.compiler
from tandem.backends.cross_vocabulary.pairing import load_target_tokenizer
from tandem.core.errors import InvalidArgument, ResourceExhausted
from tandem.core.processors import Grammar, GrammarKind
from tandem.demo import demo_folder
from tandem.grammar.compiler import CACHED_GRAMMARS, WAITING, GrammarCompiler
from tandem.grammar.matcher_mask import MAX_STEP_S, MatcherMask
from tandem.net.tenant import Tenant
from tandem.text import ComparableTokenizer

DEADLINE_S = 60.0
HELD_S = 2.0
"""By what holds the interpreter's lock; a machine with other work adds some."""
EMPTY = Grammar(GrammarKind.REGEX, "a+")


def optional_rules(count: int) -> Grammar:
    rules = " ".join(["rule?"] * count)
    return Grammar(GrammarKind.LARK, f'start: {rules}\nrule: "x"')


@pytest.fixture(scope="module")
def tokenizer() -> ComparableTokenizer:
    return load_target_tokenizer(str(demo_folder("demo-target")))


@pytest.fixture
def compiler(tokenizer: ComparableTokenizer) -> GrammarCompiler:
    found = GrammarCompiler(tokenizer, tokenizer.model_size, tokenizer.eos_token_ids)
    found.mask(EMPTY)  # the vocabulary is read now
    return found


class Spent:
    """What each tenant has paid."""

    def __init__(self) -> None:
        self.seconds: dict[Tenant, float] = {}

    def __call__(self, tenant: Tenant, seconds: float) -> None:
        self.seconds[tenant] = self.seconds.get(tenant, 0.0) + seconds


async def test_rules_that_may_all_be_left_out_are_refused_and_paid_for_once(
    compiler: GrammarCompiler,
) -> None:
    spent = Spent()
    for _ in range(3):
        with pytest.raises(InvalidArgument, match=r"grammar: (its first step|parser error)"):
            await compiler.session_mask(optional_rules(9000), Tenant("greedy"), spent)
    once = spent.seconds[Tenant("greedy")]
    assert once > 0.05
    with pytest.raises(InvalidArgument):
        await compiler.session_mask(optional_rules(9000), Tenant("greedy"), spent)
    await asyncio.sleep(0)
    assert spent.seconds == {Tenant("greedy"): once}, "why it is refused was kept"


def test_a_dear_step_fails_its_answer_and_holds_up_nobody(
    compiler: GrammarCompiler, tokenizer: ComparableTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asking the parser for tokens before it was seen what that costs held the interpreter's lock,
    with these for a second each."""
    monkeypatch.setattr(tandem.grammar.compiler, "MAX_STEP_S", 60.0)  # as if it came later
    mask = compiler.mask(optional_rules(9000))
    assert mask is not None
    answer = tuple(tokenizer.encode_piece("x") * 6)
    computing = mask.prepare([(), answer])
    assert computing is not None
    held_s, before_s = 0.0, time.perf_counter()
    while not computing.done():
        time.sleep(0)  # needs the lock, as the event loop and the engine's thread do
        now = time.perf_counter()
        held_s, before_s = max(held_s, now - before_s), now
    assert held_s < HELD_S
    for text in (answer, ()):
        with pytest.raises(InvalidArgument, match=r"grammar: a step took .* the maximum is 0.05 s"):
            mask.allowed(text)


class SlowMatcher:
    """A parser of any text, each of whose masks takes its thread a little too long."""

    def compute_bitmask(self) -> bytes:
        ends_s = time.thread_time() + 1.2 * MAX_STEP_S
        while time.thread_time() < ends_s:
            pass
        return b"\xff"

    def consume_token(self, token_id: int) -> None: ...

    def is_error(self) -> bool:
        return False


def test_an_answer_survives_one_step_in_which_the_machine_was_busy() -> None:
    matcher: Any = SlowMatcher()
    mask = MatcherMask(matcher, 8, frozenset(), frozenset(), lambda compute: Future())
    assert mask.allowed(()) is not None
    with pytest.raises(InvalidArgument, match=r"grammar: a step took .* the maximum is 0.05 s"):
        mask.allowed((1,))
    with pytest.raises(InvalidArgument, match=r"grammar: a step took"):
        mask.allowed((2,))


async def test_grammars_that_take_long_leave_the_threads_of_others_alone(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokenising, images and the engine's stop use the loop's own threads."""
    goes_on, compile_one = threading.Event(), GrammarCompiler._compile

    def slow(self: GrammarCompiler, *given: object) -> object:
        assert goes_on.wait(DEADLINE_S)
        return compile_one(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(GrammarCompiler, "_compile", slow)
    spent = Spent()
    asked = [
        asyncio.create_task(
            compiler.session_mask(Grammar(GrammarKind.REGEX, f"b{{{number}}}"), Tenant(""), spent)
        )
        for number in range(1, 41)
    ]
    try:
        async with asyncio.timeout(DEADLINE_S):
            assert await asyncio.to_thread(lambda: "tokens") == "tokens"
        assert not any(task.done() for task in asked)
    finally:
        goes_on.set()
        await asyncio.gather(*asked)


async def test_a_queue_full_of_one_tenant_s_grammars_keeps_nobody_else_out(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, began, order = threading.Event(), threading.Event(), list[str]()
    compile_one = GrammarCompiler._compile

    def slow(self: GrammarCompiler, grammar: Grammar, native: object) -> object:
        began.set()
        assert goes_on.wait(DEADLINE_S)
        order.append(grammar.source)
        return compile_one(self, grammar, native)  # type: ignore[arg-type]

    monkeypatch.setattr(GrammarCompiler, "_compile", slow)

    def ask(tenant: str, source: str) -> asyncio.Task[object]:
        grammar = Grammar(GrammarKind.REGEX, source)
        return asyncio.create_task(compiler.session_mask(grammar, Tenant(tenant), Spent()))

    greedy = [ask("greedy", "c0")]
    assert await asyncio.to_thread(began.wait, DEADLINE_S)
    greedy += [ask("greedy", f"c{{{number}}}") for number in range(1, WAITING + 1)]
    honest = ask("honest", "d")
    refused = greedy.pop()
    with pytest.raises(ResourceExhausted, match="'greedy' holds the most places for grammars"):
        await refused
    goes_on.set()
    await asyncio.gather(honest, *greedy)
    assert order.index("d") == 1, "after the one that was begun"


async def test_a_flood_of_grammars_pushes_out_none_of_another_tenant_s(
    compiler: GrammarCompiler,
) -> None:
    spent = Spent()
    await compiler.session_mask(EMPTY, Tenant("honest"), spent)
    for number in range(1, CACHED_GRAMMARS + 5):
        grammar = Grammar(GrammarKind.REGEX, f"x{{{number}}}")
        await compiler.session_mask(grammar, Tenant("greedy"), spent)
    await asyncio.sleep(0)
    before = dict(spent.seconds)
    await compiler.session_mask(EMPTY, Tenant("honest"), spent)
    await asyncio.sleep(0)
    assert spent.seconds == before
    assert len(compiler._compiled) == CACHED_GRAMMARS
