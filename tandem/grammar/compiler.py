"""Grammars compiled for one vocabulary, by llguidance. Invariants: what a caller's grammar may
cost, in time and memory, is bounded: its source, what it is compiled to, and each step of its
parser have limits; it is compiled on a thread for grammars, in its tenant's turn, and what it took
is told, even if it was refused."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tandem.core.errors import InvalidArgument
from tandem.core.extras import install_command
from tandem.core.processors import Grammar, GrammarKind
from tandem.grammar.conjunctions import check_conjunctions
from tandem.grammar.matcher_mask import MAX_STEP_S, MatcherMask, OnCost
from tandem.net.tenant import Tenant
from tandem.net.turns import FairExecutor
from tandem.text import ComparableTokenizer, Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

NOBODY = Tenant("")
CACHED_GRAMMARS = 32
"""Compiled or refused ones that are kept, of the tenant with most of them those used last."""

MAX_LEXER_STATES = 10_000
"""Of 1 to 2 kB, so that a grammar takes some 20 MB at most."""
MAX_GRAMMAR_SYMBOLS = 10_000
"""Some thousand properties; what is larger is refused after half a second at most."""

_IN_SCHEMA = "failed to compile JSON schema: "  # how llguidance begins what is wrong with one

WAITING = 64
"""Grammars to be compiled."""
COMPILE_NICENESS = 10
"""Nobody's answer but its own waits for a grammar that is compiled."""
WAITING_MASKS = 4096
"""Sessions have one pass at a time, so that there are few; what is more is a fault."""


