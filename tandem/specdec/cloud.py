"""The cloud's half of a session: verifies drafts, decodes alone, keeps the committed text.

One machine covers every schedule. Its shell calls

- `receive` with each frame of the edge, and sends what it returns;
- `work` for the forward pass that is due, if any, and runs it;
- `complete` with what the pass found, and sends what it returns;
- `draft_task` for what the cloud is to draft itself, if anything, and `drafted` with it.

Invariants: committed tokens are never retracted; the KV is valid exactly for the first `kv_length`
committed tokens; drafts that do not follow the text change nothing; a frame that is refused changes
nothing."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice

import numpy as np

from tandem.control.cloud_draft_budget import CloudDraftBudget
from tandem.control.config import DEFAULT_CONFIG
from tandem.control.pass_budget import (
    HolderBudget,
    PassBudget,
    SessionAcceptance,
    UsualAcceptance,
    decodes_alone,
)
from tandem.core.errors import FailedPrecondition, InvalidArgument, ProtocolError
from tandem.core.frozen import frozen
from tandem.core.hashing import hash_words, unit
from tandem.core.probs import Array, check_probs, one_hot
from tandem.core.prompt import check_image_bytes
from tandem.core.randomness import RandomSource, SeededRandom
from tandem.core.sparse_payload import FullPayload, SparsePayload
from tandem.core.tokens import PrefixedTokens, check_token_ids
from tandem.core.tree import check_parents, children, depths
from tandem.specdec.choices import CloudDrafts, PredraftOrder, Uplink
from tandem.specdec.cloud_drafting import (
    CloudDrafting,
    DraftingContext,
    may_recall,
)
from tandem.specdec.events import Drafted, DraftTask
from tandem.specdec.judge import (
    DraftTree,
    EarlyJudge,
    Judge,
    Preparation,
    Steps,
    Verification,
    chain_steps,
    early_payload_rule,
)
from tandem.specdec.logprobs import (
    LogprobsRecorder,
    PromptReader,
    check_logprobs_available,
    check_prompt_logprobs,
    check_top_logprobs,
    parts_of,
)
from tandem.specdec.messages import (
    Cancel,
    CloudMessage,
    Committed,
    Drafts,
    EarlyVerdict,
    EdgeMessage,
    Frame,
    FrameHeader,
    FullDistribution,
    GoingAway,
    HiddenStates,
    NeedFullDistribution,
    Open,
    Opened,
    Ping,
    Pong,
    PromptLogprobs,
    Recovered,
    Work,
)
from tandem.specdec.ngram_proposer import NgramTexts
from tandem.specdec.presets import VerifySettings
from tandem.specdec.rules import (
    Proposal,
    TargetProbs,
    TokenPayload,
    acceptance_rule,
    payload_rule,
    probs_of,
)

_EXPECTED_YIELD = 2.0
"""Tokens that a pass over drafts is expected to yield, before the first one."""
_YIELD_WEIGHT = 0.2
"""Weight of each new pass in the mean yield."""
_PASSES_WITHOUT = 2
"""Passes in a row without a draft of the edge that do not mean that it stopped drafting: after a
correction its next drafts may take as long."""


class State(StrEnum):
    """What the machine does or waits for. Nothing sets it: it follows from text and pass."""

    IDLE = "idle"
    """A pass may begin, if one is due."""
    PASS = "pass"
    """A pass is in flight. Drafts that arrive wait for the next one."""
    NEEDS_RECOVERED = "needs_recovered"
    """Nothing continues before the edge has drawn the token in the place of a rejected draft."""
    ENDED = "ended"
    """The answer is complete, or the edge is done with it."""


@dataclass(frozen=True, slots=True)
class CloudModel:
    """Properties of the target model and limits of the server that the machine needs."""

    model_name: str
    vocabulary_hash: str
    vocabulary_size: int
    context_length: int
    eos_token_ids: frozenset[int]
    max_draft_length: int = 64
    exits: int = 0
    exit_temperatures: tuple[float, ...] = ()
    same_bits: bool = False
    batch_invariant: bool = False
    row_share: float | None = None
    layer_count: int = 0
    hidden_size: int = 0
    """Of a hidden state between two layers; 0 where no session can be split."""


@frozen
class VerifyTask:
    """A forward pass: roll the KV back to `keep`, feed `token_ids`, return the last
    `logits_to_keep` distributions.

    The last `drafts` of the fed tokens are drafts; what precedes them is committed, but for the
    last `prepared` that the KV holds, which are drafts as well. `judge` judges all of them by these
    distributions, or reads the distributions for a later judge; `early` by those of early exits,
    None where none is read. With `parents` they are nodes of a tree, as in `tandem.core.tree`. With
    `path` the KV holds a tree after its first `keep` tokens, of which these nodes are kept in place
    of a rollback. The logits of all fed tokens go through `prompt_reader`, if there is one: this
    pass feeds the prompt. `hidden`: what the edge's layers put out for the fed tokens, where the
    session is split; the pass begins with layer `first_layer`. `by_cloud`: the drafts are the
    cloud's own."""

    keep: int
    token_ids: tuple[int, ...]
    logits_to_keep: int
    drafts: int
    judge: Judge | Preparation
    early: EarlyJudge | None = None
    parents: tuple[int, ...] | None = None
    path: tuple[int, ...] = ()
    prepared: tuple[int, ...] = ()
    hidden: Array | None = None
    first_layer: int = 0
    prompt_reader: PromptReader | None = None
    by_cloud: bool = False

    @property
    def kept(self) -> int:
        """Tokens that the KV holds before any is fed."""
        return self.keep + len(self.path)

    @property
    def positions(self) -> list[int]:
        """The position of each wanted distribution."""
        count = len(self.token_ids)
        steps = range(count) if self.parents is None else depths(self.parents)
        return [self.kept + step + 1 for step in steps][count - self.logits_to_keep :]

    def fed_before(self, row: int) -> tuple[int, ...]:
        """Return the fed tokens that the wanted distribution in `row` follows, its node's own
        last."""
        node = len(self.token_ids) - self.logits_to_keep + row
        if self.parents is None:
            return self.token_ids[: node + 1]
        path = list[int]()
        while node >= 0:
            path.append(self.token_ids[node])
            node = self.parents[node]
        return tuple(reversed(path))

    def contexts(self, before: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return the text before each wanted distribution, if the KV holds the tokens `before`."""
        return [(*before, *self.fed_before(row)) for row in range(self.logits_to_keep)]


class CloudMachine:
    """One session, from its opening frame to its end.

    Raises InvalidArgument for bad frames, ProtocolError for wrong use by the caller, PrefixMismatch
    when the two committed texts differ."""

    def __init__(
        self,
        opening: Open,
        model: CloudModel,
        rng: RandomSource | None = None,
        budget: PassBudget | HolderBudget | None = None,
        draft_budget: CloudDraftBudget | None = None,
        has_draft_model: bool = True,
        memory: NgramTexts | None = None,
    ) -> None:
        """Take the frame that opens the session.

        Args:
            opening: checked here; its `params.seed` keys all randomness.
            model: the target model, and what the server allows.
            rng: in place of the one that the seed gives; for tests.
            budget: of the verifier's passes, which this session shares with others.
            draft_budget: of the drafts that the cloud makes itself, likewise.
            has_draft_model: whether there is a model for drafts of any kind.
            memory: earlier texts of the same tenant, which these drafts may be taken from; used
                where `may_recall`."""
        check_open(opening, model)
        params = opening.params
        rng = rng if rng is not None else SeededRandom(params.seed)
        self.session = opening.session
        self.settings = opening.settings
        self.sampling = params.sampling
        self.committed = opened_text(opening)
        self._kv_length = 0
        self.target_passes = 0
        self.ended = False
        """Whether the edge is done with the session."""
        self.proposed_memory_tokens = 0
        """Drafts of the cloud that were judged, and that it had remembered."""
        self.accepted_memory_tokens = 0
        self._model = model
        self._logprobs_recorder = LogprobsRecorder(params.logprobs, params.top_logprobs)
        # The prompt, until the pass that tells of its tokens.
        self._unread_prompt = opening.prompt_ids if params.prompt_logprobs else ()
        self._top_logprobs = params.top_logprobs
        self.rule = acceptance_rule(opening.settings, params.seed, rng, params.logprobs)
        self._payloads = payload_rule(opening.settings, self.rule, rng)
        self._early_payloads = early_payload_rule(opening.settings, self.rule, rng)
        # The deepest exits that the model has: of those asked for, they are right most often.
        self.exits = tuple(range(model.exits))[max(0, model.exits - opening.settings.exits) :]
        # Those of them that judge the next pass: the edge may want fewer.
        self.early_verdicts = EarlyQueue(opening.settings.exit_order, params.seed)
        self._prompt_length = len(opening.prompt_ids)
        self._length_limit = self._prompt_length + params.max_tokens
        self._eos = frozenset() if params.ignore_eos else model.eos_token_ids
        self._hidden = HiddenUplink(opening.settings.split_layers, model)
        # What waits to be judged: a chain of drafts, or one tree.
        self._pending = PendingDrafts(self.committed, self.settings.window, self._length_limit)
        self._tree: DraftTree | None = None
        # The nodes of the last tree that stay in the KV, after its first `kv_length` tokens.
        self._kept_path: tuple[int, ...] = ()
        # The target of the position after the committed text, where a pass gave it already; and
        # those after the first drafts that wait, where these were fed ahead and the KV holds them.
        self._frontier: TargetProbs | None = None
        self._prepared: tuple[TargetProbs, ...] = ()
        # The distribution that the edge is to draw a recovered token from. It is sent whole once at
        # most: it is large, and the question is not.
        self._to_draw_from: Array | None = None
        self._sent_in_full = False
        self._in_flight: VerifyTask | None = None
        self._pass_yield = _EXPECTED_YIELD
        self._budget = budget if opening.settings.allows_partial_verification else None
        self._acceptance = SessionAcceptance(budget.usual if budget else UsualAcceptance())
        self._has_draft_model = has_draft_model
        self._cloud_drafting: CloudDrafting | None = None
        if opening.settings.may_draft_in_cloud:
            known = memory if may_recall(opening) else None
            self._cloud_drafting = self._drafting_of(draft_budget, known)
        # What an edge sent so far, and passes since its last draft.
        self._edge_drafts = 0
        self._passes_without = 0
        self._awaited: DraftTask | None = None

    def _drafting_of(
        self, draft_budget: CloudDraftBudget | None, memory: NgramTexts | None
    ) -> CloudDrafting:
        """Return what makes the cloud's own drafts, of the kind that the session asks for."""
        settings = self.settings
        kind = settings.cloud_drafts
        chooses = kind is CloudDrafts.ANY
        if chooses and draft_budget is None:
            draft_budget = CloudDraftBudget(PassBudget())
        longest = min(settings.cloud_draft_length, self._model.max_draft_length)
        texts = memory
        if texts is None and kind is not CloudDrafts.MODEL:
            prompt = self.committed.since(0)[: self._prompt_length]
            texts = NgramTexts.of(prompt, self._model.vocabulary_size)
        return CloudDrafting(
            DraftingContext(
                committed=self.committed,
                longest=longest,
                length_limit=self._length_limit,
                ends=self._eos,
                acceptance=SessionAcceptance(
                    draft_budget.usual if draft_budget else UsualAcceptance()
                ),
                prompt_length=self._prompt_length,
                texts=texts,
                longest_from_texts=longest if memory is None else self._model.max_draft_length,
                remembers=memory is not None,
                has_model=kind is CloudDrafts.MODEL or (chooses and self._has_draft_model),
                # A text that depends on the drafts must not depend on how long they take.
                budget=draft_budget if settings.drafter_invariant else None,
                chooses=chooses,
            )
        )

    @property
    def state(self) -> State:
        if self.ended or self.finished:
            return State.ENDED
        if self._in_flight is not None:
            return State.PASS
        return State.IDLE if self._to_draw_from is None else State.NEEDS_RECOVERED

    @property
    def finished(self) -> bool:
        """True if the answer is complete: end of text, or its length limit."""
        if len(self.committed) >= self._length_limit:
            return True
        return len(self.committed) > self.committed.start and self.committed.last in self._eos

    @property
    def kv_length(self) -> int:
        """Tokens of the text that the KV holds."""
        return self._kv_length

    def adopt_prefix(self, kv_length: int) -> None:
        """Note that the KV that this session starts with holds the first `kv_length` tokens of its
        text."""
        if self.target_passes or self._in_flight:
            raise ProtocolError("a pass was begun", "adopt_prefix")
        if self._unread_prompt and kv_length:
            raise ProtocolError("all of the prompt is to be read", "adopt_prefix")
        self._kv_length = kv_length

    def opened(self) -> Opened:
        """Return the first frame to the edge."""
        model = self._model
        return Opened(
            **self._header(len(self.committed)),
            max_draft_length=model.max_draft_length,
            context_length=model.context_length,
            eos_token_ids=model.eos_token_ids,
            model_name=model.model_name,
            exits=len(self.exits),
            processes=True,
            cached_tokens=self.kv_length,
            same_bits=model.same_bits,
            batch_invariant=model.batch_invariant,
            row_share=model.row_share,
            tells_prompt_logprobs=True,
            processes_thinking=True,
            cloud_drafts=self._cloud_drafts_here,
        )

    @property
    def _cloud_drafts_here(self) -> CloudDrafts:
        """What this cloud drafts of what it was asked for."""
        if self.settings.cloud_drafts is not CloudDrafts.ANY:
            return self.settings.cloud_drafts
        return CloudDrafts.MODEL if self._has_draft_model else CloudDrafts.LOOKUP

    def going_away(self, grace_s: float) -> GoingAway:
        """Ask the edge to finish its round and reconnect."""
        return GoingAway(**self._header(len(self.committed)), grace_s=grace_s)

    # Frames of the edge.

    def receive(self, message: EdgeMessage) -> list[CloudMessage]:
        """Take one frame; return what is to be sent at once."""
        check_frame(message, self.session)
        if self.ended:
            return []
        self._awaited = None
        match message:
            case Drafts():
                return self._receive_draft(message)
            case Recovered():
                return self._receive_recovered(message)
            case NeedFullDistribution():
                return self._receive_need_full_distribution(message)
            case HiddenStates():
                self._hidden.receive(message, self.committed)
                return []
            case Ping():
                return [Pong(**self._header(len(self.committed)), nonce=message.nonce)]
            case Cancel():
                self.ended = True
                self._pending.clear()
                self.early_verdicts.clear()
                self._tree = None
                self.go_without_cloud_drafts()
                return []
            case Open():
                raise InvalidArgument("open", "the session is open already")

    def _receive_draft(self, draft: Drafts) -> list[CloudMessage]:
        check_draft(draft, self.settings, self._model)
        if self.finished:
            return []
        if not self._pending.follows_text(draft):
            return []
        if draft.parents is not None:
            return self._receive_tree(draft)
        self._pending.check(draft)
        self._edge_drafts += len(draft.token_ids)
        self._passes_without = 0
        if not self._pending.add(draft):
            # Other tokens are committed, or wait, than were drafted: the edge learns it from what
            # is committed. The distribution kept for what follows the text stays as it is.
            return []
        if draft.end_of_chunk or self.settings.verify_on_arrival:
            self._pending.make_ready(draft.base + len(draft.token_ids))
        return self._judge_at_once()

    def _receive_tree(self, draft: Drafts) -> list[CloudMessage]:
        if self._tree is not None or draft.base != len(self.committed):
            return []  # it comes twice, or late: a tree starts at the end of the text
        tree = DraftTree.of(draft)
        if draft.base + tree.layers > self._length_limit:
            raise InvalidArgument("token_ids", "drafts beyond max_tokens")
        self._tree = tree
        return []

    def _receive_recovered(self, message: Recovered) -> list[CloudMessage]:
        """Commit what the edge drew: a token that the target distribution can draw, for the
        position and the text of the rejection."""
        if self._to_draw_from is None:
            raise InvalidArgument("recovered", "no verdict has left a token for the edge to draw")
        if message.base != len(self.committed):
            raise InvalidArgument("base", f"{message.base} is not the rejected position")
        if not 0 <= message.token_id < self._model.vocabulary_size:
            raise InvalidArgument("token_id", f"{message.token_id} is outside the vocabulary")
        if not self._to_draw_from[message.token_id] > 0:
            raise InvalidArgument("token_id", "the target distribution cannot draw this token")
        self.committed.check(message.base, message.prefix_hash)
        self._to_draw_from = None
        self._append(message.token_id)
        return []

    def _receive_need_full_distribution(self, message: NeedFullDistribution) -> list[CloudMessage]:
        """Send the whole distribution to an edge that cannot draw from what it was sent."""
        if self._to_draw_from is None or message.base != len(self.committed):
            why = "no distribution is being drawn from at this position"
            raise InvalidArgument("need_full_distribution", why)
        if self._sent_in_full:
            raise InvalidArgument("need_full_distribution", "was already sent for this rejection")
        self._sent_in_full = True
        header = self._header(message.base)
        return [FullDistribution(**header, target_probs=self._to_draw_from)]

    # The forward pass that is due.

    def work(self) -> VerifyTask | None:
        """Return the forward pass that is due now, if any; it stays in flight until `complete`."""
        if self.state is not State.IDLE:
            return None
        self._awaited = None
        unfed = self.committed.since(self.kv_length + len(self._kept_path))
        if self._tree is not None and len(unfed) < 2:
            work = self._tree_pass(self._tree, unfed)
        elif self._tree is not None or (self._pending.ready and self._edge_goes_first()):
            work = self._chain_pass(unfed)  # a longer text before its tree: that mask costs less
        elif self._is_due_without_drafts():
            if self._waits_for_cloud_drafts():
                return None
            work = self._pass_alone(unfed)
        elif self.settings.prepare_on_arrival and self._pending and not self._prepared:
            work = self._preparation(unfed)
        else:
            return None
        self._in_flight = work
        return work

    def _chain_pass(self, unfed: tuple[int, ...]) -> VerifyTask:
        """Return the pass over the drafts that are ready, if any, after the text that is not fed
        yet."""
        drafts = self._pending.ready
        proposals = self._pending.first_ready()
        if (budget := self._budget) is not None:
            rate = self._acceptance.next_rate
            drafts = budget.drafts(rate, drafts, weight=self.settings.idle_weight)
            proposals = proposals[: drafts + 1]  # the last needs no more than the rows before it
        judge = self._judge(chain_steps(proposals), bonus=drafts == len(proposals))
        prepared = self._pending.token_ids[: len(self._prepared)]
        early = None
        if drafts and self.exits:
            bonus = self.settings.bonus and len(self._pending) == drafts
            early_judge = replace(judge, payloads=self._early_payloads, bonus=bonus)
            early = EarlyJudge(
                Frame(**self._header(judge.base)),
                self.exits,
                early_judge,
                self._model.exit_temperatures,
            )
        return VerifyTask(
            keep=self.kv_length + len(prepared),
            token_ids=(*unfed, *self._pending.token_ids[len(prepared) : drafts]),
            logits_to_keep=drafts + 1 - len(judge.known),
            drafts=drafts - len(prepared),
            judge=judge,
            early=early,
            path=self._kept_path,
            prepared=prepared,
            hidden=self._hidden.take(),
            first_layer=self.settings.split_layers,
            prompt_reader=self._prompt_reader(),
        )

    def _prompt_reader(self) -> PromptReader | None:
        if not self._unread_prompt:
            return None
        return PromptReader(self._unread_prompt, self._top_logprobs)

    def _pass_alone(self, unfed: tuple[int, ...]) -> VerifyTask:
        """Return the pass of a cloud that goes on alone: over drafts that it made itself, if it has
        any."""
        drafting = self._cloud_drafting
        if drafting is None or self._edge_goes_first() or not (proposals := drafting.proposals):
            return self._chain_pass(unfed)
        judge = self._judge(chain_steps(proposals))
        judge = replace(judge, payloads=TokenPayload(self.rule, self._payloads.rng))
        return VerifyTask(
            keep=self.kv_length,
            token_ids=(*unfed, *(proposal.token_ids[0] for proposal in proposals)),
            logits_to_keep=len(proposals) + 1,
            drafts=len(proposals),
            judge=judge,
            path=self._kept_path,
            prompt_reader=self._prompt_reader(),
            by_cloud=True,
        )

    def _preparation(self, unfed: tuple[int, ...]) -> VerifyTask:
        """Return the pass that feeds the first drafts of a chunk which is not whole yet."""
        drafts = self._pending.token_ids
        known = self._frontier is not None
        rows = len(drafts) + (not known)
        return VerifyTask(
            keep=self.kv_length,
            token_ids=(*unfed, *drafts),
            logits_to_keep=rows,
            drafts=len(drafts),
            judge=Preparation(len(self.committed) + known, rows, self.rule),
        )

    def _tree_pass(self, tree: DraftTree, unfed: tuple[int, ...]) -> VerifyTask:
        """Return the pass over a tree after the committed token that is `unfed`, if one is."""
        before = len(unfed)
        return VerifyTask(
            keep=self.kv_length,
            token_ids=(*unfed, *tree.token_ids),
            logits_to_keep=before + len(tree.token_ids),
            drafts=len(tree.token_ids),
            judge=self._judge(tree.steps),
            parents=(*(-1 for _ in unfed), *(parent + before for parent in tree.parents)),
            path=self._kept_path,
        )

    def _judge(self, steps: Steps, bonus: bool = True) -> Judge:
        return Judge(
            base=len(self.committed),
            steps=steps,
            rule=self.rule,
            payloads=self._payloads,
            eos=self._eos,
            length_limit=self._length_limit,
            known=self._known,
            bonus=bonus,
        )

    @property
    def _known(self) -> tuple[TargetProbs, ...]:
        """The targets from the end of the committed text on that passes gave already."""
        return () if self._frontier is None else (self._frontier, *self._prepared)

    def _is_due_without_drafts(self) -> bool:
        """Return whether a pass without drafts is due: for the prompt, which needs none, and after
        it where the cloud decodes alone."""
        if self._frontier is not None or not self._hidden.complete(len(self.committed)):
            return False
        return self.target_passes == 0 or self._decodes_alone

    @property
    def _decodes_alone(self) -> bool:
        """True if the cloud decodes on while no draft waits."""
        if not self.settings.decode_when_idle:
            return False
        if not self.settings.drafts:
            return True
        return decodes_alone(self.settings.idle_weight, self._pass_yield)

    def push_early_verdict(self, work: VerifyTask, verdict: EarlyVerdict) -> None:
        """Queue an exit's verdict in `early_verdicts`, to be sent before the pass for `work`
        ends."""
        if work is self._in_flight and not self.ended:
            self.early_verdicts.push(verdict)

    # What the cloud drafts itself.

    def draft_task(self) -> DraftTask | None:
        """Return what the draft model in the cloud is to do now, if anything: the same task until
        `drafted` is called with it, or until it is void and another one or none is due."""
        drafting = self._cloud_drafting
        if drafting is None or self.state is State.ENDED:
            return None
        if self._awaited is not None:
            return self._awaited
        if not (drafting.prefilling or self._may_draft()):
            drafting.give_up()
            return None
        return drafting.due()

    def drafted(
        self, task: DraftTask, drafts: list[Drafted], kv_length: int, draft_s: float
    ) -> None:
        """Take what a task of `draft_task` brought; what a void one brought is dropped.

        Args:
            task: what `draft_task` gave.
            drafts: its tokens, in order; none where it asks for none.
            kv_length: tokens that the draft KV now holds.
            draft_s: what drafting them took."""
        if self._cloud_drafting is not None:
            self._awaited = None
            self._cloud_drafting.take(task, drafts, kv_length, draft_s)

    def limit_cloud_drafts(self, length: int) -> None:
        """Draft nothing in the cloud for positions from `length` on: the draft model reads no
        longer text."""
        if self._cloud_drafting is not None:
            self._cloud_drafting.limit(length)

    def go_without_cloud_drafts(self) -> None:
        """Draft nothing in the cloud from now on: its draft model does not work, or the session is
        over. The text keeps its distribution."""
        self._cloud_drafting = None

    def _may_draft(self) -> bool:
        """Return whether the cloud would decode alone now, and may draft before it does. The first
        pass has no drafts, since it computes the prompt meanwhile; but where the text depends on
        drafts, a resumed session has them where it had them before."""
        if self.state is not State.IDLE or self._tree is not None:
            return False
        if self._edge_goes_first() or self._leaves_drafting_to_edge:
            return False
        at_start = self.rule.drafter_invariant or len(self.committed) == self._prompt_length
        if at_start and not self.target_passes:
            return False
        return self._is_due_without_drafts()

    def _edge_goes_first(self) -> bool:
        """Return whether drafts of the edge wait that go before those the cloud makes itself. They
        do not go before longer ones that the cloud has begun."""
        if not self._pending:
            return False
        drafting = self._cloud_drafting
        if drafting is None:
            return True
        if not drafting.chooses:
            return self._pending.ready >= drafting.begun
        if self._leaves_drafting_to_edge or not self._is_due_without_drafts():
            return True
        return not drafting.faster_than(self._pending.ready, self._acceptance.next_rate)

    @property
    def _leaves_drafting_to_edge(self) -> bool:
        """True if others share the passes, which drafts of the cloud would delay, and the edge
        drafts: more than a first look, and not long ago. Only where it may choose."""
        if self.settings.cloud_drafts is not CloudDrafts.ANY or self._budget is None:
            return False
        few = DEFAULT_CONFIG.few_tokens
        drafts = self._edge_drafts >= few and self._passes_without <= _PASSES_WITHOUT
        return drafts and not self._budget.alone

    def _waits_for_cloud_drafts(self) -> bool:
        """Return whether the pass that is due is to judge drafts that the cloud is making. While
        the draft model computes a long prompt, the cloud goes on alone, unless the text would
        depend on how long that takes. Until something happens `draft_task` gives what is waited
        for, whatever other sessions' passes, which another thread counts, make of it since."""
        drafting = self._cloud_drafting
        if drafting is None or not self._may_draft():
            return False
        if drafting.prefilling and self.rule.drafter_invariant:
            return False
        self._awaited = self.draft_task()
        return self._awaited is not None

    # What a pass found.

    def complete(self, verification: Verification, cost: Work) -> list[CloudMessage]:
        """Take what the judge of the work in flight found. Drafts that came while the pass ran wait
        for their own: a chunk gets one verdict, so that the text does not depend on arrival
        times."""
        if (work := self._in_flight) is None:
            raise ProtocolError("no work in flight", "complete")
        self._in_flight = None
        self.early_verdicts.clear()
        self.target_passes += 1
        self._passes_without += 1
        if self.ended:
            return []
        self._unread_prompt = ()
        if isinstance(work.judge, Preparation):
            self._keep_prepared(verification)
            return self._judge_at_once()
        prompt_frames = self._prompt_frames(verification)
        if work.by_cloud:
            return [*prompt_frames, *self._outcome_of_cloud_drafts(verification, work, cost)]
        return [*prompt_frames, *self._outcome_of(verification, work, cost)]

    def _with_drafts(
        self,
        cost: Work,
        *,
        drafts: int = 0,
        cloud_drafts: int = 0,
        draft_s: float = 0.0,
        draft_rate: float = 0.0,
    ) -> Work:
        """Return the cost of a pass, as the session's shell states it, with what was judged."""
        return Work(
            verify_s=cost.verify_s,
            queue_s=cost.queue_s,
            batch_size=cost.batch_size,
            target_passes=self.target_passes,
            drafts=drafts,
            cloud_drafts=cloud_drafts,
            draft_s=draft_s,
            draft_rate=draft_rate,
        )

    def _outcome_of_cloud_drafts(
        self, verification: Verification, work: VerifyTask, cost: Work
    ) -> list[CloudMessage]:
        """Commit the drafts of the cloud that stand, and the token after them. What the edge has
        drafted meanwhile for these positions stands if it is the same."""
        base = len(self.committed)
        accepted = len(verification.path)
        replacement = verification.replacement
        draft_s = draft_rate = 0.0
        if self._cloud_drafting is not None:
            draft_s = self._cloud_drafting.draft_s
            if self._cloud_drafting.from_memory:
                self.proposed_memory_tokens += work.drafts
                self.accepted_memory_tokens += accepted
            if self.settings.cloud_drafts is CloudDrafts.ANY:  # by an edge that chooses too
                draft_rate = self._cloud_drafting.rate
            self._cloud_drafting.judged(accepted, int(replacement is not None))
        self._kv_length = min(base + accepted, work.kept + len(work.token_ids))
        self._kept_path = ()
        self._forget_known()
        token_ids = verification.token_ids
        if isinstance(replacement, int):
            token_ids = (*token_ids, replacement)
        for token_id, target in zip(token_ids, verification.targets, strict=False):
            self._commit(token_id, target)
        if replacement is None:
            self._bonus_token(verification)
        cost = self._with_drafts(
            cost, cloud_drafts=work.drafts, draft_s=draft_s, draft_rate=draft_rate
        )
        committed = self._committed_since(base, cost, cloud_accepted=accepted)
        return [*committed, *self._judge_at_once()]

    def _keep_prepared(self, verification: Verification) -> None:
        """Keep the targets of a preparation; the KV holds its drafts after the committed text."""
        targets = verification.targets
        if self._frontier is None:
            self._frontier, *rest = targets
            targets = tuple(rest)
        self._prepared = targets
        self._kv_length = len(self.committed)

    def _prompt_frames(self, verification: Verification) -> list[CloudMessage]:
        if not verification.prompt_logprobs:
            return []
        header = self._header(len(self.committed))
        return [
            PromptLogprobs(**header, first=first, logprobs=logprobs)
            for first, logprobs in parts_of(verification.prompt_logprobs)
        ]

    def _outcome_of(
        self, verification: Verification, work: VerifyTask, cost: Work
    ) -> list[CloudMessage]:
        """Commit what was accepted, and what comes after it."""
        base = len(self.committed)
        accepted = len(verification.path)
        rejected = int(verification.replacement is not None)
        judged = max(len(work.prepared) + work.drafts, accepted + rejected)
        cost = self._with_drafts(cost, drafts=judged)
        if judged:
            self._acceptance.judged(accepted, rejected)
        if work.drafts:
            self._pass_yield += _YIELD_WEIGHT * (accepted + 1 - self._pass_yield)
        self._keep_accepted(verification, work)
        path = verification.path if work.parents is not None else ()
        if rejected:
            return self._reject(verification, base, cost, path)
        self._bonus_token(verification)
        committed = self._committed_since(base, cost, accepted=accepted, path=path)
        return [*committed, *self._judge_at_once()]

    def commit_forced_tokens(self, next_forced: Callable[[], int | None]) -> list[CloudMessage]:
        """Commit the tokens that alone may follow the text, where no edge drafts them: no pass has
        to say them.

        Args:
            next_forced: the only token that a grammar leaves after the text as it is then; None
                where it leaves several."""
        if self.settings.drafts or self._frontier is not None:
            return []
        base = len(self.committed)
        while self.state is State.IDLE and (token_id := next_forced()) is not None:
            self._commit(token_id, one_hot(self._model.vocabulary_size, token_id))
        return self._committed_since(base)

    def _committed_since(
        self,
        base: int,
        cost: Work | None = None,
        *,
        accepted: int = 0,
        cloud_accepted: int = 0,
        draw_from: FullPayload | SparsePayload | None = None,
        path: tuple[int, ...] = (),
    ) -> list[CloudMessage]:
        """Return the frame that tells the edge what is committed from `base` on, if anything is, or
        what it is to draw the next token from.

        Args:
            base: first position.
            cost: of a pass; None where none was needed.
            accepted: so many of these tokens are drafts of the edge.
            cloud_accepted: so many of those after them are the cloud's own drafts.
            draw_from: in the place of a draft that was refused.
            path: the accepted nodes of a tree."""
        if len(self.committed) == base and draw_from is None:
            return []
        return [
            Committed(
                **self._header(base),
                accepted=accepted,
                token_ids=self.committed.since(base + accepted),
                work=cost or Work(target_passes=self.target_passes),
                logprobs=self._logprobs_recorder.take(),
                cloud_accepted=cloud_accepted,
                draw_from=draw_from,
                path=path,
            )
        ]

    def _keep_accepted(self, verification: Verification, work: VerifyTask) -> None:
        """Commit the accepted drafts; of a tree's nodes the KV keeps those on the path."""
        if work.parents is None:
            accepted = len(verification.path)
            # Rejected drafts were fed too, and the token in place of the first one was not.
            self._kv_length = min(len(self.committed) + accepted, work.kept + len(work.token_ids))
            self._kept_path = ()
        else:
            before = len(work.token_ids) - work.drafts
            self._tree = None
            self._kv_length = work.kept
            self._kept_path = (*range(before), *(before + node for node in verification.path))
        self._forget_known()
        for token_id, target in zip(verification.token_ids, verification.targets, strict=False):
            self._commit(token_id, target)

    def _commit(self, token_id: int, target: TargetProbs) -> None:
        self._append(token_id)
        self._logprobs_recorder.note(target, token_id)

    def _append(self, token_id: int) -> None:
        """Commit a token. The draft that waits for its position, if one does, is judged by that: if
        it is another token, all that follow it are void."""
        self.committed.append(token_id)
        self._pending.pass_by(token_id)

    def _bonus_token(self, verification: Verification) -> None:
        """Commit the cloud's own token after the accepted drafts, unless the text is complete or a
        draft is next."""
        target = verification.next_target
        if target is None:
            return
        bonus = bool(verification.path) and self.settings.bonus
        if self._pending or not (bonus or self._decodes_alone):
            self._frontier = target
            return
        self._commit(self.rule.target_token(target, len(self.committed)), target)

    def _reject(
        self, verification: Verification, base: int, cost: Work, path: tuple[int, ...] = ()
    ) -> list[CloudMessage]:
        """Commit the recovered token after the accepted drafts, or have the edge draw it. Until it
        is known the rejected draft waits, and all after it."""
        target, replacement = verification.next_target, verification.replacement
        assert target is not None, "the rejected position was judged"
        self._forget_known()
        draw_from = None
        if isinstance(replacement, int):
            self._commit(replacement, target)
        else:
            draw_from = replacement
            self._to_draw_from = probs_of(target)
            self._sent_in_full = False
        accepted = len(verification.path)
        return self._committed_since(base, cost, accepted=accepted, draw_from=draw_from, path=path)

    def _judge_at_once(self) -> list[CloudMessage]:
        """Judge the first drafts by the distributions kept from earlier passes, if there are any.
        A rejection needs no pass; an acceptance waits for one, unless passes may be cut short."""
        if self._frontier is None or not self._pending.ready or self.state is not State.IDLE:
            return []
        known = len(self._known)
        judge = self._judge(chain_steps(self._pending.first_ready()[:known]), bonus=False)
        verification = judge.judge(_no_row)
        accepted = len(verification.path)
        if verification.replacement is not None:
            self._acceptance.judged(accepted, 1)
            if accepted:
                self._keep_known(verification)
            cost = Work(target_passes=self.target_passes, drafts=accepted + 1)
            return self._reject(verification, judge.base, cost)
        if self._budget is None:
            return []
        self._acceptance.judged(1, 0)
        self._frontier = None
        self._commit(verification.token_ids[0], verification.targets[0])
        cost = Work(target_passes=self.target_passes, drafts=1)
        return self._committed_since(judge.base, cost, accepted=1)

    def _keep_known(self, verification: Verification) -> None:
        """Commit drafts that were fed ahead, and accepted without a further pass."""
        accepted = len(verification.path)
        self._kv_length = len(self.committed) + accepted
        for token_id, target in zip(verification.token_ids, verification.targets, strict=False):
            self._commit(token_id, target)

    def _forget_known(self) -> None:
        self._frontier = None
        self._prepared = ()

    def _header(self, base: int) -> FrameHeader:
        """Return the header of every frame; the hash is that of all committed tokens."""
        return {
            "session": self.session,
            "base": base,
            "prefix_hash": self.committed.prefix,
        }


def _no_row(row: int) -> Array:
    raise AssertionError("no pass has given this distribution")


class HiddenUplink:
    """The hidden states that came and are not fed yet: of contiguous positions."""

    def __init__(self, split_layers: int, model: CloudModel) -> None:
        self._on = split_layers > 0
        self._model = model
        self._end = 0  # of the positions that came, fed or not
        self._states: list[Array] = []

    def receive(self, message: HiddenStates, committed: PrefixedTokens) -> None:
        """Take those of the next positions, which are committed. Raises InvalidArgument naming the
        field, or PrefixMismatch."""
        if not self._on:
            raise InvalidArgument("hidden_states", "the session is not split")
        count, size = message.states.shape
        if count < 1 or size != self._model.hidden_size:
            raise InvalidArgument("hidden_states", f"shape {message.states.shape}")
        if message.base != self._end:
            raise InvalidArgument("base", f"{message.base}; {self._end} is due")
        if message.base + count > len(committed):
            raise InvalidArgument("hidden_states", "of tokens that are not committed")
        committed.check(message.base, message.prefix_hash)
        if not np.isfinite(message.states).all():
            raise InvalidArgument("hidden_states", "are not all finite")
        self._states.append(message.states)
        self._end += count

    def complete(self, length: int) -> bool:
        """Return whether a pass over the first `length` tokens can begin."""
        return not self._on or self._end == length

    def take(self) -> Array | None:
        """Return those that are to be fed, which are complete; None where nothing is split."""
        if not self._on:
            return None
        states, self._states = self._states, []
        return np.concatenate(states)


class PendingDrafts:
    """The chain of drafts that wait to be judged: a queue of proposals, oldest first, contiguous
    from the end of the committed text. The first `ready` of them may be judged."""

    def __init__(self, committed: PrefixedTokens, window: int, length_limit: int) -> None:
        """Start without drafts. `length_limit` is the most tokens of prompt and answer together."""
        self.ready = 0
        self._committed = committed
        self._window = window
        self._length_limit = length_limit
        self._drafts: deque[Proposal] = deque()
        self._token_ids: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._drafts)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(self._token_ids)

    def first_ready(self) -> tuple[Proposal, ...]:
        """Return the drafts that may be judged."""
        return tuple(islice(self._drafts, self.ready))

    def follows_text(self, draft: Drafts) -> bool:
        """Return whether a draft is live: its hash is that of the text up to its base, committed or
        waiting. Others come late, after a text that is gone."""
        after = draft.base - len(self._committed)
        if after > len(self._drafts):
            return False
        if after <= 0:
            return self._committed.prefix_at(draft.base) == draft.prefix_hash
        return self._committed.prefix_with(self.token_ids[:after]) == draft.prefix_hash

    def check(self, draft: Drafts) -> None:
        """Check that no more drafts wait than may. Raises InvalidArgument."""
        end = draft.base + len(draft.token_ids)
        if end > self._length_limit:
            raise InvalidArgument("token_ids", "drafts beyond max_tokens")
        if end - len(self._committed) > self._window:
            raise InvalidArgument("draft_length", "more drafts are waiting than the window allows")

    def add(self, draft: Drafts) -> bool:
        """Queue those of a live draft that are new. False where one of the others is not the token
        that is committed, or waits, at its position: then those after it are void."""
        for position, proposal in enumerate(_proposals(draft), start=draft.base):
            after = position - len(self._committed)
            if after >= len(self._drafts):
                self._drafts.append(proposal)
                self._token_ids.append(proposal.token_ids[0])
                continue
            known = self._committed[position] if after < 0 else self._token_ids[after]
            if known != proposal.token_ids[0]:
                return False
        return True

    def make_ready(self, end: int) -> None:
        """Note that the drafts before position `end` may be judged."""
        self.ready = max(self.ready, end - len(self._committed))

    def pass_by(self, token_id: int) -> None:
        """Drop the first draft, for whose position this token is committed, and unless it is that
        token all others too."""
        if not self._drafts:
            return
        self._drafts.popleft()
        if self._token_ids.popleft() != token_id:
            self.clear()
        self.ready = max(0, self.ready - 1)

    def clear(self) -> None:
        """Drop all drafts: none of them will be judged."""
        self._drafts.clear()
        self._token_ids.clear()
        self.ready = 0


