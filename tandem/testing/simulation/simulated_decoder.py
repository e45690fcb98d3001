"""One side's decoder in virtual time: drafts ahead from distributions that are functions of a text.
Invariant: pure; a draft is drawn after the text it names and no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tandem.core.probs import Array
from tandem.core.randomness import RandomSource
from tandem.core.tokens import PrefixedTokens
from tandem.two_sided.protocol.local_drafting import local_draft
from tandem.two_sided.protocol.messages import DecodingTarget, SideDraftFrame
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import LocalProbs

LocalProbsOf = Callable[[tuple[int, ...]], Array]
"""A side's distribution [V], already mixed over its documents, after the tokens of a text."""


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """A draft under way."""

    context: tuple[int, ...]


class SimulatedDecoder:
    """Committed text, drafts past it, and at most one step under way."""

    def __init__(
        self,
        side: Side,
        probs_of: LocalProbsOf,
        choices: LocalProbs,
        rng: RandomSource,
        token_ids: tuple[int, ...],
        *,
        session: int,
        mass_after: Callable[[tuple[int, ...]], float],
        ahead: int,
        length_limit: int,
        decode_s: float,
    ) -> None:
        self._side = side
        self._probs_of = probs_of
        self._choices = choices
        self._rng = rng
        self._session = session
        self._mass_after = mass_after
        self._ahead = ahead
        self._length_limit = length_limit
        self.decode_s = decode_s
        self.committed = PrefixedTokens(token_ids)
        self.drafts: list[int] = []
        self._step: SimulatedStep | None = None

    def begin(self) -> SimulatedStep | None:
        """Begin the step that is due, if there is one and none is under way."""
        length = len(self.committed) + len(self.drafts)
        if self._step or len(self.drafts) >= self._ahead or length >= self._length_limit:
            return None
        self._step = SimulatedStep((*self.committed.since(0), *self.drafts))
        return self._step

    def end(self, step: SimulatedStep) -> SideDraftFrame | None:
        """Return the step's draft, unless it was interrupted."""
        if step is not self._step:
            return None
        self._step = None
        position = len(step.context)
        probs = self._probs_of(step.context)
        token, sent = local_draft(
            probs, self._choices, rng=self._rng, position=position, side=self._side
        )
        prefix = self.committed.prefix_with(self.drafts)
        self.drafts.append(token)
        return SideDraftFrame(
            self._session,
            position,
            prefix,
            token_id=token,
            probs=sent,
            log_mass=self._mass_after(step.context),
            committed=len(self.committed),
            decode_s=self.decode_s,
        )

    def receive(self, target: DecodingTarget) -> None:
        """Keep the drafts that match, else roll back."""
        self.committed.check(target.base, target.prefix_hash)
        assert target.base == len(self.committed), "targets come one after the other"
        for token in target.token_ids:
            self._commit(token)

    def _commit(self, token: int) -> None:
        if self.drafts and self.drafts[0] == token:
            self.drafts.pop(0)
        elif self.drafts or self._step is not None:
            # What is under way was to follow another text; or it is the very token that came.
            self.drafts.clear()
            self._step = None
        self.committed.append(token)
