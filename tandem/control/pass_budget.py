"""The budget of a verifier's pass: how many drafts it takes of each session, and whether a session
may wait for drafts.

Every token fed makes the pass longer for all sessions in it. A draft goes in while it brings more
tokens than all sessions lose by that: then the tokens per second of all grow. A session that gets
more than the others has to bring more in proportion, as proportional fairness asks, and so do the
sessions of a key holder who has more of them. With no draft worth its cost each session gets its
own token from each pass, as if nobody drafted. Invariant: no session waits for another's drafts;
pure, one clock's seconds go in."""

from __future__ import annotations

from collections.abc import Callable
from math import copysign, sqrt

from tandem.control.conditions import several
from tandem.control.config import DEFAULT_CONFIG, TINY, ControllerConfig
from tandem.core.line_fit import LineFit


class UsualAcceptance:
    """The acceptance rate of all sessions' drafts, as of now; a guess to begin with."""

    __slots__ = ("_accepted", "_config", "_judged", "_keep", "seen")

    def __init__(
        self, config: ControllerConfig = DEFAULT_CONFIG, guessed: float | None = None
    ) -> None:
        """Start with a guess. `guessed`: how many drafts the guess is worth; None: it is worth a
        first look (`few_tokens`)."""
        self._config = config
        self._keep = config.usual_keep
        self._judged = float(config.few_tokens) if guessed is None else guessed
        self._accepted = config.prior_acceptance * self._judged
        self.seen = 0
        """Drafts that were judged."""

    @property
    def rate(self) -> float:
        return self._accepted / self._judged

    def judged(self, accepted: int, rejected: int) -> None:
        """Record accepted and rejected drafts; those after a rejected one are not judged."""
        keep = self._keep ** (accepted + rejected)
        self.seen += accepted + rejected
        self._accepted = keep * self._accepted + accepted
        self._judged = keep * self._judged + accepted + rejected


class SessionAcceptance(UsualAcceptance):
    """The acceptance rate of one session: its own drafts, and a few more at the usual rate.

    Where a text repeats another, many drafts in a row are right, and elsewhere few. So drafts after
    a run of right ones have a rate of their own: a mean of both would feed a copied text a few
    tokens at a time."""

    __slots__ = ("_after_judged", "_after_right", "_run", "_usual")

    def __init__(self, usual: UsualAcceptance) -> None:
        self._config = usual._config
        self._keep = self._config.keep
        self._accepted = self._judged = 0.0
        self.seen = 0
        self._usual = usual
        self._run = 0
        # Drafts that were judged after a run of a few right ones, and those that were right.
        self._after_judged = self._after_right = 0.0

    @property
    def rate(self) -> float:
        return self._believed(self._accepted, self._judged, self._usual.rate)

    @property
    def next_rate(self) -> float:
        """The rate of the drafts that come next."""
        if self._run < self._config.few_tokens:
            return self.rate
        return self._believed(self._after_right, self._after_judged, self.rate)

    def _believed(self, accepted: float, judged: float, usual: float) -> float:
        # Twice as many as a first look: a session whose first drafts fail by chance gets no more
        # drafts into a full pass, and so no chance to be judged better.
        weight = 2 * self._config.few_tokens
        known = judged + weight
        off = (accepted + weight * usual) / known - usual
        # Of many sessions that are alike, some seem better or worse by chance. Drafts of the lucky
        # ones would cost all others more than they bring, so a standard deviation of what chance
        # gives is not believed.
        chance = sqrt(usual * (1 - usual) / known)
        return usual + copysign(max(0.0, abs(off) - chance), off)

    def judged(self, accepted: int, rejected: int) -> None:
        UsualAcceptance.judged(self, accepted, rejected)
        self._usual.judged(accepted, rejected)
        few = self._config.few_tokens
        before, self._run = self._run, self._run + accepted
        right = max(0, self._run - max(few, before))  # the accepted ones that a run came before
        wrong = rejected if self._run >= few else 0
        keep = self._keep ** (right + wrong)
        self._after_right = keep * self._after_right + right
        self._after_judged = keep * self._after_judged + right + wrong
        if rejected:
            self._run = 0


