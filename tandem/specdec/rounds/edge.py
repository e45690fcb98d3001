"""Rounds at the edge: all that the edge's machine knows of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.core.probs import Array
from tandem.core.randomness import RandomSource
from tandem.core.sparse_payload import FullPayload, SparsePayload
from tandem.core.tokens import PrefixedTokens
from tandem.specdec.checks import check_base, check_prefix, check_shape, check_token
from tandem.specdec.choices import RejectionPayload
from tandem.specdec.drafting import Drafting
from tandem.specdec.events import EdgeOutput, EdgeRequest, Finish, LayersTask, Send
from tandem.specdec.messages import CloudRoundFrame, FrameHeader
from tandem.specdec.observers import EdgeObserver
from tandem.specdec.predrafting import LikelyOutcome, Predrafting
from tandem.specdec.rounds.messages import (
    EarlyVerdict,
    FullDistribution,
    HiddenStates,
    NeedFullDistribution,
    Recovered,
)
from tandem.specdec.rounds.recovery import Recovery
from tandem.specdec.rounds.split import SplitUplink
from tandem.specdec.rounds.tree_drafting import TreeDrafting
from tandem.specdec.rules import AcceptanceRule

_DRAWING = "drawing a recovered token"


def drafting_for(request: EdgeRequest, committed: PrefixedTokens) -> Drafting:
    """Return the drafting of chains or trees, as the preset says."""
    make = TreeDrafting if request.preset.expansion else Drafting
    return make(request, committed)


class EdgeRounds:
    """The part of one request that recovered tokens, early exits and split layers have."""

    def __init__(
        self,
        request: EdgeRequest,
        rule: AcceptanceRule,
        rng: RandomSource,
        *,
        header: Callable[[], FrameHeader],
        commit: Callable[[int], list[EdgeOutput]],
        committed: PrefixedTokens,
        drafting: Drafting,
        predrafting: Predrafting,
        observers: EdgeObserver,
    ) -> None:
        """Begin a request.

        Args:
            request: whose preset says what rounds there are.
            rule: of acceptance, which recovered tokens follow.
            rng: what they are drawn by.
            header: returns that of a frame at the end of the text.
            commit: commits a token that the edge drew; returns what follows from it.
            committed: the text.
            drafting: its drafts in flight.
            predrafting: its likely outcomes.
            observers: who hears of it."""
        self._request = request
        self._header = header
        self._commit = commit
        self._committed = committed
        self._drafting = drafting
        self._predrafting = predrafting
        self._observers = observers
        whole = request.preset.rejection_payload is RejectionPayload.FULL_DISTRIBUTION
        self.recovery = Recovery(rule, rng, whole)
        """Of tokens in the place of rejected drafts."""
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
        if self.recovery.waits:
            self.drawn_again_at = len(self._committed)
        self.recovery.forget()

    @property
    def owes_hidden_states(self) -> bool:
        """True if the cloud waits for hidden states."""
        return self._split.on and self._split.sent < len(self._committed)

    # Frames of the cloud.

    def check_not_drawing(self, message: str) -> None:
        """Raise ProtocolError for a message of that name in the midst of a draw."""
        if self.recovery.waits:
            raise ProtocolError(_DRAWING, message)

    def receive(self, message: CloudRoundFrame) -> list[EdgeOutput]:
        """Take a frame of rounds."""
        match message:
            case EarlyVerdict():
                self._receive_early_verdict(message)
            case FullDistribution():
                return self._receive_full_distribution(message)
        return []

    def _receive_early_verdict(self, verdict: EarlyVerdict) -> None:
        """Draft ahead for the predicted verdict; nothing else follows from it."""
        self.check_not_drawing("EarlyVerdict")
        sent = self._drafting.in_flight.sent_token_ids
        _check_early_verdict(verdict, self._request, self._committed, sent=sent)
        self._observers.on_early_verdict()
        position = verdict.base + verdict.accepted
        token: int | SparsePayload | None = verdict.outcome
        if isinstance(token, SparsePayload):
            rejected = self._drafting.in_flight.all[verdict.accepted]
            token = self.recovery.predict(token, rejected, position)
        if token is not None:
            self._predrafting.expect([LikelyOutcome(position, token, verdict.confidence)])

    # A rejection whose token the edge draws.

    def recover(self, payload: FullPayload | SparsePayload) -> list[EdgeOutput]:
        """Draw the token in the place of the first draft in flight, which was rejected."""
        rejected = self._drafting.in_flight.all[0]
        token = self.recovery.start(payload, rejected, len(self._committed))
        if token is not None:
            return self._draw(token, payload)
        self._observers.on_full_distribution_needed()
        return [Send(NeedFullDistribution(**self._header()))]

    def _receive_full_distribution(self, message: FullDistribution) -> list[EdgeOutput]:
        if not self.recovery.waits:
            raise ProtocolError("running", "a full distribution that was not asked for")
        _check_full_distribution(message, self._request, self._committed)
        rejected = self._drafting.in_flight.all[0]
        try:
            token = self.recovery.finish(message.target_probs, rejected, message.base)
        except InvalidArgument as error:
            raise ProtocolError(_DRAWING, "FullDistribution", str(error)) from error
        return self._draw(token, FullPayload(message.target_probs))

    def _draw(self, token: int, payload: FullPayload | SparsePayload) -> list[EdgeOutput]:
        """Commit the token the edge drew, and tell the cloud."""
        rejected = self._drafting.in_flight.all[0]
        header = self._header()  # of the text before the token
        self._observers.on_drawn(header["base"], token, payload, rejected)
        outputs = self._commit(token)
        if any(isinstance(output, Finish) for output in outputs):
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
        header = self._header()
        header["base"] = task.first
        header["prefix_hash"] = self._committed.prefix_at(task.first)
        return [Send(HiddenStates(**header, states=states))]


def _check_early_verdict(
    verdict: EarlyVerdict,
    request: EdgeRequest,
    committed: PrefixedTokens,
    sent: Sequence[int],
) -> None:
    """Check that an early verdict was asked for, and judges drafts that were sent (token ids
    `sent`), as the preset says. Raises as `check_committed`."""
    preset = request.preset
    if not preset.exits:
        raise ProtocolError("no early exits asked for", "EarlyVerdict")
    check_base(verdict, committed)
    judged = verdict.accepted + verdict.rejected
    if verdict.accepted < 0 or not 1 <= judged <= len(sent):
        raise ProtocolError(f"{len(sent)} drafts sent", f"an early verdict on {judged}")
    if isinstance(verdict.outcome, int):
        check_token(verdict.outcome, request, "EarlyVerdict")
    elif not verdict.rejected or preset.cloud_draws:
        raise ProtocolError("nothing to draw", "an early verdict with a distribution to draw from")
    check_prefix(verdict, committed, ())


def _check_full_distribution(
    message: FullDistribution, request: EdgeRequest, committed: PrefixedTokens
) -> None:
    """Check that this is a distribution at the position that is being drawn."""
    check_base(message, committed)
    check_shape(message.target_probs, request, "FullDistribution")
    check_prefix(message, committed, ())
