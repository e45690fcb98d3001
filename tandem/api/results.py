"""What a caller gets: a finished answer, or its pieces as they are committed."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from tandem.core.errors import TandemError
from tandem.generation.client import Generated, TopLogprobs
from tandem.generation.figures import Figures, figures_of

_Text = Annotated[str, Field(description="Without special tokens.")]
_TokenIds = Annotated[tuple[int, ...], Field(description="In the target model's vocabulary.")]
_Sources = Annotated[
    tuple[str, ...],
    Field(
        description="Who made each token: `draft`, `cloud_draft` (a draft of the cloud itself),"
        " `target`, or `edge` (the cloud was lost); in answers from documents `device`, `cloud`,"
        " `both` or `recovered`."
    ),
]
_Logprobs = Annotated[
    tuple[float, ...],
    Field(description="Log-probability of each token, if `logprobs` asked for it."),
]


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens that were committed together, and their text. A token that ends within a character has
    its text in a later piece."""

    text: _Text
    token_ids: _TokenIds
    token_sources: _Sources
    logprobs: _Logprobs = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer."""

    text: _Text
    token_ids: _TokenIds
    token_sources: _Sources
    finish_reason: Annotated[
        str, Field(description="`stop`, `length` or another reason, as the service names it.")
    ]
    seed: Annotated[int, Field(description="Gives the same text again, with the same options.")]
    figures: Annotated[Figures, Field(description="What the answer took.")]
    logprobs: _Logprobs = ()
    top_logprobs: Annotated[
        tuple[TopLogprobs, ...],
        Field(
            description="For each token, the id, text and log-probability of the most likely ones,"
            " if `top_logprobs` asked for them."
        ),
    ] = ()


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
