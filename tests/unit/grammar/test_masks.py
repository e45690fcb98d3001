"""Masks are a function of the answer, wherever the parser was before, and are those of the grammar:
a walk over allowed tokens ends in a text that matches, and only there."""

import json
import random
import re

import jsonschema_rs
import numpy as np
import pytest

from tandem.backends.cross_vocabulary.pairing import load_target_tokenizer
from tandem.core.errors import InvalidArgument
from tandem.core.processors import Grammar, GrammarKind, LogitsProcessor, Processors
from tandem.demo import demo_folder
from tandem.grammar.compiler import CACHED_GRAMMARS, GrammarCompiler
from tandem.grammar.matcher_mask import MAX_KEPT, MatcherMask
from tandem.text import ComparableTokenizer

SCHEMA = {
    "type": "array",
    "items": {"enum": ["alpha", "beta", 1, 2.5, None, True]},
    "maxItems": 4,
}
LIST = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
DATE = Grammar(GrammarKind.REGEX, "(19|20)[0-9]{2}-[0-9]{2}")


@pytest.fixture(scope="module")
def tokenizer() -> ComparableTokenizer:
    return load_target_tokenizer(str(demo_folder("demo-target")))


@pytest.fixture(scope="module")
def compiler(tokenizer: ComparableTokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, tokenizer.model_size, tokenizer.eos_token_ids)


def mask_of(compiler: GrammarCompiler, grammar: Grammar) -> MatcherMask:
    mask = compiler.mask(grammar)
    assert isinstance(mask, MatcherMask)
    return mask


def walk(mask: MatcherMask, source: random.Random, ends: frozenset[int]) -> tuple[int, ...]:
    answer: tuple[int, ...] = ()
    while not ends.intersection(answer):
        allowed = mask.allowed(answer)
        assert allowed is not None
        forced, token_ids = mask.forced(answer), allowed.nonzero()[0].tolist()
        assert (forced is not None) == (len(token_ids) == 1)
        assert forced is None or token_ids == [forced]
        answer = (*answer, source.choice(token_ids))
    return answer


@pytest.mark.parametrize("grammar", [LIST, DATE], ids=["schema", "expression"])
def test_a_walk_ends_in_a_text_that_matches(
    compiler: GrammarCompiler, tokenizer: ComparableTokenizer, grammar: Grammar
) -> None:
    source, pieces, ends = random.Random(1), tokenizer.vocabulary().pieces, tokenizer.eos_token_ids
    for _ in range(20):
        *token_ids, end = walk(mask_of(compiler, grammar), source, ends)
        text = b"".join(pieces[token_id] for token_id in token_ids).decode()
        assert end in ends
        if grammar is DATE:
            assert re.fullmatch(DATE.source, text)
        else:
            jsonschema_rs.validate(SCHEMA, json.loads(text))


def test_the_text_may_end_exactly_where_it_matches(
    compiler: GrammarCompiler, tokenizer: ComparableTokenizer
) -> None:
    mask, ends = mask_of(compiler, Grammar(GrammarKind.REGEX, "a{2,3}")), tokenizer.eos_token_ids
    (letter,) = tokenizer.encode_piece("a")
    for count, may_end in enumerate((False, False, True, True)):
        allowed = mask.allowed((letter,) * count)
        assert allowed is not None
        assert {bool(allowed[end]) for end in ends} == {may_end}
    assert mask.allowed((letter,) * 4) is None
    assert mask.allowed((letter, letter, *ends)) is None, "after the end nothing counts"


def test_what_ends_the_text_may_be_what_ends_another_models(
    compiler: GrammarCompiler, tokenizer: ComparableTokenizer
) -> None:
    """Two sides end a text with the same tokens, whatever each model's own are."""
    grammar, (letter,) = Grammar(GrammarKind.REGEX, "a{2}"), tokenizer.encode_piece("a")
    own, other = sorted(tokenizer.eos_token_ids), tokenizer.encode_piece("?")[0]
    mask = compiler.mask(grammar, frozenset({other}))
    assert mask is not None
    for answer in ((), (letter,), (letter, letter)):
        allowed = mask.allowed(answer)
        assert allowed is not None
        assert bool(allowed[other]) == (len(answer) == 2)
        assert not allowed[own].any()
    assert mask.allowed((letter, letter, other)) is None