class PassBudget:
    """Takes every pass of a verifier; tells each session's machine what the next one bears.

    `price`: the share of its tokens per second that a further token of a pass costs each session in
    it, summed over them. `alone`: whether a session has the passes to itself."""

    __slots__ = (
        "_config",
        "_row_share",
        "_seconds",
        "_sessions",
        "_tokens_each",
        "_yield_each",
        "alone",
        "price",
        "usual",
    )

    def __init__(
        self, config: ControllerConfig = DEFAULT_CONFIG, row_share: float | None = None
    ) -> None:
        """Start with no passes seen. `row_share`: what a further token adds to a pass over one,
        relative to it, as the engine measured it before it was used, and 1 where drafts do not pay
        in any case; None if it did not."""
        self._config = config
        self._row_share = row_share
        self.usual = UsualAcceptance(config)
        self.price = 0.0
        self.alone = True
        self._seconds = LineFit(config.keep)
        self._sessions = 1.0
        self._tokens_each = 1.0
        self._yield_each = 1.0

    @property
    def sessions(self) -> float:
        """Sessions that share a pass, those of the last passes most; at least 1."""
        return self._sessions

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
        if self._row_share is None:
            first_s, further_s = self._seconds.fit()
        elif self._row_share >= 1:
            first_s, further_s = 0.0, sum(self._seconds.fit())
        else:
            further = min(self._row_share, self._config.surest)
            first_s, further_s = self._seconds.fit(further / (1 - further), 1.0)
        shared_s = self._sessions * further_s
        return first_s + shared_s, shared_s

    def passed(self, seconds: float, tokens: int, sessions: int) -> None:
        """Record a pass over `tokens` tokens of `sessions` sessions, and its seconds. May be called
        on another thread than the rest."""
        config = self._config
        if tokens > (config.window + 1) * sessions:
            return  # more than the window of each: prompts, whose tokens cost less
        self._seconds.add(tokens, seconds)
        self._sessions += config.follow * (sessions - self._sessions)
        self._tokens_each += config.follow * (tokens / sessions - self._tokens_each)
        first_s, further_s = self._seconds.fit()
        sessions_now = max(self._sessions, sessions)
        pass_s = first_s + further_s * sessions_now * self._tokens_each
        self.price = sessions_now * further_s / max(pass_s, TINY)
        self.alone = not several(self._sessions)

    def drafts(
        self, acceptance_rate: float, ready: int, claim: float = 1.0, *, weight: float = 1.0
    ) -> int:
        """Return how many of a session's `ready` drafts the next pass takes. `claim`: see
        `HolderBudget`. `weight`: what time counts to the session against passes; longer passes
        concern nobody else while it is alone."""
        price = self.price * claim * (weight if self.alone else 1.0)
        taken, tokens = worth_feeding(
            acceptance_rate, ready, price, self._yield_each, config=self._config
        )
        self._yield_each += (tokens - self._yield_each) / self._config.sentence_tokens
        return taken


class HolderBudget:
    """The budget as the sessions of one holder have it. `claim` tells how many sessions the holder
    has to those of an even share: 1 where all holders have as many. Proportional fairness is among
    holders, so who has more has to bring more with each draft; its own tokens it gets in any
    case."""

    def __init__(self, budget: PassBudget, claim: Callable[[], float]) -> None:
        self._budget = budget
        self._claim = claim

    @property
    def usual(self) -> UsualAcceptance:
        return self._budget.usual

    @property
    def alone(self) -> bool:
        return self._budget.alone

    def drafts(self, acceptance_rate: float, ready: int, *, weight: float = 1.0) -> int:
        claim = self._claim()
        return self._budget.drafts(acceptance_rate, ready, claim, weight=weight)


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


def decodes_alone(idle_weight: float, tokens_per_pass: float) -> bool:
    """Return whether a token is worth its own pass, rather than a wait for drafts. `idle_weight` 1
    wants the answer soon, 0 with few passes; `tokens_per_pass` is what a pass over drafts yields
    (at least 1).

    Alone, a token costs one pass at once. Left to drafts it costs 1/tokens_per_pass of one, later,
    when that much time is spent as well. With w for time and 1 - w for passes the token is worth
    its own pass iff (1 - w)·(1 - 1/tokens_per_pass) ≤ w/tokens_per_pass, that is w ≥ 1 -
    1/tokens_per_pass."""
    return idle_weight >= 1 - 1 / max(1.0, tokens_per_pass)
