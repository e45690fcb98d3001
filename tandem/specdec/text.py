"""The text of one request as it is committed, and what ends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tandem.core.stopping import FinishReason
from tandem.core.tokens import PrefixedTokens


class CommittedText:
    """Prompt and answer of one request, and the conditions that end the answer.

    Invariant: nothing is committed after the token that ends the text."""

    def __init__(
        self,
        prompt_ids: tuple[int, ...],
        *,
        max_tokens: int,
        eos_token_ids: frozenset[int],
        ignore_eos: bool,
        completes_stop: Callable[[int], bool],
    ) -> None:
        """Start with the prompt. `completes_stop` is called once per answer token and returns
        whether a stop string ends with it."""
        self.tokens = PrefixedTokens(prompt_ids)
        self.eos = frozenset() if ignore_eos else eos_token_ids
        self._ignore_eos = ignore_eos
        self._completes_stop = completes_stop
        self._first = len(prompt_ids)
        self.length_limit = self._first + max_tokens

    def take_eos(self, eos_token_ids: frozenset[int]) -> None:
        """Take the target model's end-of-sequence tokens: both ends must stop together."""
        if not self._ignore_eos:
            self.eos = eos_token_ids

    def limit(self, max_tokens: int) -> None:
        """Lower the length limit of the answer to `max_tokens`, unless it is lower already."""
        self.length_limit = min(self.length_limit, self._first + max_tokens)

    def append(self, token_ids: Sequence[int]) -> tuple[tuple[int, ...], FinishReason | None]:
        """Commit tokens up to the first that ends the text; return which, and why it ended."""
        room = max(1, self.length_limit - self.tokens.end)
        committed = tuple(token_ids[:room])
        reason = FinishReason.LENGTH if len(committed) == room else None
        for count, token in enumerate(committed, start=1):
            if self._completes_stop(token) or token in self.eos:
                committed, reason = committed[:count], FinishReason.STOP
                break
        self.tokens.extend(committed)
        return committed, reason