class EarlyQueue:
    """Early verdicts of one pass that wait for the link, leaving in `order` (FSD §3, step 3)."""

    def __init__(self, order: PredraftOrder, seed: int) -> None:
        self._order = order
        self._seed = seed
        self._waiting: list[EarlyVerdict] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def push(self, verdict: EarlyVerdict) -> None:
        """Queue a verdict; a later one of the same exit replaces it."""
        self._waiting = [v for v in self._waiting if v.exit_index != verdict.exit_index]
        self._waiting.append(verdict)

    def pop(self) -> EarlyVerdict:
        """Take the next verdict to send. Only while there is one."""
        first = min(self._waiting, key=self._rank)
        self._waiting.remove(first)
        return first

    def clear(self) -> None:
        """Drop early verdicts: the verdict itself is there."""
        self._waiting.clear()

    def _rank(self, verdict: EarlyVerdict) -> float:
        match self._order:
            case PredraftOrder.CONFIDENCE:
                return -verdict.confidence
            case PredraftOrder.FIFO:
                return float(verdict.exit_index)
            case PredraftOrder.RANDOM:
                return unit(hash_words(self._seed, verdict.base, verdict.exit_index))


class VocabularyMismatch(FailedPrecondition):
    """The two models do not share a vocabulary (FAILED_PRECONDITION)."""


