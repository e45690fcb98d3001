"""How an answer may think: what its prompt says of it, and what the models' processors are told.
Invariant: an answer that cannot think is decoded as if its model could not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tandem.core.errors import InvalidArgument
from tandem.core.processors import Processors, Thinking
from tandem.core.prompt import Turn
from tandem.generation.request import GenerationRequest
from tandem.text import FamilyTokenizer, SpecialTokenizer, Tokenizer
from tandem.text.answer_text import AnswerText
from tandem.text.chat_rendering import continued_tokens
from tandem.text.families import PLAIN, ModelFamily, ThinkingFormat
from tandem.text.thinking import ThinkingSplitter, ThinkingStart, thinking_start

_BUDGET = "thinking_token_budget"


@dataclass(frozen=True, slots=True)
class AnswerThinking:
    """Of one answer. `family` and `start`: how its text is read, `PLAIN` and `NONE` where it is a
    text as it stands; `tokens`: its thinking for the models, if they are to know of it."""

    family: ModelFamily = PLAIN
    start: ThinkingStart = ThinkingStart.NONE
    tokens: Thinking | None = None

    def processors(self, asked: Processors) -> Processors:
        """Return the processors that a caller asked for, with the thinking added."""
        return asked if self.tokens is None else replace(asked, thinking=self.tokens)

    def text(
        self, tokenizer: Tokenizer, request: GenerationRequest, prompt_ids: Sequence[int]
    ) -> AnswerText:
        """Begin the text of the answer, with the family's marks in it, or with all special tokens
        if the request asks for those."""
        after = continued_tokens(request.prompt, request.chat_template_kwargs, prompt_ids)
        detokenizer = single = None
        if request.spell_special_tokens and isinstance(tokenizer, SpecialTokenizer):
            ends = {*tokenizer.eos_token_ids, *request.stop_token_ids}
            shows_end = request.include_stop_str_in_output
            detokenizer = tokenizer.special_detokenizer(() if shows_end else ends, after)
            single = tokenizer.special_detokenizer(after=after)
        elif self.family is not PLAIN and isinstance(tokenizer, FamilyTokenizer):
            detokenizer = tokenizer.marked_detokenizer(after)
        thinks = self.start is not ThinkingStart.NONE
        return AnswerText(
            tokenizer,
            request.stop,
            request.stop_token_ids,
            min_tokens=request.params.processors.min_tokens,
            includes_stop=request.include_stop_str_in_output,
            detokenizer=detokenizer,
            single=single,
            after=after,
            splitter=ThinkingSplitter(self.family.thinking, self.start) if thinks else None,
        )


def answer_thinking(
    tokenizer: Tokenizer, prompt_ids: Sequence[int], request: GenerationRequest
) -> AnswerThinking:
    """Return how the answer to a prompt may think. In an answer to a conversation a grammar holds
    for what follows the thinking. Raises InvalidArgument("thinking_token_budget") for a model that
    cannot be given a budget."""
    limited = request.thinking_token_budget >= 0
    family = tokenizer.family if isinstance(tokenizer, FamilyTokenizer) else PLAIN
    if not isinstance(tokenizer, FamilyTokenizer) or family.thinking is None:
        if limited:
            raise InvalidArgument(_BUDGET, "this model does not think before it answers")
        return AnswerThinking(family) if _is_conversation(request) else AnswerThinking()
    start = thinking_start(family.thinking, tokenizer.prompt_end(prompt_ids))
    chats = _is_conversation(request)
    tokens = None
    constrained = chats and request.params.processors.grammar is not None
    if start is not ThinkingStart.NONE and (limited or constrained):
        tokens = _tokens(tokenizer, family.thinking, start, request.thinking_token_budget)
    if not chats:
        return AnswerThinking(tokens=tokens)
    return AnswerThinking(family, start, tokens)


def _tokens(
    tokenizer: FamilyTokenizer, thinking: ThinkingFormat, start: ThinkingStart, budget: int
) -> Thinking | None:
    """Return the thinking of an answer, in tokens. If no single token of the model ends its
    thinking, the end cannot be seen in the tokens: returns None without a budget, and raises
    InvalidArgument("thinking_token_budget") with one."""
    if len(tokenizer.mark_ids(thinking.end)) != 1:
        if budget >= 0:
            raise InvalidArgument(_BUDGET, f"{thinking.end!r} is not one token of this model")
        return None
    opened = start is ThinkingStart.OPENED
    return Thinking(
        end_ids=tuple(tokenizer.mark_ids(thinking.end + thinking.forced)),
        begin_ids=() if opened else tuple(tokenizer.mark_ids(thinking.begin)),
        budget=budget if budget >= 0 else None,
    )


def _is_conversation(request: GenerationRequest) -> bool:
    return isinstance(next(iter(request.prompt), None), Turn)
