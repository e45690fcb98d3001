"""One side's decoder in virtual time: drafts ahead from laws that are functions of a text.

Invariant: pure; a draft is drawn after the text it names and no other. Must not import asyncio,
grpc, torch or time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tandem.core.aggregation import Side
from tandem.core.chance import Chance
from tandem.core.laws import Array
from tandem.policy.aggregation_presets import LocalLaw
from tandem.policy.local_laws import local_draft
from tandem.protocol.decoding_messages import DecodingCost, DecodingDraft, DecodingTarget
from tandem.protocol.prefixes import PrefixedTokens

LocalLawOf = Callable[[tuple[int, ...]], Array]
"""A side's law [V], already mixed over its documents, after the tokens of a text."""


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """A draft under way."""

    context: tuple[int, ...]
    epoch: int


class SimulatedDecoder:
    """Settled text, drafts past it, and at most one step under way."""

    def __init__(
        self,
        side: Side,
        law_of: LocalLawOf,
        choices: LocalLaw,
        chance: Chance,
        token_ids: tuple[int, ...],
        *,
        session: int,
        mass_at: Callable[[int], float],
        ahead: int,
        length_limit: int,
        decode_s: float,
    ) -> None:
        self._side = side
        self._law_of = law_of
        self._choices = choices
        self._chance = chance
        self._session = session
        self._mass_at = mass_at
        self._ahead = ahead
        self._length_limit = length_limit
        self.decode_s = decode_s
        self.settled = PrefixedTokens(token_ids)
        self.drafts: list[int] = []
        self.epoch = 0
        self.rollbacks = 0
        self._step: SimulatedStep | None = None

    def begin(self) -> SimulatedStep | None:
        """The step to take now, if any is due and none is under way."""
        length = len(self.settled) + len(self.drafts)
        if self._step or len(self.drafts) >= self._ahead or length >= self._length_limit:
            return None
        self._step = SimulatedStep((*self.settled.since(0), *self.drafts), self.epoch)
        return self._step

    def end(self, step: SimulatedStep) -> DecodingDraft | None:
        """The step's draft, unless it was interrupted."""
        if step is not self._step:
            return None
        self._step = None
        position = len(step.context)
        law = self._law_of(step.context)
        token, sent = local_draft(law, self._choices, self._chance, position, self._side)
        prefix = self.settled.prefix_with(self.drafts)
        self.drafts.append(token)
        return DecodingDraft(
            self._session,
            self.epoch,
            position,
            prefix,
            token_id=token,
            law=sent,
            log_mass=self._mass_at(position),
            settled=len(self.settled),
            cost=DecodingCost(self.decode_s),
        )

    def receive(self, target: DecodingTarget) -> None:
        """Keep the drafts that match, else roll back."""
        self.settled.check(target.base, target.prefix)
        assert target.base == len(self.settled), "targets come one after the other"
        for token in target.token_ids:
            self._settle(token)

    def _settle(self, token: int) -> None:
        if self.drafts and self.drafts[0] == token:
            self.drafts.pop(0)
        elif self.drafts or self._step is not None:
            # What is under way was to follow another text; or it is the very token that came.
            self.drafts.clear()
            self._step = None
            self.epoch += 1
            self.rollbacks += 1
        self.settled.append(token)
