"""Logits processors: what the text so far changes about the next token's logits.

The order is fixed: repetition penalty, frequency and presence penalty, logit bias, then what is
forbidden (banned ids, ids that are not allowed, the mask of a grammar and of a budget for
thinking, `tandem.core.thinking`). Temperature and the cuts come after all of them
(`tandem.core.probs`). Invariant: processed logits are a function of the model's logits, the prompt
and the answer so far, so both ends apply the same one, to draft and target alike, and nothing has
to be rolled back, forked or resumed with the keys and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tandem.core.errors import InvalidArgument, check_count
from tandem.core.probs import Array, one_hot
from tandem.core.tokens import PrefixedTokens, check_token_ids

MAX_BIASES = 1024
MAX_LISTED_IDS = 2**16
MAX_GRAMMAR_CHARACTERS = 2**16
MAX_MARK_IDS = 64
"""Tokens of a mark around thinking; those of known families have five at most."""
_LARGEST_BIAS = 100.0
_LARGEST_PENALTY = 2.0
_LARGEST_REPETITION_PENALTY = 10.0

_INFINITY = np.float32(np.inf).view(np.uint32)

Mask = NDArray[np.bool_]


class GrammarKind(StrEnum):
    """The language that a grammar is written in."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar that the whole answer must match."""

    kind: GrammarKind
    source: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """The thinking that an answer may begin with: `begin_ids`, the thinking's tokens, the first of
    `end_ids`. No `begin_ids`: the prompt has opened it. After `budget` tokens of thinking (None: no
    limit) all of `end_ids` follow, whatever the model says. A grammar holds for what follows the
    thinking, or for the whole answer if there is none."""

    end_ids: tuple[int, ...]
    begin_ids: tuple[int, ...] = ()
    budget: int | None = None

    def validate(self, vocabulary_size: int) -> None:
        """Raise InvalidArgument naming the first field that is out of range."""
        for name in ("begin_ids", "end_ids"):
            check_count(len(token_ids := getattr(self, name)), MAX_MARK_IDS, f"thinking.{name}")
            check_token_ids(token_ids, vocabulary_size, f"thinking.{name}")
        if not self.end_ids:
            raise InvalidArgument("thinking.end_ids", "is empty")
        if self.budget is not None and self.budget < 0:
            raise InvalidArgument("thinking_token_budget", f"{self.budget} is negative")