def check_frame(message: EdgeMessage, session: int) -> None:
    """Check that a frame names the stream's own session."""
    if message.session != session:
        raise InvalidArgument("session", f"{message.session} is not this stream's session")


def check_open(opening: Open, model: CloudModel) -> None:
    """Check everything that a session needs before it may cost anything.

    Raises InvalidArgument naming the field, or VocabularyMismatch."""
    vocabulary_size = model.vocabulary_size
    context_length = model.context_length
    if (opening.vocabulary_hash, opening.vocabulary_size) != (
        model.vocabulary_hash,
        vocabulary_size,
    ):
        raise VocabularyMismatch(
            "vocabulary_hash: draft and target do not share a vocabulary "
            f"({opening.vocabulary_size} and {vocabulary_size} entries); give the drafter"
            " --target-tokenizer"
        )
    params = opening.params
    check_image_bytes(params.images)
    opening.settings.validate()
    if params.logprobs:
        check_logprobs_available(opening.settings, opening.params.top_logprobs)
    check_top_logprobs(params.logprobs, params.top_logprobs)
    check_prompt_logprobs(params)
    check_split(opening, model)
    opening.settings.truncation.validate(vocabulary_size)
    params.sampling.validate(vocabulary_size)
    params.processors.validate(vocabulary_size, params.ignore_eos)
    if not opening.prompt_ids:
        raise InvalidArgument("prompt_ids", "the prompt is empty")
    if params.max_tokens < 1:
        raise InvalidArgument("max_tokens", f"must be at least 1, is {params.max_tokens}")
    if len(opening.committed_ids) >= params.max_tokens:
        raise InvalidArgument("committed_ids", "the answer is complete already")
    if len(opening.prompt_ids) >= context_length:
        why = f"{len(opening.prompt_ids)} tokens; the context holds {context_length}"
        raise InvalidArgument("prompt_ids", why)
    if len(opening.prompt_ids) + params.max_tokens > context_length:
        why = f"prompt and answer exceed the context of {context_length}"
        raise InvalidArgument("max_tokens", why)
    check_token_ids(opening.prompt_ids, vocabulary_size, "prompt_ids")
    check_token_ids(opening.committed_ids, vocabulary_size, "committed_ids")