class GrammarCompiler:
    """Compiles and keeps the grammars of one service. Every method may be called on any thread."""

    def __init__(
        self, tokenizer: Tokenizer | None, vocabulary_size: int, eos_token_ids: frozenset[int]
    ) -> None:
        """Create the compiler for one tokenizer. `eos_token_ids`: what may follow where the grammar
        is complete."""
        self._tokenizer = tokenizer
        self._vocabulary_size = vocabulary_size
        self._eos_token_ids = eos_token_ids
        self._lock = threading.Lock()
        self._compiling = threading.Lock()
        # Apart, since a grammar may take seconds to compile, which others' masks must not wait for.
        self._compiles = FairExecutor("grammars", 1, WAITING, niceness=COMPILE_NICENESS)
        self._masks = FairExecutor("masks", 2, waiting=WAITING_MASKS)
        self._native: LLTokenizer | None = None
        self._compiled: OrderedDict[tuple[Tenant, Grammar], LLMatcher | InvalidArgument] = (
            OrderedDict()
        )

    async def session_mask(
        self,
        grammar: Grammar,
        tenant: Tenant,
        spend: Callable[[Tenant, float], None],
        eos_token_ids: frozenset[int] = frozenset(),
    ) -> MatcherMask:
        """Return the masks of one session, for a tenant that was admitted. `eos_token_ids`: what
        may end its text instead of this model's own, if any are given. `spend(tenant, seconds)` is
        called on the event loop with the time that compiling took and that masks will take, even
        after nobody waits any more. Raises InvalidArgument("grammar") for a grammar that cannot be
        compiled, asks for too much, or cannot be followed here; ResourceExhausted if too many are
        waiting."""
        loop = asyncio.get_running_loop()

        def on_cost(seconds: float) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(spend, tenant, seconds)

        if (known := self._known(tenant, grammar)) is None:
            work = partial(self._compiled_once, tenant, grammar, on_cost)
            known = await asyncio.wrap_future(self._compiles.submit(tenant, work))
        return self._mask(known, tenant, eos_token_ids, on_cost)

    def mask(
        self, grammar: Grammar | None, eos_token_ids: frozenset[int] = frozenset()
    ) -> MatcherMask | None:
        """Compute a mask like `session_mask`, compiled on this thread and charged to nobody; None
        without a grammar."""
        if grammar is None:
            return None
        known = self._known(NOBODY, grammar) or self._compiled_once(NOBODY, grammar)
        return self._mask(known, NOBODY, eos_token_ids)

    def _mask(
        self,
        known: LLMatcher | InvalidArgument,
        tenant: Tenant,
        eos_token_ids: frozenset[int],
        on_cost: OnCost = lambda seconds: None,
    ) -> MatcherMask:
        if isinstance(known, InvalidArgument):
            raise InvalidArgument(known.field, known.why)
        return MatcherMask(
            known.deep_copy(),
            self._vocabulary_size,
            complete_ids=self._eos_token_ids,
            eos_token_ids=eos_token_ids or self._eos_token_ids,
            submit=partial(self._masks.submit, tenant),
            on_cost=on_cost,
        )

    def _known(self, tenant: Tenant, grammar: Grammar) -> LLMatcher | InvalidArgument | None:
        """Return the earlier result for this grammar. Each tenant has its own, so that nobody can
        find out by the time it takes what others ask for."""
        with self._lock:
            if (known := self._compiled.get((tenant, grammar))) is not None:
                self._compiled.move_to_end((tenant, grammar))
            return known

    def _keep(self, tenant: Tenant, grammar: Grammar, result: LLMatcher | InvalidArgument) -> None:
        with self._lock:
            self._compiled[tenant, grammar] = result
            if len(self._compiled) > CACHED_GRAMMARS:
                counts = Counter(each for each, _ in self._compiled)
                most = max(counts.values())
                del self._compiled[next(key for key in self._compiled if counts[key[0]] == most)]

    def _compiled_once(
        self, tenant: Tenant, grammar: Grammar, on_cost: OnCost = lambda seconds: None
    ) -> LLMatcher | InvalidArgument:
        """Compile the grammar on this thread, unless it is known already. Return it, or the error
        that says why it cannot be compiled."""
        with self._compiling:  # one at a time, so that many cost no more memory than one
            if (known := self._known(tenant, grammar)) is not None:
                return known
            self._native = self._native or self._native_tokenizer()
            began_s = time.thread_time()
            result: LLMatcher | InvalidArgument
            try:
                result = self._compile(grammar, self._native)
            except InvalidArgument as error:
                result = error
            on_cost(time.thread_time() - began_s)
            self._keep(tenant, grammar, result)
            return result

    def _compile(self, grammar: Grammar, native: LLTokenizer) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        check_conjunctions(grammar)
        try:
            text = _native_grammar(LLMatcher, grammar)
        except (ValueError, RecursionError) as error:
            raise InvalidArgument("grammar", _brief(error)) from None
        limits = LLParserLimits(
            initial_lexer_fuel=500_000,  # 10 ms
            step_lexer_fuel=200_000,  # 14 ms
            step_max_items=50_000,  # 3 ms
            max_items_in_row=1000,
            max_lexer_states=MAX_LEXER_STATES,
            max_grammar_size=MAX_GRAMMAR_SYMBOLS,
            verbose_errors=False,
        )
        # Both let go of the interpreter's lock; nearly all else of a matcher holds it.
        matcher = LLMatcher(native, text, log_level=0, limits=limits)
        took_s = _first_step_s(matcher)
        # The limits are looked at when a row of the parser is complete, and its cost grows with the
        # square of what it holds: thousands of rules that may all be left out take a second. What a
        # busy machine does meanwhile may count as this thread's own time, but hardly twice.
        if took_s > MAX_STEP_S:
            took_s = min(took_s, _first_step_s(matcher))
        if took_s > MAX_STEP_S:
            why = f"its first step takes {took_s:.2g} s to compute; the maximum is {MAX_STEP_S:g} s"
            raise InvalidArgument("grammar", why)
        return matcher

    def _native_tokenizer(self) -> LLTokenizer:
        tokenizer = self._tokenizer
        if not isinstance(tokenizer, ComparableTokenizer) or not self._eos_token_ids:
            why = "this model's tokenizer does not define the bytes of its tokens"
            raise InvalidArgument("grammar", why)
        try:
            from llguidance import LLTokenizer, TokenizerWrapper
        except ImportError:
            why = f"needs llguidance on both ends: {install_command('grammar')}"
            raise InvalidArgument("grammar", why) from None
        spelt = _SpeltTokens(tokenizer, self._vocabulary_size, self._eos_token_ids)
        return LLTokenizer(
            TokenizerWrapper(spelt), n_vocab=self._vocabulary_size, eos_token=spelt.eos_token_ids
        )


