"""Rounds at the cloud: all that the cloud's machine knows of them.

Invariant: nothing here is used under Gumbel coupling of a chain of ids but `hidden`, of split
layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tandem.core.errors import InvalidArgument
from tandem.core.probs import Array
from tandem.core.randomness import RandomSource
from tandem.core.tokens import PrefixedTokens
from tandem.core.tree import children, depths
from tandem.specdec.cloud_checks import CloudModel
from tandem.specdec.judge import Judge, Preparation, Step, Steps, Verification
from tandem.specdec.messages import (
    CloudMessage,
    CloudRoundFrame,
    Drafts,
    EdgeRoundFrame,
    Frame,
    FrameHeader,
)
from tandem.specdec.presets import VerifySettings
from tandem.specdec.rounds.exits import EarlyJudge, EarlyQueue, early_payload_rule
from tandem.specdec.rounds.messages import (
    EarlyVerdict,
    FullDistribution,
    HiddenStates,
    NeedFullDistribution,
    Recovered,
)
from tandem.specdec.rounds.split import HiddenUplink
from tandem.specdec.rules import AcceptanceRule, Proposal, TargetProbs, probs_of


class CloudRounds:
    """The part of one session that rejection sampling, trees, early exits, PreVerify and split
    layers have."""

    def __init__(
        self,
        settings: VerifySettings,
        model: CloudModel,
        rule: AcceptanceRule,
        rng: RandomSource,
        *,
        seed: int,
        committed: PrefixedTokens,
        length_limit: int,
        append: Callable[[int], None],
    ) -> None:
        """Begin a session.

        Args:
            settings: how drafts are judged.
            model: the target.
            rule: of acceptance.
            rng: what payloads draw by.
            seed: of the session.
            committed: its text, which its owner alone appends to.
            length_limit: tokens of prompt and answer together.
            append: called with a token that the edge drew, to be committed."""
        self.exits = tuple(range(model.exits))[max(0, model.exits - settings.exits) :]
        """The deepest exits that the model has: of those asked for, they are right most often."""
        self.early_verdicts = EarlyQueue(settings.exit_order, seed)
        self.tree: DraftTree | None = None
        """The tree that waits to be judged."""
        self.kept_path: tuple[int, ...] = ()
        """The nodes of the last tree that stay in the KV, after the text that it holds."""
        self.prefilled_targets: tuple[TargetProbs, ...] = ()
        """The targets after the first drafts that wait, where these were fed ahead and the KV holds
        them."""
        self._settings = settings
        self._model = model
        self._rule = rule
        self._committed = committed
        self._length_limit = length_limit
        self._append = append
        self._early_payloads = early_payload_rule(settings, rule, rng)
        self.hidden = HiddenUplink(settings.split_layers > 0, model.hidden_size)
        # The distribution that the edge is to draw a recovered token from. It is sent whole once at
        # most: it is large, and the question is not.
        self._to_draw_from: Array | None = None
        self._sent_in_full = False

    # Frames.

    def receive(self, message: EdgeRoundFrame, header: FrameHeader) -> list[CloudMessage]:
        """Take a frame of rounds; return what is to be sent at once. `header`: of frames at the end
        of the text."""
        match message:
            case Recovered():
                self._receive_recovered(message)
            case NeedFullDistribution():
                return [self._full_distribution(message, header)]
            case HiddenStates():
                self.hidden.receive(message, self._committed)
        return []

    def _receive_recovered(self, message: Recovered) -> None:
        """Commit what the edge drew: a token that the target distribution can draw, for the
        position and the text of the rejection."""
        if self._to_draw_from is None:
            raise InvalidArgument("recovered", "no verdict has left a token for the edge to draw")
        if message.base != len(self._committed):
            raise InvalidArgument("base", f"{message.base} is not the rejected position")
        if not 0 <= message.token_id < self._model.vocabulary_size:
            raise InvalidArgument("token_id", f"{message.token_id} is outside the vocabulary")
        if not self._to_draw_from[message.token_id] > 0:
            raise InvalidArgument("token_id", "the target distribution cannot draw this token")
        self._committed.check(message.base, message.prefix_hash)
        self._to_draw_from = None
        self._append(message.token_id)

    def _full_distribution(
        self, message: NeedFullDistribution, header: FrameHeader
    ) -> FullDistribution:
        """Return the whole distribution for an edge that cannot draw from what it was sent."""
        if self._to_draw_from is None or message.base != len(self._committed):
            why = "no distribution is being drawn from at this position"
            raise InvalidArgument("need_full_distribution", why)
        if self._sent_in_full:
            raise InvalidArgument("need_full_distribution", "was already sent for this rejection")
        self._sent_in_full = True
        return FullDistribution(**header, target_probs=self._to_draw_from)

    def receive_tree(self, draft: Drafts) -> None:
        """Take a tree that was checked."""
        if self.tree is not None or draft.base != len(self._committed):
            return  # it comes twice, or late: a tree starts at the end of the text
        tree = DraftTree.of(draft)
        if draft.base + tree.layers > self._length_limit:
            raise InvalidArgument("token_ids", "drafts beyond max_tokens")
        self.tree = tree

    def end(self) -> None:
        """Forget what waits: the edge is done with the session."""
        self.early_verdicts.clear()
        self.tree = None

    # Recovered tokens.

    @property
    def waits(self) -> bool:
        """True if nothing continues before the edge has drawn a token."""
        return self._to_draw_from is not None

    def let_draw(self, target: TargetProbs) -> None:
        """Have the edge draw the next token from this distribution."""
        self._to_draw_from = probs_of(target)
        self._sent_in_full = False

    # Passes.

    def early_judge(self, judge: Judge, header: FrameHeader, *, bonus: bool) -> EarlyJudge:
        """Return the judge of a pass's early exits. `bonus`: whether they are asked for the
        position after the last draft."""
        judge = replace(judge, payloads=self._early_payloads, bonus=bonus)
        temperatures = self._model.exit_temperatures
        return EarlyJudge(Frame(**header), self.exits, judge, temperatures)

    def push_early_verdict(self, verdict: CloudRoundFrame) -> None:
        """Queue an exit's verdict, to be sent before its pass ends."""
        assert isinstance(verdict, EarlyVerdict), "exits say nothing else"
        self.early_verdicts.push(verdict)

    def preparation(self, drafts: int, *, known: bool) -> Preparation:
        """Return what a pass reads that feeds the first drafts of a chunk ahead. `known`: the
        target of the first of them is there already."""
        return Preparation(len(self._committed) + known, drafts + (not known), self._rule)

    def keep_path(self, verification: Verification, fed_before: int) -> None:
        """Note which nodes of the tree the KV keeps. `fed_before`: tokens of the text that its pass
        fed before them."""
        self.tree = None
        nodes = (fed_before + node for node in verification.path)
        self.kept_path = (*range(fed_before), *nodes)


@dataclass(frozen=True, slots=True)
class DraftTree:
    """A tree that was checked on intake (`check_draft`)."""

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    steps: Steps

    @classmethod
    def of(cls, draft: Drafts) -> DraftTree:
        """Create it from a frame whose distributions, if any, are one per expanded node."""
        assert draft.parents is not None, "a tree has parents"
        steps = {}
        for index, (node, nodes) in enumerate(children(draft.parents).items()):
            token_ids = tuple(draft.token_ids[child] for child in nodes)
            probs = None if draft.distributions is None else draft.distributions[index]
            steps[node] = Step(tuple(nodes), Proposal(token_ids, draft_probs=probs))
        return cls(draft.token_ids, draft.parents, steps)

    @property
    def layers(self) -> int:
        return max(depths(self.parents)) + 1