def check_split(opening: Open, model: CloudModel) -> None:
    """Check that the target can be split where the edge splits it."""
    layers = opening.settings.split_layers
    if not layers or not model.layer_count:
        return  # or the back end cannot split at all, which is another error
    if layers >= model.layer_count:
        why = f"{layers} of the target's {model.layer_count} layers cannot run at the edge"
        raise InvalidArgument("split_layers", why)
    if opening.params.images:
        raise InvalidArgument("images", "cannot be combined with split layers")


def opened_text(opening: Open) -> PrefixedTokens:
    """Return the prompt and the tokens committed before, checked against the end and the hash that
    the frame names."""
    committed = PrefixedTokens((*opening.prompt_ids, *opening.committed_ids))
    if opening.base != len(committed):
        raise InvalidArgument("base", f"{opening.base} is not the resume point {len(committed)}")
    committed.check(opening.base, opening.prefix_hash)
    return committed


def check_draft(draft: Drafts, settings: VerifySettings, model: CloudModel) -> None:
    """Check that ids are in range, that the payload is what the settings name, and that
    probabilities are probabilities. Raises InvalidArgument naming the field."""
    vocabulary_size = model.vocabulary_size
    count = len(draft.token_ids)
    limit = min(model.max_draft_length, settings.most_drafts)
    if not 1 <= count <= limit:
        raise InvalidArgument("draft_length", f"{count} tokens in a draft; allowed are 1…{limit}")
    check_token_ids(draft.token_ids, vocabulary_size, "token_ids")
    if (draft.parents is not None) != bool(settings.expansion):
        raise InvalidArgument("parents", "do not match the opened draft shape")
    if draft.parents is not None:
        _check_tree(draft.token_ids, draft.parents, settings)
    wants_probabilities = settings.uplink is Uplink.PROBABILITIES
    if (draft.probabilities is not None) != wants_probabilities:
        raise InvalidArgument("probabilities", "do not match the opened uplink payload")
    if (draft.distributions is not None) != settings.carries_probs:
        raise InvalidArgument("distributions", "do not match the opened uplink payload")
    if draft.probabilities is not None:
        _check_probabilities(draft.probabilities, count)
    if draft.distributions is not None:
        _check_distributions(draft, vocabulary_size)