def test_wherever_the_parser_was_the_mask_is_that_of_the_text(
    compiler: GrammarCompiler, tokenizer: ComparableTokenizer
) -> None:
    source, mask = random.Random(2), mask_of(compiler, LIST)
    texts = [walk(mask_of(compiler, LIST), source, tokenizer.eos_token_ids) for _ in range(6)]
    for _ in range(150):
        text = source.choice(texts)
        text = text[: source.randint(0, len(text))]
        if source.random() < 0.2:
            text = (*text, source.randrange(tokenizer.model_size))
        found, fresh = mask.allowed(text), mask_of(compiler, LIST).allowed(text)
        if found is None or fresh is None:
            assert found is fresh
        else:
            assert np.array_equal(found, fresh)


def test_masks_that_are_prepared_are_computed_on_another_thread(
    compiler: GrammarCompiler, tokenizer: ComparableTokenizer
) -> None:
    """Whoever asks for them then does not use the parser: here it is on a text of its own."""
    source, mask = random.Random(3), mask_of(compiler, LIST)
    text = walk(mask_of(compiler, LIST), source, tokenizer.eos_token_ids)
    answers = [text[:length] for length in range(len(text) + 1)]
    pending = mask.prepare([*answers, (tokenizer.model_size - 1,) * 3])
    assert pending is not None
    pending.result(60)
    assert mask.prepare(answers) is None, "they are there"
    with mask._lock:  # as if it computed
        found = [mask.allowed(answer) for answer in answers]
    fresh = mask_of(compiler, LIST)
    for answer, allowed in zip(answers, found, strict=True):
        wanted = fresh.allowed(answer)
        assert (allowed is None) == (wanted is None)
        assert allowed is None or wanted is None or np.array_equal(allowed, wanted)


def test_a_session_keeps_few_masks(compiler: GrammarCompiler) -> None:
    mask = mask_of(compiler, Grammar(GrammarKind.REGEX, "a*"))
    for length in range(MAX_KEPT + 3):
        mask.allowed((length,))
    assert len(mask._kept) == MAX_KEPT


def test_bans_and_grammars_together_leave_what_both_allow(
    compiler: GrammarCompiler, tokenizer: ComparableTokenizer
) -> None:
    grammar = Grammar(GrammarKind.REGEX, "[ab]")
    (a,), (b,) = tokenizer.encode_piece("a"), tokenizer.encode_piece("b")
    logits = np.zeros(tokenizer.model_size, dtype=np.float32)
    only_b = Processors(banned_token_ids=(a,), grammar=grammar)
    found = LogitsProcessor(only_b, (), compiler.mask(grammar)).processed(logits, ())
    assert np.isfinite(found).nonzero()[0].tolist() == [b]
    none = Processors(banned_token_ids=(a, b), grammar=grammar)
    with pytest.raises(InvalidArgument, match="grammar: no token may follow"):
        LogitsProcessor(none, (), compiler.mask(grammar)).processed(logits, ())


def test_compiled_grammars_are_kept_up_to_a_number(compiler: GrammarCompiler) -> None:
    for count in range(CACHED_GRAMMARS + 2):
        compiler.mask(Grammar(GrammarKind.REGEX, f"x{{{count + 1}}}"))
    assert len(compiler._compiled) == CACHED_GRAMMARS


def test_an_end_without_token_texts_refuses() -> None:
    with pytest.raises(InvalidArgument, match="grammar"):
        GrammarCompiler(None, 64, frozenset({0})).mask(DATE)


@pytest.mark.parametrize(
    "source",
    [
        '{"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}',
        json.dumps(
            {"allOf": [{"anyOf": [{"maxLength": 9 * i + j} for i in range(9)]} for j in range(9)]}
        ),
        json.dumps({"type": "object", "properties": {f"p{i}": {} for i in range(2500)}}),
    ],
    ids=["endless", "product", "large"],
)
def test_hostile_schemas_are_refused_by_their_first_step(
    compiler: GrammarCompiler, source: str
) -> None:
    with pytest.raises(InvalidArgument, match="grammar"):
        compiler.mask(Grammar(GrammarKind.JSON_SCHEMA, source))


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        (GrammarKind.REGEX, r"[^\s\S]"),
        (GrammarKind.LARK, "start: start"),
        (GrammarKind.JSON_SCHEMA, '{"$ref": "#"}'),
    ],
)
def test_a_grammar_that_nothing_matches_is_refused_in_words(
    compiler: GrammarCompiler, kind: GrammarKind, source: str
) -> None:
    with pytest.raises(InvalidArgument, match="grammar: no text matches it"):
        compiler.mask(Grammar(kind, source))