@dataclass(frozen=True, slots=True)
class Processors:
    """Logits processors of a request. `logit_bias`: (token id, what is added to its logit).
    Presence and frequency penalty count the answer's tokens (OpenAI's definition),
    `repetition_penalty` the prompt's too (Hugging Face's; 1 changes nothing). No
    `allowed_token_ids`: all are allowed. Before the answer has `min_tokens` tokens, neither the
    model's end-of-text tokens nor `end_token_ids` may follow."""

    logit_bias: tuple[tuple[int, float], ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    banned_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    grammar: Grammar | None = None
    thinking: Thinking | None = None
    min_tokens: int = 0
    end_token_ids: tuple[int, ...] = ()

    @property
    def active(self) -> bool:
        """True if any logit is changed."""
        return self != NO_PROCESSORS

    def validate(self, vocabulary_size: int, ignore_eos: bool = False) -> None:
        """Raise InvalidArgument naming the first field that is out of range (NaN included)."""
        self._check_biases(vocabulary_size)
        for name in ("presence_penalty", "frequency_penalty"):
            if not abs(penalty := getattr(self, name)) <= _LARGEST_PENALTY:
                raise InvalidArgument(name, f"{penalty} is not in [-2, 2]")
        if not 0 < self.repetition_penalty <= _LARGEST_REPETITION_PENALTY:
            why = f"{self.repetition_penalty} is not in (0, {_LARGEST_REPETITION_PENALTY:g}]"
            raise InvalidArgument("repetition_penalty", why)
        for name in ("banned_token_ids", "allowed_token_ids", "end_token_ids"):
            check_count(len(token_ids := getattr(self, name)), MAX_LISTED_IDS, name)
            check_token_ids(token_ids, vocabulary_size, name)
        if self.allowed_token_ids and not {*self.allowed_token_ids} - {*self.banned_token_ids}:
            raise InvalidArgument("allowed_token_ids", "all of them are banned")
        if len({*self.banned_token_ids}) == vocabulary_size:
            raise InvalidArgument("banned_token_ids", "no token is left")
        if self.thinking is not None:
            self.thinking.validate(vocabulary_size)
            self._check_budget(self.thinking)
        if not 0 <= self.min_tokens < 2**32:
            raise InvalidArgument("min_tokens", f"{self.min_tokens} is not in [0, 2^32)")
        if self.grammar is not None:
            if self.min_tokens:
                why = "cannot be combined with a grammar or tools, which say where an answer ends"
                raise InvalidArgument("min_tokens", why)
            if len(self.grammar.source) > MAX_GRAMMAR_CHARACTERS:
                why = f"{len(self.grammar.source)} characters; at most {MAX_GRAMMAR_CHARACTERS}"
                raise InvalidArgument("grammar", why)
            if ignore_eos:
                raise InvalidArgument(
                    "grammar", "is an end-of-text token, which ignore_eos excludes"
                )

    def _check_budget(self, thinking: Thinking) -> None:
        if thinking.budget is None:
            return
        ends = {*thinking.end_ids}
        if ends & {*self.banned_token_ids} or (
            self.allowed_token_ids and not ends <= {*self.allowed_token_ids}
        ):
            why = "the tokens that end the thinking are banned, or not allowed"
            raise InvalidArgument("thinking_token_budget", why)

    def _check_biases(self, vocabulary_size: int) -> None:
        check_count(len(self.logit_bias), MAX_BIASES, "logit_bias")
        token_ids = [token_id for token_id, _ in self.logit_bias]
        check_token_ids(token_ids, vocabulary_size, "logit_bias")
        if len({*token_ids}) < len(token_ids):
            raise InvalidArgument("logit_bias", "contains a token twice")
        for _, bias in self.logit_bias:
            if not (isfinite(bias) and abs(bias) <= _LARGEST_BIAS):
                raise InvalidArgument("logit_bias", f"{bias} is not in [-100, 100]")


NO_PROCESSORS = Processors()


class Pending(Protocol):
    """Something that is being computed elsewhere; a `concurrent.futures.Future` is one."""

    def done(self) -> bool: ...

    def add_done_callback(self, fn: Callable[[Any], object], /) -> object:
        """Call `fn` on any thread once it is done, at once where it is."""


class GrammarMask(Protocol):
    """A compiled grammar, or another rule of what may follow, over one vocabulary."""

    @property
    def vocabulary_size(self) -> int: ...

    def allowed(self, answer: tuple[int, ...]) -> Mask | None:
        """Return a mask [V] of the tokens that may follow the answer so far; None after a text that
        is none of the grammar's, or is complete and has ended."""

    def forced(self, answer: tuple[int, ...]) -> int | None:
        """Return the token that follows, where no other may."""

    def prepare(self, answers: Sequence[tuple[int, ...]]) -> Pending | None:
        """Start computing the masks after these answers elsewhere; return None if all of them are
        ready. Whoever asks for a mask that is not ready spends the time it takes. Errors are raised
        where a mask is asked for."""


class LogitsProcessor:
    """The processors of one session. Used by one thread."""

    def __init__(
        self,
        processors: Processors,
        prompt_ids: Sequence[int],
        mask: GrammarMask | None = None,
        strict: bool = True,
        eos_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        """Prepare the processors of one session. `strict`: where no token is left, raise
        InvalidArgument naming the processor. Otherwise leave the logits as they are then: a draft
        may be anything, since the text before it may never be committed. `eos_token_ids`: the
        model's, which `min_tokens` rules out."""
        self.prompt_length = len(prompt_ids)
        self._processors = processors
        self._prompt_ids = np.unique(np.array(prompt_ids, dtype=np.intp))
        self._bias_ids = np.array([token_id for token_id, _ in processors.logit_bias], np.intp)
        self._biases = np.array([bias for _, bias in processors.logit_bias], np.float32)
        self._banned = np.array(processors.banned_token_ids, np.intp)
        self._allowed = np.array(processors.allowed_token_ids, np.intp)
        self._ends = np.array(sorted({*eos_token_ids, *processors.end_token_ids}), np.intp)
        self.mask = mask
        self._strict = strict

    def processed(self, logits: Array, answer: tuple[int, ...]) -> NDArray[np.float32]:
        """Return the model's logits [V] after the answer so far, float32, with -inf for what may
        not follow."""
        scores = self.weighted(self.repeated(logits, answer), answer)
        if self._forbids and scores.max() == -np.inf and logits.max() > -np.inf:
            return self._dead_end(logits, answer)
        return scores

    def repeated(self, logits: Array, answer: tuple[int, ...]) -> NDArray[np.float32]:
        """Return a copy, float32, after the repetition penalty: all that depends on a token's
        logit."""
        scores = logits.astype(np.float32)
        penalty = np.float32(self._processors.repetition_penalty)
        if penalty != 1:
            repeated = np.union1d(self._prompt_ids, np.array(answer, dtype=np.intp))
            before = scores[repeated]
            scores[repeated] = np.where(before < 0, before * penalty, before / penalty)
        return scores

    def weighted(self, scores: NDArray[np.float32], answer: tuple[int, ...]) -> NDArray[np.float32]:
        """Return the same array after all others, which add to a token's logit what the text alone
        says: a factor of its probability, 0 for what may not follow."""
        processors = self._processors
        if processors.presence_penalty or processors.frequency_penalty:
            seen, counts = np.unique(np.array(answer, dtype=np.intp), return_counts=True)
            scores[seen] -= np.float32(processors.presence_penalty)
            scores[seen] -= np.float32(processors.frequency_penalty) * counts.astype(np.float32)
        scores[self._bias_ids] += self._biases
        if len(self._allowed):
            kept = scores[self._allowed]
            scores.fill(-np.inf)
            scores[self._allowed] = kept
        scores[self._banned] = -np.inf
        if len(answer) < processors.min_tokens:
            scores[self._ends] = -np.inf
        if self.mask is not None:
            keep_only(scores, self.mask.allowed(answer))
        return scores

    def prepare(self, answers: Sequence[tuple[int, ...]]) -> Pending | None:
        """Start computing elsewhere what takes time for the rows after these answers, which will be
        asked for soon. Return None if nothing does."""
        return None if self.mask is None else self.mask.prepare(answers)

    def forced(self, answer: tuple[int, ...]) -> int | None:
        """Return the token that alone may follow, whatever the model says; None where several
        may."""
        if self.mask is None:
            return None
        token_id = self.mask.forced(answer)
        if token_id is None or (self._banned == token_id).any():
            return None
        return token_id if not len(self._allowed) or (self._allowed == token_id).any() else None

    @property
    def _forbids(self) -> bool:
        listed = len(self._allowed) > 0 or len(self._banned) > 0
        return self.mask is not None or listed or self._processors.min_tokens > 0

    def _dead_end(self, logits: Array, answer: tuple[int, ...]) -> NDArray[np.float32]:
        if not self._strict:
            return logits.astype(np.float32)
        raise no_token_left(self._processors, len(answer))


@dataclass(frozen=True, slots=True)
class RowsAfter:
    """The rows of one pass, which follow this answer; `skipped`: the first of the fed tokens that
    are the prompt's."""

    processor: LogitsProcessor
    answer: tuple[int, ...]
    skipped: int = 0

    @classmethod
    def text(cls, processor: LogitsProcessor, committed: PrefixedTokens, length: int) -> RowsAfter:
        """Return the rows of a pass that feeds what follows the first `length` committed tokens."""
        prompt = processor.prompt_length
        answer = committed.since(prompt)[: max(0, length - prompt)]
        return cls(processor, answer, max(0, prompt - length))

    def processed(self, logits: Array, fed: tuple[int, ...]) -> NDArray[np.float32]:
        """Return the processed row [V] that follows `fed`, the fed tokens before it."""
        return self.processor.processed(logits, (*self.answer, *fed[self.skipped :]))

    def forced(self, fed: tuple[int, ...]) -> int | None:
        """See the processor."""
        return self.processor.forced((*self.answer, *fed[self.skipped :]))

    def prepare(self, fed: Sequence[tuple[int, ...]]) -> Pending | None:
        """Prepare the rows after each of these, which will be asked for once the pass is over."""
        return self.processor.prepare(
            [(*self.answer, *token_ids[self.skipped :]) for token_ids in fed]
        )

    def allows(self, token_id: int, fed: tuple[int, ...]) -> bool:
        """Return whether the grammar, if there is one, lets this token follow `fed`."""
        if (mask := self.processor.mask) is None:
            return True
        allowed = mask.allowed((*self.answer, *fed[self.skipped :]))
        return allowed is not None and bool(allowed[token_id])

    def certain(self, token_id: int) -> NDArray[np.float32]:
        """Return the distribution [V] where the grammar forces a token."""
        assert self.processor.mask is not None, "only a mask forces tokens"
        return one_hot(self.processor.mask.vocabulary_size, token_id)


def keep_only(scores: NDArray[np.float32], allowed: Mask | None) -> None:
    """Set all tokens but those allowed to -inf, in place. There is no branch, as a mask cannot be
    predicted: a row of a large vocabulary would take ten times as long."""
    if allowed is None:
        scores.fill(-np.inf)
        return
    limits = np.left_shift((~allowed).view(np.uint8), 31, dtype=np.uint32)  # the sign of
    limits |= _INFINITY
    np.fmin(scores, limits.view(np.float32), out=scores)


def no_token_left(processors: Processors, length: int) -> InvalidArgument:
    """Return the error for an answer of that many tokens that nothing may follow."""
    field = "grammar"
    if processors.grammar is None:
        field = "allowed_token_ids" if processors.allowed_token_ids else "banned_token_ids"
    if length < processors.min_tokens:
        field = "min_tokens"
    return InvalidArgument(field, f"no token may follow the answer's first {length} tokens")


def logits_processor(
    processors: Processors,
    prompt_ids: Sequence[int],
    mask: GrammarMask | None = None,
    strict: bool = True,
    eos_token_ids: frozenset[int] = frozenset(),
) -> LogitsProcessor | None:
    """Return a processor of logits; None where these stay as they are, which costs nothing."""
    if not processors.active:
        return None
    return LogitsProcessor(processors, prompt_ids, mask, strict, eos_token_ids)