def _check_probabilities(probabilities: tuple[float, ...], count: int) -> None:
    if len(probabilities) != count:
        raise InvalidArgument("probabilities", f"{len(probabilities)} for {count} tokens")
    for probability in probabilities:
        if not (math.isfinite(probability) and 0.0 < probability <= 1.0):
            raise InvalidArgument("probabilities", f"{probability} is not in (0, 1]")


def _check_distributions(draft: Drafts, vocabulary_size: int) -> None:
    assert draft.distributions is not None
    drawn_from = _distributions_of_tokens(draft)
    if draft.distributions.shape != (max(drawn_from) + 1, vocabulary_size):
        raise InvalidArgument(
            "distributions", f"shape {draft.distributions.shape} does not fit the draft"
        )
    for probs in draft.distributions:
        check_probs(probs, vocabulary_size, "distributions")
    for token_id, index in zip(draft.token_ids, drawn_from, strict=True):
        if not draft.distributions[index][token_id] > 0:
            raise InvalidArgument(
                "distributions", f"token {token_id} has probability 0 in its distribution"
            )


def _distributions_of_tokens(draft: Drafts) -> list[int]:
    """Return which of the draft's distributions each token was drawn from; in a tree, its
    parent's."""
    if draft.parents is None:
        return list(range(len(draft.token_ids)))
    order = {node: index for index, node in enumerate(children(draft.parents))}
    return [order[parent] for parent in draft.parents]


