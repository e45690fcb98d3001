"""How often drafts are right, as far as one may tell from those that were judged: of an answer at
its edge, of a session at its cloud, and of all sessions of a cloud. Old drafts count less."""

from __future__ import annotations

from dataclasses import dataclass
from math import copysign, sqrt

from tandem.control.config import DEFAULT_CONFIG, ControllerConfig


class AcceptanceRate:
    """A rate in which each draft reduces the weight of those before it."""

    __slots__ = ("_keep", "judged", "right", "weight")

    def __init__(self, keep: float, weight: float = 0.0, rate: float = 0.0) -> None:
        """Begin with a rate that counts for `weight` drafts. `keep`: the factor by which a draft
        reduces what was before."""
        self._keep = keep
        self.judged = 0
        """Drafts that were judged."""
        self.weight = weight
        """How many drafts the rate is worth; `right`: of these, how many are right."""
        self.right = weight * rate

    @property
    def rate(self) -> float:
        return self.right / self.weight

    def add(self, accepted: int, rejected: int) -> None:
        """Record `accepted` drafts in a row, and then `rejected`; those after are not judged."""
        count = accepted + rejected
        keep = self._keep**count
        self.judged += count
        self.weight = keep * self.weight + count
        self.right = keep * self.right + accepted


class PooledAcceptanceRate(AcceptanceRate):
    """That of all sessions of a cloud."""

    __slots__ = ()

    def __init__(
        self, config: ControllerConfig = DEFAULT_CONFIG, guessed: float | None = None
    ) -> None:
        """Begin with a guess. `guessed`: how many drafts it is worth; None: a first look."""
        weight = config.few_tokens if guessed is None else guessed
        super().__init__(config.pooled_keep, weight, config.prior_acceptance)


class SessionAcceptanceRate:
    """That of one session of a cloud: its own drafts, and a few more at the `pooled` rate.

    Where a text repeats another, many drafts in a row are right, and elsewhere few. So drafts after
    a run of right ones have a rate of their own: a mean of both would feed a copied text a few
    tokens at a time."""

    __slots__ = ("_after_run", "_few", "_own", "_pooled", "_run")

    def __init__(self, pooled: AcceptanceRate, config: ControllerConfig = DEFAULT_CONFIG) -> None:
        self._pooled = pooled
        self._few = config.few_tokens
        self._own = AcceptanceRate(config.keep)
        self._after_run = AcceptanceRate(config.keep)
        self._run = 0

    @property
    def rate(self) -> float:
        return self._believed(self._own, self._pooled.rate)

    @property
    def next_rate(self) -> float:
        """The rate of the drafts that come next."""
        if self._run < self._few:
            return self.rate
        return self._believed(self._after_run, self.rate)

    def add(self, accepted: int, rejected: int) -> None:
        """Record drafts as `AcceptanceRate.add`."""
        self._own.add(accepted, rejected)
        self._pooled.add(accepted, rejected)
        before, self._run = self._run, self._run + accepted
        if self._run >= self._few:
            # Of those accepted, the ones that a run came before.
            self._after_run.add(self._run - max(self._few, before), rejected)
        if rejected:
            self._run = 0

    def _believed(self, seen: AcceptanceRate, usual: float) -> float:
        # Twice as many as a first look: a session whose first drafts fail by chance gets no more
        # drafts into a full pass, and so no chance to be judged better.
        weight = 2 * self._few
        known = seen.weight + weight
        off = (seen.right + weight * usual) / known - usual
        # Of many sessions that are alike, some seem better or worse by chance. Drafts of the lucky
        # ones would cost all others more than they bring, so a standard deviation of what chance
        # gives is not believed. Without that `auto` is at 0.91 where other load comes and goes.
        chance = sqrt(usual * (1 - usual) / known)
        return usual + copysign(max(0.0, abs(off) - chance), off)


@dataclass(frozen=True, slots=True)
class AcceptanceKnown:
    """A rate, and the judged drafts that it is worth."""

    rate: float
    tokens: float


class AnswerAcceptanceRate(AcceptanceRate):
    """That of one answer, at its edge."""

    __slots__ = ("_config", "_forgotten", "_usual", "agreed", "begins_guessed")

    def __init__(self, config: ControllerConfig, earlier: AcceptanceKnown | None = None) -> None:
        """Begin with what `earlier` answers say, and for the rest of a first look with a guess."""
        known = min(earlier.tokens, config.sentence_tokens) if earlier else 0.0
        guessed = max(0.0, config.few_tokens - known)
        right = guessed * config.prior_acceptance + (known * earlier.rate if earlier else 0.0)
        super().__init__(config.keep, known + guessed, right / (known + guessed))
        self.agreed = 0
        """Drafts that were right, of those judged."""
        self.begins_guessed = guessed > 0
        self._config = config
        self._usual = self.rate
        self._forgotten = 0.0
        """Share of what drafts told that the tokens since the last of them leave open."""

    def add(self, accepted: int, rejected: int) -> None:
        if accepted + rejected:
            self._forgotten = 0.0
        self.agreed += accepted
        super().add(accepted, rejected)

    def undrafted(self, tokens: int) -> None:
        """Record tokens that came without drafts: what is known of this place in the text ages.
        Without that `auto` is at 0.81 where acceptance goes from 0.9 to 0.05 and back."""
        left = self._keep**tokens
        weight = max(min(self.weight, self._config.few_tokens), left * self.weight)
        self.right *= weight / self.weight
        self.weight = weight
        self._forgotten += (1 - self._forgotten) * (1 - left)

    @property
    def is_guess(self) -> bool:
        """True if neither earlier answers nor this one's drafts measured it."""
        return self.begins_guessed and self.judged < self._config.few_tokens

    @property
    def optimistic(self) -> float:
        """The rate that may well be found: higher by its standard deviation, or back at what it was
        before this text. Without the one, trials fail where drafts were wrong by chance (mean 0.976
        of the grid, worst 0.67); without the other, drafts that were bad for a while are never
        tried again (0.80 where acceptance goes from 0.9 to 0.05 and back)."""
        surest = self._config.surest
        rate = min(surest, max(1 - surest, self.rate))
        deviation = sqrt(rate * (1 - rate) / (self.weight + 1))
        return min(surest, self.rate + max(deviation, self._forgotten * (self._usual - self.rate)))

    @property
    def known(self) -> AcceptanceKnown | None:
        """The rate that this answer measured; None where nothing was judged."""
        if not self.judged:
            return None
        return AcceptanceKnown(self.agreed / self.judged, self.judged)
