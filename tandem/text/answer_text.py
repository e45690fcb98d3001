"""The text of an answer while its tokens become final: detokenising, stop strings, and how many of
the tokens are thinking.

Invariant: text is only appended; what might still become a stop string or a whole UTF-8 sequence is
held back.
"""

from collections.abc import Iterable, Sequence

from tandem.core.stopping import StopStrings
from tandem.text import IncrementalText, Tokenizer
from tandem.text.spelling import Spelling, SpeltToken
from tandem.text.thinking import ThinkingSplitter


class AnswerText:
    """`completes_stop` is told each committed token once, in order; `take` hands the text out."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: tuple[str, ...],
        stop_token_ids: Iterable[int] = (),
        *,
        min_tokens: int = 0,
        includes_stop: bool = False,
        detokenizer: IncrementalText | None = None,
        single: IncrementalText | None = None,
        after: Sequence[int] = (),
        splitter: ThinkingSplitter | None = None,
    ) -> None:
        """The text ends with the first stop string that is complete after `min_tokens` tokens, if
        `includes_stop`, and else before it. `after`: the tokens whose text it goes on with.
        `detokenizer`: the one that makes the text, if it is not the tokenizer's usual one;
        `single`: likewise, of what single tokens spell. `splitter`: of an answer that may think;
        without one no token is counted as thinking."""
        self._detokenizer = detokenizer or tokenizer.detokenizer(after)
        self._thinking = ThinkingCount(splitter) if splitter is not None else None
        self._spelling = Spelling(tokenizer, single or tokenizer.detokenizer(after))
        self._stops = StopStrings(stops, includes_stop)
        self._min_tokens = min_tokens
        self._tokens = 0
        self._looks_for_stops = bool(stops)
        self._stop_token_ids = frozenset(stop_token_ids)
        self._unread: list[int] = []
        self._pieces: list[str] = []
        self._stopped = False

    @property
    def stop_sequence(self) -> str:
        """The stop string that ended the text; empty if none did."""
        return self._stops.matched

    def completes_stop(self, token_id: int) -> bool:
        """Take the next token; True when it is one that ends the text, or completes a stop
        string."""
        is_stop = token_id in self._stop_token_ids
        if not self._looks_for_stops:
            self._unread.append(token_id)  # read when the text is asked for: a round waits for this
            return is_stop
        self._tokens += 1
        piece, self._stopped = self._stops.push(self._pushed((token_id,)), may_end=self._may_end)
        self._pieces.append(piece)
        return self._stopped or is_stop

    def take(self, count: int) -> str:
        """Return the text that became final with the next `count` tokens."""
        if not self._looks_for_stops:
            token_ids = self._unread[:count]
            del self._unread[:count]
            return self._pushed(token_ids)
        text = "".join(self._pieces[:count])
        del self._pieces[:count]
        return text

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of thinking so far, with the marks around it."""
        return 0 if self._thinking is None else self._thinking.tokens

    def _pushed(self, token_ids: Sequence[int]) -> str:
        if self._thinking is None:
            return self._detokenizer.push(token_ids)
        pieces = [self._detokenizer.push((token_id,)) for token_id in token_ids]
        for piece in pieces:
            self._thinking.push(piece)
        return "".join(pieces)

    def spelt(
        self, token_ids: Sequence[int], instead: Sequence[Sequence[int]] = ()
    ) -> tuple[list[SpeltToken], list[list[SpeltToken]]]:
        """Return what each of the next tokens spells after those before it, including stop strings;
        and what the tokens of `instead` would have spelt there."""
        return self._spelling.spelt(token_ids, instead)

    def rest(self) -> str:
        """Return what was held back, once no token follows."""
        if self._stopped:
            return ""
        piece, stopped = self._stops.push(self._detokenizer.finish(), may_end=self._may_end)
        return piece if stopped else piece + self._stops.flush()

    @property
    def _may_end(self) -> bool:
        """Whether a stop string that the last token completes ends the text."""
        return self._tokens > self._min_tokens


class ThinkingCount:
    """Counts the tokens of thinking in an answer: those with whose text the answer is, or was
    before, in its thinking."""

    def __init__(self, splitter: ThinkingSplitter) -> None:
        self._splitter = splitter
        self._undecided = 0
        self.tokens = 0

    def push(self, text: str) -> None:
        """Take the text of the next token, which may be empty."""
        splitter = self._splitter
        thought = splitter.thinks
        splitter.push(text)
        if splitter.undecided:
            self._undecided += 1
            return
        if thought or splitter.thinks:
            self.tokens += 1 + self._undecided
        self._undecided = 0
