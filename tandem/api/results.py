"""What a caller gets: a finished answer, or its pieces as they are committed."""

from dataclasses import dataclass

from tandem.core.errors import TandemError
from tandem.generation.client import Generated, TopLogprobs
from tandem.generation.figures import Figures, figures_of


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens that were committed together, and their text. A token that ends within a character has
    its text in a later piece."""

    text: str
    token_ids: tuple[int, ...]
    token_sources: tuple[str, ...]
    logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer.

    `finish_reason`: `stop`, `length`, … as the service names it. `seed` gives the same text again.
    `token_sources`: who made each token: `draft`, `cloud_draft` (a draft of the cloud itself),
    `target` or `edge` (the cloud was lost), and from two sides' documents `device`, `cloud`, `both`
    or `recovered`. `logprobs` and `top_logprobs` (id, text and log-probability of the likeliest
    tokens) where they were asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    token_sources: tuple[str, ...]
    finish_reason: str
    seed: int
    figures: Figures
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[TopLogprobs, ...] = ()


def answer_of(result: Generated, seed: int) -> Answer:
    """Return the finished answer. Raises TandemError for an answer that ended without its
    figures."""
    if result.summary is None:
        raise TandemError("the service ended the answer without a summary")
    return Answer(
        text=result.text,
        token_ids=tuple(result.token_ids),
        token_sources=tuple(map(str, result.token_sources)),
        finish_reason=result.summary.finish_reason,
        seed=seed,
        figures=figures_of(result),
        logprobs=tuple(result.logprobs),
        top_logprobs=tuple(result.top_logprobs),
    )


class Progress:
    """Cuts a growing result into pieces."""

    def __init__(self) -> None:
        self._characters = self._tokens = self._logprobs = 0

    def piece(self, result: Generated) -> Piece | None:
        """Return the part of `result` since the last call, or None if there is none."""
        if (len(result.text), len(result.token_ids)) == (self._characters, self._tokens):
            return None
        piece = Piece(
            text=result.text[self._characters :],
            token_ids=tuple(result.token_ids[self._tokens :]),
            token_sources=tuple(map(str, result.token_sources[self._tokens :])),
            logprobs=tuple(result.logprobs[self._logprobs :]),
        )
        self._characters = len(result.text)
        self._tokens = len(result.token_ids)
        self._logprobs = len(result.logprobs)
        return piece
