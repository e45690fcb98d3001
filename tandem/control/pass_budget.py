"""The budget of a verifier's pass: how many drafts it takes of each session.

Every token fed makes the pass longer for all sessions in it. A draft goes in while it brings more
tokens than all sessions lose by that: then the tokens per second of all grow. A session that gets
more than the others has to bring more in proportion, as proportional fairness asks, and so do the
sessions of a tenant who has more of them. With no draft worth its cost each session gets its
own token from each pass, as if nobody drafted. Invariant: no session waits for another's drafts;
pure, one clock's seconds go in."""

from __future__ import annotations

from tandem.control.acceptance import PooledAcceptanceRate
from tandem.control.config import DEFAULT_CONFIG, TINY, ControllerConfig
from tandem.core.line_fit import LineFit


class PassBudget:
    """Takes every pass of a verifier; tells each session's machine what the next one bears.

    `price`: the share of its tokens per second that a further token of a pass costs each session in
    it, summed over them."""

    __slots__ = (
        "_config",
        "_drafts_never_pay",
        "_row_share",
        "_seconds",
        "_tokens_each",
        "_yield_each",
        "acceptance",
        "price",
        "sessions",
    )

    def __init__(
        self,
        config: ControllerConfig = DEFAULT_CONFIG,
        row_share: float | None = None,
        *,
        drafts_never_pay: bool = False,
    ) -> None:
        """Start with no passes seen. `row_share`: what a further token adds to a pass over one,
        relative to it, as the engine measured it before it was used; None if it did not."""
        self._config = config
        self._row_share = row_share
        self._drafts_never_pay = drafts_never_pay
        self.acceptance = PooledAcceptanceRate(config)
        """Of the drafts of all edges."""
        self.price = 0.0
        self._seconds = LineFit(config.keep)
        self.sessions = 1.0
        """Those that share a pass, of the last passes most; at least 1."""
        self._tokens_each = 1.0
        self._yield_each = 1.0

    @property
    def token_s(self) -> float:
        """Seconds that a further token of a pass takes; one of a prompt takes no longer."""
        return self._seconds.fit()[1] if self._seconds.weight else 0.0

    @property
    def shared_times_s(self) -> tuple[float, float] | None:
        """The seconds of a pass over one token of each session that shares it, and those that a
        further token of each would add; None before a pass was seen. Passes over one token say
        nothing of a further one: there the engine's own measurement counts."""
        if not self._seconds.weight:
            return None
        if self._drafts_never_pay:  # a further token takes as long as another pass
            first_s, further_s = 0.0, sum(self._seconds.fit())
        elif self._row_share is None:
            first_s, further_s = self._seconds.fit()
        else:
            further = min(self._row_share, self._config.surest)
            first_s, further_s = self._seconds.fit(further / (1 - further), 1.0)
        shared_s = self.sessions * further_s
        return first_s + shared_s, shared_s

    def passed(self, seconds: float, tokens: int, sessions: int) -> None:
        """Record a pass over `tokens` tokens of `sessions` sessions, and its seconds. May be called
        on another thread than the rest."""
        config = self._config
        if tokens > (config.window + 1) * sessions:
            return  # more than the window of each: prompts, whose tokens cost less
        self._seconds.add(tokens, seconds)
        self.sessions += config.follow * (sessions - self.sessions)
        self._tokens_each += config.follow * (tokens / sessions - self._tokens_each)
        first_s, further_s = self._seconds.fit()
        sessions_now = max(self.sessions, sessions)
        pass_s = first_s + further_s * sessions_now * self._tokens_each
        self.price = sessions_now * further_s / max(pass_s, TINY)

    def drafts(
        self,
        acceptance_rate: float,
        ready: int,
        *,
        tenant_share: float = 1.0,
    ) -> int:
        """Return how many of a session's `ready` drafts the next pass takes.

        Args:
            tenant_share: sessions of its tenant, relative to an even share. Proportional fairness
                is among tenants, so who has more has to bring more with each draft; a session's own
                token it gets in any case."""
        price = self.price * tenant_share
        taken, tokens = worth_feeding(
            acceptance_rate, ready, price, self._yield_each, config=self._config
        )
        self._yield_each += (tokens - self._yield_each) / self._config.sentence_tokens
        return taken


def worth_feeding(
    acceptance_rate: float,
    most: int,
    price: float,
    yield_each: float = 1.0,
    config: ControllerConfig = DEFAULT_CONFIG,
) -> tuple[int, float]:
    """Return how many drafts of a session a pass should take, and the tokens that it then yields.
    `price` as in `PassBudget`; `yield_each`: what a session gets from a pass on average."""
    tokens = 1.0
    right = 1.0
    taken = 0
    cost = (1 + config.switch_gain) * price
    while taken < most:
        right *= acceptance_rate
        if right < cost * (yield_each if yield_each > tokens else tokens):
            break
        tokens += right
        taken += 1
    return taken, tokens
