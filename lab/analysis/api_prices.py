"""What answers cost where a provider sells tokens: FSD, Table 1. Invariant: prices are arguments.

The paper bills a verification as one output token of the target, and the prompt once. A provider
that bills the drafts of every pass as input too takes more; `drafts_as_input` says so."""

from dataclasses import dataclass

from tandem.control.conditions import check_duration
from tandem.core.errors import InvalidArgument

_MILLION = 1e6


@dataclass(frozen=True, slots=True)
class TokenPrices:
    """Dollars per 10⁶ tokens, as providers print them."""

    input: float
    output: float

    def __post_init__(self) -> None:
        check_duration("input", self.input)
        check_duration("output", self.output)


@dataclass(frozen=True, slots=True)
class RequestLoad:
    """A number of requests, and the tokens of each."""

    requests: int
    input_tokens: int
    output_tokens: int

    def priced(self, prices: TokenPrices, output_tokens: float, further_input: float = 0) -> float:
        """Return the dollars for this many output tokens and further input tokens of each
        request."""
        read = (self.input_tokens + further_input) * prices.input
        return self.requests * (read + output_tokens * prices.output) / _MILLION


def autoregressive_cost(target: TokenPrices, load: RequestLoad) -> float:
    """Return the dollars where the target makes every token."""
    return load.priced(target, load.output_tokens)


def speculative_cost(
    target: TokenPrices,
    load: RequestLoad,
    *,
    tokens_per_round: float,
    draft_length: int,
    draft: TokenPrices | None = None,
    drafts_as_input: bool = False,
) -> float:
    """Return the dollars where the target verifies: with the draft model at the edge, or, if
    `draft` has its prices, in the cloud too (Figure 1b)."""
    if not tokens_per_round >= 1:
        raise InvalidArgument("tokens_per_round", f"must be at least 1, is {tokens_per_round}")
    rounds = load.output_tokens / tokens_per_round
    drafted = rounds * draft_length
    drafting = load.priced(draft, drafted) if draft is not None else 0.0
    return drafting + load.priced(target, rounds, drafted if drafts_as_input else 0)
