"""Rounds at the edge: all that the edge's machine knows of them."""

from __future__ import annotations

from typing import Protocol

from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.core.probs import Array
from tandem.core.randomness import RandomSource
from tandem.core.sparse_payload import FullPayload, SparsePayload
from tandem.core.tokens import PrefixedTokens
from tandem.specdec.drafting import Drafting
from tandem.specdec.events import EdgeOutput, EdgeRequest, Interrupt, LayersTask, Send
from tandem.specdec.messages import CloudRoundFrame, FrameHeader
from tandem.specdec.observers import Hooks
from tandem.specdec.predrafting import LikelyOutcome, Predrafting
from tandem.specdec.rounds.checks import check_early_verdict, check_full_distribution
from tandem.specdec.rounds.messages import (
    EarlyVerdict,
    FullDistribution,
    HiddenStates,
    NeedFullDistribution,
    Recovered,
)
from tandem.specdec.rounds.recovery import Recovery
from tandem.specdec.rounds.split_uplink import SplitUplink
from tandem.specdec.rounds.tree_drafting import TreeDrafting
from tandem.specdec.rules import AcceptanceRule, payload_type

_DRAWING = "drawing a recovered token"


def drafting_for(request: EdgeRequest, committed: PrefixedTokens) -> Drafting:
    """Return the drafting of chains or trees, as the preset says."""
    make = TreeDrafting if request.preset.expansion else Drafting
    return make(request, committed)


class EdgeWindow(Protocol):
    """What rounds ask of the edge's machine."""

    def header(self) -> FrameHeader:
        """Return the header of a frame at the end of the committed text."""

    def commit_drawn(self, token_id: int) -> list[EdgeOutput]:
        """Commit a token that the edge drew."""

    @property
    def done(self) -> bool:
        """True if the answer is over."""


class EdgeRounds:
    """The part of one request that recovered tokens, early exits and split layers have."""

    def __init__(
        self,
        request: EdgeRequest,
        rule: AcceptanceRule,
        rng: RandomSource,
        *,
        window: EdgeWindow,
        committed: PrefixedTokens,
        drafting: Drafting,
        predrafting: Predrafting,
        hooks: Hooks,
    ) -> None:
        """Begin a request.

        Args:
            request: whose preset says what rounds there are.
            rule: of acceptance, which recovered tokens follow.
            rng: what they are drawn by.
            window: the machine.
            committed: its text.
            drafting: its drafts in flight.
            predrafting: its likely outcomes.
            hooks: who hears of it."""
        self._request = request
        self._window = window
        self._committed = committed
        self._drafting = drafting
        self._predrafting = predrafting
        self._hooks = hooks
        whole_distributions = payload_type(request.preset).kind is FullPayload
        self._recovery = Recovery(rule, rng, whole_distributions)
        self._split = SplitUplink(request.preset.split_layers > 0, committed)
        self.drawn_again_at = -1
        """Where a stream was lost in the midst of a draw: the next one brings that rejection
        again."""

    # Streams.

    def begin_stream(self) -> None:
        """A fresh stream begins."""
        self._split.begin_stream()

    def forget_stream(self) -> None:
        """The stream is gone."""
        if self._recovery.waits:
            self.drawn_again_at = len(self._committed)
        self._recovery.forget()

    @property
    def waits(self) -> bool:
        """True if a draw waits for the full distribution."""
        return self._recovery.waits

    @property
    def owes_hidden_states(self) -> bool:
        """True if the cloud waits for hidden states."""
        return self._split.on and self._split.sent < len(self._committed)

    # Frames of the cloud.

    def check_not_drawing(self, message: str) -> None:
        """Raise ProtocolError for a message of that name in the midst of a draw."""
        if self._recovery.waits:
            raise ProtocolError(_DRAWING, message)

    def receive(self, message: CloudRoundFrame) -> list[EdgeOutput]:
        """Take a frame of rounds."""
        match message:
            case EarlyVerdict():
                self._receive_early_verdict(message)
            case FullDistribution():
                return self._receive_full_distribution(message)
        return []

    def computed(self, message: CloudRoundFrame) -> bool:
        """Return whether the cloud had to compute the frame before anything else comes."""
        return isinstance(message, FullDistribution)

    def _receive_early_verdict(self, verdict: EarlyVerdict) -> None:
        """Draft ahead for the predicted verdict; nothing else follows from it."""
        self.check_not_drawing("EarlyVerdict")
        sent = self._drafting.sent_token_ids
        check_early_verdict(verdict, self._request, self._committed, sent=sent)
        for on_early_verdict in self._hooks.on_early_verdict:
            on_early_verdict()
        position = verdict.base + verdict.accepted
        token: int | SparsePayload | None = verdict.outcome
        if isinstance(token, SparsePayload):
            rejected = self._drafting.drafts[verdict.accepted]
            token = self._recovery.predict(token, rejected, position)
        if token is not None:
            self._predrafting.expect([LikelyOutcome(position, token, verdict.confidence)])

    # A rejection whose token the edge draws.

    def recover(self, payload: FullPayload | SparsePayload) -> list[EdgeOutput]:
        """Draw the token in the place of the first draft in flight, which was rejected."""
        rejected = self._drafting.drafts[0]
        token = self._recovery.start(payload, rejected, len(self._committed))
        if token is not None:
            return self._draw(token, payload)
        for on_needed in self._hooks.on_full_distribution_needed:
            on_needed()
        ahead = map(Interrupt, self._drafting.discard_ahead())
        return [*ahead, Send(NeedFullDistribution(**self._window.header()))]

    def _receive_full_distribution(self, message: FullDistribution) -> list[EdgeOutput]:
        if not self._recovery.waits:
            raise ProtocolError("running", "a full distribution that was not asked for")
        check_full_distribution(message, self._request, self._committed)
        rejected = self._drafting.drafts[0]
        try:
            token = self._recovery.finish(message.target_probs, rejected, message.base)
        except InvalidArgument as error:
            raise ProtocolError(_DRAWING, "FullDistribution", str(error)) from error
        return self._draw(token, FullPayload(message.target_probs))

    def _draw(self, token: int, payload: FullPayload | SparsePayload) -> list[EdgeOutput]:
        """Commit the token the edge drew, and tell the cloud."""
        rejected = self._drafting.drafts[0]
        header = self._window.header()  # of the text before the token
        for on_drawn in self._hooks.on_drawn:
            on_drawn(header["base"], token, payload, rejected)
        outputs = self._window.commit_drawn(token)
        if self._window.done:
            return outputs
        return [*outputs, Send(Recovered(**header, token_id=token))]

    # Split layers.

    def layers_work(self) -> LayersTask | None:
        """Return the next tokens to run through the target's first layers, if any."""
        return self._split.due()

    def layers_done(self, task: LayersTask, states: Array) -> list[EdgeOutput]:
        """Send the hidden states [n, hidden size] of a task, unless its stream is gone."""
        if not self._split.take(task):
            return []
        header = self._window.header()
        header["base"] = task.first
        header["prefix_hash"] = self._committed.prefix_at(task.first)
        return [Send(HiddenStates(**header, states=states))]
