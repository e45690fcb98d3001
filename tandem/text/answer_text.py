"""The text of an answer while its tokens become final: detokenising and stop strings.

Invariant: text is only appended; what might still become a stop string or a whole UTF-8 sequence is
held back.
"""

from collections.abc import Iterable, Sequence

from tandem.core.stopping import StopStrings
from tandem.text import Tokenizer
from tandem.text.spelling import Spelling, SpeltToken


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
    ) -> None:
        """Stop strings are looked for after `min_tokens` tokens; the text ends with the one that
        is found, if `includes_stop`, and else before it."""
        self._detokenizer = tokenizer.detokenizer()
        self._spelling = Spelling(tokenizer)
        self._stops = StopStrings(stops, includes_stop)
        self._min_tokens = min_tokens
        self._tokens = 0
        self._looks_for_stops = bool(stops)
        self._stop_token_ids = frozenset(stop_token_ids)
        self._unread: list[int] = []
        self._pieces: list[str] = []
        self._stopped = False

    def completes_stop(self, token_id: int) -> bool:
        """Take the next token; True when it is one that ends the text, or completes a stop
        string."""
        is_stop = token_id in self._stop_token_ids
        if not self._looks_for_stops:
            self._unread.append(token_id)  # read when the text is asked for: a round waits for this
            return is_stop
        self._tokens += 1
        piece = self._detokenizer.push((token_id,))
        if self._tokens > self._min_tokens:
            piece, self._stopped = self._stops.push(piece)
        self._pieces.append(piece)
        return self._stopped or is_stop

    def take(self, count: int) -> str:
        """The text that became final with the next `count` tokens."""
        if not self._looks_for_stops:
            token_ids = self._unread[:count]
            del self._unread[:count]
            return self._detokenizer.push(token_ids)
        text = "".join(self._pieces[:count])
        del self._pieces[:count]
        return text

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
        piece, stopped = self._stops.push(self._detokenizer.finish())
        return piece if stopped else piece + self._stops.flush()