class _SpeltTokens:
    """A tokenizer as llguidance wants it: each token's bytes, and text as tokens."""

    bos_token_id = None

    def __init__(
        self, tokenizer: ComparableTokenizer, vocabulary_size: int, eos_token_ids: frozenset[int]
    ) -> None:
        vocabulary = tokenizer.vocabulary()
        self._tokenizer = tokenizer
        self.eos_token_ids = sorted(eos_token_ids)
        self.eos_token_id = self.eos_token_ids[0]
        self.tokens = [vocabulary.pieces.get(token, b"") for token in range(vocabulary_size)]
        specials = {**vocabulary.specials}
        for token in eos_token_ids:
            specials.setdefault(token, f"<|end-{token}|>")
        for token, name in specials.items():
            self.tokens[token] = name.encode()
        self.special_token_ids = sorted(specials)
        plain = ((piece, token) for token, piece in enumerate(self.tokens) if token not in specials)
        self._ids = {piece: token for piece, token in plain if piece}
        self._longest = max(map(len, self._ids))

    def __call__(self, text: str) -> list[int]:
        """Tokenize the text as the model would write it: forced tokens must look like its own
        text."""
        spelling = text.encode()
        token_ids = self._tokenizer.encode_piece(text)
        if b"".join(self.tokens[token] for token in token_ids) == spelling:
            return token_ids
        return self._greedy(spelling)  # a tokenizer that begins a text with a space of its own

    def _greedy(self, spelling: bytes) -> list[int]:
        token_ids = list[int]()
        while spelling:
            lengths = range(min(self._longest, len(spelling)), 0, -1)
            length = next((each for each in lengths if spelling[:each] in self._ids), 0)
            if not length:
                return []
            token_ids.append(self._ids[spelling[:length]])
            spelling = spelling[length:]
        return token_ids


def _native_grammar(matcher: type[LLMatcher], grammar: Grammar) -> str:
    """Return the grammar in the matcher's form. JSON has no spaces unless the schema asks for them
    ("x-guidance"): a model that may write spaces for ever would. A keyword that is not understood
    is refused."""
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            return matcher.grammar_from_json_schema(
                grammar.source,
                defaults={"whitespace_flexible": False},
                overrides={"lenient": False},
            )
        case GrammarKind.REGEX:
            return matcher.grammar_from_regex(grammar.source)
        case GrammarKind.LARK:
            return matcher.grammar_from_lark(grammar.source)


def _first_step_s(matcher: LLMatcher) -> float:
    """Return what the first mask takes this thread, in seconds. Raises InvalidArgument("grammar")
    if the grammar has no beginning, or too many."""
    tried = matcher.deep_copy()  # a matcher keeps its masks
    began_s = time.thread_time()
    if not tried.is_error():
        tried.compute_bitmask()
    if tried.is_error():
        raise InvalidArgument("grammar", _brief(tried.get_error()))
    return time.thread_time() - began_s


def _brief(error: object) -> str:
    """Return what is wrong with a grammar, in words for whoever wrote it; within a grammar in
    Lark's syntax with the line of the schema that it is about."""
    before, mark, inside = str(error).partition(_IN_SCHEMA)
    line = re.match(r"at (\d+)\(", before)
    words = _what_is_wrong(inside if mark else before)
    return (f"line {line[1]}: {words}" if mark and line else words)[:300]


def _what_is_wrong(said: str) -> str:
    if unknown := re.match(r"Unimplemented keys: \[(.*?)\]", said):
        names = unknown[1].replace('"', "'")
        return f"not supported in a JSON schema: {names}"
    if unknown := re.match(r"Unknown format: (.*)", said):
        return f"not supported in a JSON schema: the format '{unknown[1]}'"
    if said.startswith("NoExtensionBias"):  # no token may follow, and nothing has ended
        return "no text matches it"
    if said.startswith("oneOf constraints"):
        return "not supported in a JSON schema: this 'oneOf'; use 'anyOf'"
    if broken := re.match(r"regex parse error:\n *(.*)\n(?:.*\n)*?error: (.*)", said):
        return f"the pattern {broken[1]} is not supported: {broken[2]}"
    return said.partition("\n")[0]
