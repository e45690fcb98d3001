"""How many tokens a cloud drafts itself before a pass, by what that costs it and by how often such
drafts stand.

The cloud's draft steps take its time, as its passes do, so they have to bring more tokens a second
than a pass without them. With good drafts and few sessions that is a chunk of some length; with bad
ones, or where many sessions make each row of a pass dear, it is none. Pure, one clock's seconds go
in."""

from __future__ import annotations

from tandem.control.acceptance import PooledAcceptanceRate
from tandem.control.config import DEFAULT_CONFIG, TINY, ControllerConfig
from tandem.control.pass_budget import PassBudget

_MOST_FED = 4
"""Tokens that a draft step feeds of each session at most: the one or two that the last pass added,
with room for a few of an edge's drafts."""


class CloudDraftBudget:
    """For all sessions of a verifier. `acceptance`: the rate of the draft model's drafts in
    all of them; `passes`: the budget of the target's passes."""

    __slots__ = ("_config", "_passes", "_reading_row_s", "_step_s", "acceptance")

    def __init__(self, passes: PassBudget, config: ControllerConfig = DEFAULT_CONFIG) -> None:
        # Drafts cost the cloud's time even where they are bad: the guess is soon given up.
        self.acceptance = PooledAcceptanceRate(config, guessed=config.few_tokens / 2)
        self._config = config
        self._passes = passes
        self._step_s = 0.0
        self._reading_row_s = 0.0

    def knows(self, step_s: float, reading_row_s: float) -> None:
        """Record what a step of the draft model takes, and what each token of a prompt adds to it,
        as the engine measured them before it was used."""
        self._step_s = step_s
        self._reading_row_s = reading_row_s

    def drafted(self, seconds: float, tokens: int, sessions: int) -> None:
        """Record a draft step over `tokens` tokens of `sessions` sessions, and its seconds. May be
        called on another thread than the rest."""
        if tokens > _MOST_FED * sessions:
            return  # prompts
        before_s = self._step_s or seconds
        self._step_s = before_s + self._config.follow * (seconds - before_s)

    def drafts(self, acceptance_rate: float, most: int, *, by_model: bool = True) -> int:
        """Return how many of `most` tokens to draft for a session before its next pass. Each takes
        a step, unless it is not made `by_model`, and a row of the pass, which all sessions that
        share it draft and feed as well. A step counts once it was measured; before a pass was, all
        are worth it."""
        cost = self._cost(made=not by_model)
        return worth_drafting(acceptance_rate, most, cost, self._config)

    def speed(self, acceptance_rate: float, count: int, *, made: bool = False) -> float:
        """Return how fast tokens come with `count` drafts, relative to none. `made`: they are there
        already, and cost their rows alone."""
        return tokens_per_pass(acceptance_rate, count) / (1 + count * self._cost(made=made))

    def texts_before_try(
        self, count: int, least: float, *, made: bool, unread_tokens: int = 0
    ) -> float:
        """Return after how many texts that are not worth drafts `count` are tried: `least` where
        that costs little, and more where it would take more than a small share of the passes.

        Args:
            count: drafts of a try.
            least: texts before a try at least.
            made: whether they are there already, and cost their rows alone.
            unread_tokens: of the text, which the draft model would read first."""
        cost = count * self._cost(made=made) + self._reading_cost(unread_tokens)
        return max(least, cost / self._config.try_share)

    def _reading_cost(self, tokens: int) -> float:
        """Return what it costs the draft model to read `tokens` tokens, as a share of a pass over
        one token of each session; nothing before a pass was seen."""
        times_s = self._passes.shared_times_s
        if times_s is None:
            return 0.0
        return tokens * self._reading_row_s / max(times_s[0], TINY)

    def _cost(self, *, made: bool) -> float:
        """Return what a draft costs, as a share of a pass over one token of each session; nothing
        before a pass was seen."""
        times_s = self._passes.shared_times_s
        if times_s is None:
            return 0.0
        pass_s, row_s = times_s
        return (row_s if made else row_s + self._step_s) / max(pass_s, TINY)


def tokens_per_pass(acceptance_rate: float, drafts: float) -> float:
    """Return how many tokens a pass over k drafts in a row is expected to yield: 1 + a + … + aᵏ. A
    mean number of drafts need not be whole."""
    if acceptance_rate >= 1:
        return 1 + drafts
    rest: float = 1 - acceptance_rate ** (drafts + 1)
    return rest / (1 - acceptance_rate)


def worth_drafting(
    acceptance_rate: float, most: int, step: float, config: ControllerConfig = DEFAULT_CONFIG
) -> int:
    """Return how many drafts in a row make tokens come fastest, where drafts are made and judged
    one after the other.

    With a the acceptance rate, a pass over k drafts yields 1 + a + … + a^k tokens in 1 + k·step
    passes over one token. A further draft is worth it while it brings more tokens a second than
    those before it.

    Args:
        acceptance_rate: a, in [0, 1].
        most: the largest k to return.
        step: what a draft costs to make and to judge, as a share of a pass over one token.
        config: the margin by which it must be better."""
    tokens = 1.0
    right = 1.0
    taken = 0
    while taken < most:
        right *= acceptance_rate
        if right * (1 + taken * step) <= (1 + config.switch_gain) * step * tokens:
            break
        tokens += right
        taken += 1
    return taken
