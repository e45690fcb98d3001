"""Grammars compiled for one vocabulary, by llguidance. Invariant: what a caller's grammar may cost,
in time and memory, is bounded before a session holds anything: its source, what it is compiled to,
and each step of its parser have limits."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tandem.core.errors import InvalidArgument
from tandem.core.processors import Grammar, GrammarKind, GrammarMask
from tandem.grammar.conjunctions import check_conjunctions
from tandem.grammar.matcher_mask import MatcherMask
from tandem.text import ComparableTokenizer, Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

CACHED_GRAMMARS = 32
"""Compiled ones that are kept, those used last."""

MAX_LEXER_STATES = 10_000
"""Of 1 to 2 kB, so that a grammar takes some 20 MB at most."""
MAX_GRAMMAR_SYMBOLS = 10_000
"""Some thousand properties; what is larger is refused after half a second at most."""


class GrammarCompiler:
    """Compiles and keeps the grammars of one service. Every method may be called on any thread."""

    def __init__(
        self, tokenizer: Tokenizer | None, vocabulary_size: int, eos_token_ids: frozenset[int]
    ) -> None:
        """`eos_token_ids`: what may follow where the grammar is complete."""
        self._tokenizer = tokenizer
        self._vocabulary_size = vocabulary_size
        self._eos_token_ids = eos_token_ids
        self._lock = threading.Lock()
        self._worker = ThreadPoolExecutor(1, "masks")
        self._native: LLTokenizer | None = None
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()

    def mask(
        self, grammar: Grammar | None, eos_token_ids: frozenset[int] = frozenset()
    ) -> GrammarMask | None:
        """The masks of one session; None without a grammar. `eos_token_ids`: what may end its text
        in the place of this model's own, if any are given. Raises InvalidArgument("grammar") for
        one that cannot be compiled, asks for too much, or cannot be followed here."""
        if grammar is None:
            return None
        with self._lock:  # one at a time, so that many cost no more memory than one
            matcher = self._compiled.pop(grammar, None) or self._compile(grammar)
            self._compiled[grammar] = matcher
            if len(self._compiled) > CACHED_GRAMMARS:
                self._compiled.popitem(last=False)
            own = matcher.deep_copy()
        ends = eos_token_ids or self._eos_token_ids
        return MatcherMask(own, self._vocabulary_size, self._eos_token_ids, ends, self._worker)

    def _compile(self, grammar: Grammar) -> LLMatcher:
        check_conjunctions(grammar)
        native = self._native = self._native or self._native_tokenizer()
        from llguidance import LLMatcher, LLParserLimits

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
        matcher = LLMatcher(native, text, log_level=0, limits=limits)
        tried = matcher.deep_copy()
        if not tried.is_error():
            tried.compute_bitmask()  # says what has no beginning, or too many
        if tried.is_error():
            raise InvalidArgument("grammar", _brief(tried.get_error()))
        return matcher

    def _native_tokenizer(self) -> LLTokenizer:
        tokenizer = self._tokenizer
        if not isinstance(tokenizer, ComparableTokenizer) or not self._eos_token_ids:
            why = "this model's tokenizer does not say what its tokens spell"
            raise InvalidArgument("grammar", why)
        try:
            from llguidance import LLTokenizer, TokenizerWrapper
        except ImportError:
            why = "needs llguidance on both ends: pip install tandem-edge[grammar]"
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
        """As the model would write it: what is forced must look like its own text."""
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
    """JSON comes without spaces where the schema does not ask for them ("x-guidance"): a model that
    may write spaces for ever would. A keyword that is not understood is refused."""
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


def _brief(error: object) -> str:
    return str(error).partition("\n")[0][:300]