def _check_tree(
    token_ids: tuple[int, ...], parents: tuple[int, ...], settings: VerifySettings
) -> None:
    """Check that parents come before their children, and that the tree is no deeper and has no more
    candidates than the settings allow. Raises InvalidArgument."""
    check_parents(parents, len(token_ids))
    depth = depths(parents)
    if max(depth) >= len(settings.expansion):
        raise InvalidArgument(
            "parents", f"{max(depth) + 1} layers; {settings.expansion} are opened"
        )
    for parent, nodes in children(parents).items():
        layer = depth[parent] + 1 if parent >= 0 else 0
        if len(nodes) > settings.expansion[layer]:
            raise InvalidArgument("parents", f"{len(nodes)} candidates follow node {parent}")
        distinct = {token_ids[node] for node in nodes}
        if not settings.with_replacement and len(distinct) < len(nodes):
            raise InvalidArgument("token_ids", f"candidates after node {parent} repeat a token")


def _proposals(draft: Drafts) -> Iterator[Proposal]:
    """Yield the draft's tokens, each with what the uplink carried for it."""
    for index, token_id in enumerate(draft.token_ids):
        yield Proposal(
            (token_id,),
            draft.probabilities[index] if draft.probabilities is not None else None,
            draft.distributions[index] if draft.distributions is not None else None,
        )
