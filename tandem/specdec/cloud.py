"""The cloud's half of a session: judges drafts, decodes alone, keeps the committed text.

One machine covers every schedule. `receive` takes a frame, `work` names the forward pass that is
due, `complete` takes its distributions. Invariants: committed tokens are never retracted; the KV is
valid exactly for the first `kv_length` committed tokens; old epochs' drafts change nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.core.probs import Array, one_hot
from tandem.core.randomness import RandomSource, SeededRandom
from tandem.specdec.awaited_recovery import AwaitedRecovery
from tandem.specdec.early_verdicts import EarlyJudge, EarlyQueue, early_payload_rule
from tandem.specdec.edge_frame_checks import check_draft, check_frame, check_open, opened_text
from tandem.specdec.judge import DraftTree, Judge, Judgement, Steps, chain_steps
from tandem.specdec.logprobs import LogprobsRecorder
from tandem.specdec.messages import (
    Cancel,
    CloudMessage,
    Draft,
    EarlyVerdict,
    EdgeMessage,
    Frame,
    FullDistribution,
    GoingAway,
    NeedFullDistribution,
    Open,
    Opened,
    Ping,
    Pong,
    Recovered,
    Tokens,
    Verdict,
    Work,
)
from tandem.specdec.pass_budget import HolderBudget, PassBudget, SessionAcceptance, UsualAcceptance
from tandem.specdec.pending_drafts import PendingDrafts
from tandem.specdec.rules import TargetProbs, acceptance_rule, payload_rule, probs_of
from tandem.specdec.scheduling import decodes_alone
from tandem.specdec.verify_work import VerifyWork, tree_pass

_EXPECTED_YIELD, _YIELD_WEIGHT = 2.0, 0.2
"""Tokens that a pass over drafts yields: the first estimate, and the weight of each new pass."""


@dataclass(frozen=True, slots=True)
class CloudModel:
    """What the machine must know of the target model and of the server's limits."""

    model_name: str
    vocabulary_hash: str
    vocabulary_size: int
    context_length: int
    eos_token_ids: frozenset[int]
    max_draft_length: int = 64
    exits: int = 0
    same_bits: bool = False


class CloudMachine:
    """One session. Raises InvalidArgument for bad frames, ProtocolError for wrong use by the
    caller, PrefixMismatch when the two committed texts differ."""

    def __init__(
        self,
        opening: Open,
        model: CloudModel,
        rng: RandomSource | None = None,
        budget: PassBudget | HolderBudget | None = None,
    ) -> None:
        """`budget`: of the verifier's passes, which this session shares with others."""
        check_open(opening, model.vocabulary_hash, model.vocabulary_size, model.context_length)
        params = opening.params
        rng = rng if rng is not None else SeededRandom(params.seed)
        self.session = opening.session
        self.preset = opening.preset
        self.sampling = params.sampling
        self.epoch = opening.epoch
        self.committed = opened_text(opening)
        self.kv_length = 0
        self.target_passes = 0
        self._model = model
        self._schedule = opening.preset.schedule
        self._logprobs_recorder = LogprobsRecorder(params.logprobs, params.top_logprobs)
        self.rule = acceptance_rule(opening.preset, params.seed, rng, params.logprobs)
        self._payloads = payload_rule(opening.preset, self.rule, rng)
        self._early_payloads = early_payload_rule(opening.preset, self.rule, rng)
        self.exits = tuple(range(model.exits))[max(0, model.exits - opening.preset.exits) :]
        self.early_verdicts = EarlyQueue(opening.preset.exit_order, params.seed)
        self._length_limit = len(opening.prompt_ids) + params.max_tokens
        self._eos = frozenset() if params.ignore_eos else model.eos_token_ids
        self._pending = PendingDrafts(self.committed, self._schedule.window, self._length_limit)
        self._tree: DraftTree | None = None
        self._kept_path: tuple[int, ...] = ()
        self._frontier: TargetProbs | None = None
        self._recovery = AwaitedRecovery(self.committed, model.vocabulary_size)
        self._in_flight: VerifyWork | None = None
        self._pass_yield = _EXPECTED_YIELD
        self._budget = budget if opening.preset.judged_in_parts else None
        self._acceptance = SessionAcceptance(budget.usual if budget else UsualAcceptance())
        self._hold = self._ended = False

    @property
    def ended(self) -> bool:
        """Whether the edge is done with the session."""
        return self._ended

    @property
    def finished(self) -> bool:
        """Whether the answer is complete: end of text, or its length limit."""
        if len(self.committed) >= self._length_limit:
            return True
        return len(self.committed) > self.committed.start and self.committed.last in self._eos

    def opened(self) -> Opened:
        """The first frame to the edge."""
        model = self._model
        return Opened(
            *self._frame(len(self.committed)),
            max_draft_length=model.max_draft_length,
            context_length=model.context_length,
            eos_token_ids=model.eos_token_ids,
            model_name=model.model_name,
            exits=len(self.exits),
            processes=True,
            cached_tokens=self.kv_length,
            same_bits=model.same_bits,
        )

    def going_away(self, grace_s: float) -> GoingAway:
        """Ask the edge to finish its round and reconnect."""
        return GoingAway(*self._frame(len(self.committed)), grace_s=grace_s)

    def receive(self, message: EdgeMessage) -> list[CloudMessage]:
        """Take one frame; return what is to be sent at once."""
        check_frame(message, self.session)
        if self._ended:
            return []
        match message:
            case Draft():
                return self._receive_draft(message)
            case Recovered():
                return self._receive_recovered(message)
            case NeedFullDistribution():
                return self._receive_need_full_distribution(message)
            case Ping():
                return [Pong(*self._frame(len(self.committed)), nonce=message.nonce)]
            case Cancel():
                self._ended = True
                self._pending.clear()
                self.early_verdicts.clear()
                self._tree = None
                return []
            case Open():
                raise InvalidArgument("open", "the session is open already")

    def work(self) -> VerifyWork | None:
        """The forward pass that is due now, if any; it stays in flight until `complete`."""
        if self._in_flight or self._ended or self.finished or self._recovery.due:
            return None
        unfed = self.committed.since(self.kv_length + len(self._kept_path))
        if self._tree is not None and len(unfed) < 2:
            judge = self._judge(self._tree.steps)
            work = tree_pass(self._tree, self.kv_length, self._kept_path, unfed, judge)
        elif self._tree is not None or self._pending.ready or self._is_due_without_drafts():
            work = self._chain_pass(unfed)  # a longer text before its tree: that mask costs less
        else:
            return None
        self._in_flight = work
        return work

    def _chain_pass(self, unfed: tuple[int, ...]) -> VerifyWork:
        """The pass over the drafts that are ready, if any, after the text that is not fed yet."""
        drafts, proposals = self._pending.ready, self._pending.first_ready()
        if (budget := self._budget) is not None:
            drafts = budget.drafts(self._acceptance.rate, drafts, weight=self.preset.idle_weight)
            proposals = proposals[: drafts + 1]  # the last needs no more than the rows before it
        judge = self._judge(chain_steps(proposals), bonus=drafts == len(proposals))
        early = None
        if drafts and self.exits:
            bonus = self._schedule.bonus and len(self._pending) == drafts
            early_judge = replace(judge, payloads=self._early_payloads, bonus=bonus)
            early = EarlyJudge(Frame(*self._frame(judge.base)), self.exits, early_judge)
        token_ids = (*unfed, *self._pending.token_ids[:drafts])
        wanted, path = drafts + (self._frontier is None), self._kept_path
        return VerifyWork(self.kv_length, token_ids, wanted, drafts, judge, early, path=path)

    def _judge(self, steps: Steps, bonus: bool = True) -> Judge:
        base, ends = len(self.committed), (self._eos, self._length_limit)
        return Judge(base, steps, self.rule, self._payloads, *ends, self._frontier, bonus)

    def push_early_verdict(self, work: VerifyWork, verdict: EarlyVerdict) -> None:
        """Queue an exit's verdict in `early_verdicts`, to be sent before the pass for `work`
        ends."""
        if work is self._in_flight and not self._ended:
            self.early_verdicts.push(verdict)

    def _is_due_without_drafts(self) -> bool:
        """True for the prompt, which needs no draft; after it, where the cloud decodes alone."""
        if self._frontier is not None:
            return False
        return self.target_passes == 0 or self._decodes_alone

    @property
    def _decodes_alone(self) -> bool:
        """Whether the cloud decodes on while no draft waits."""
        waits = self._hold and (self._budget is None or self._budget.alone)
        if not self._schedule.decode_when_idle or waits:
            return False
        return not self.preset.drafts or decodes_alone(self.preset.idle_weight, self._pass_yield)

    def complete(self, judgement: Judgement, cost: Work) -> list[CloudMessage]:
        """Take what the judge of the work in flight found. Drafts that came while the pass ran wait
        for their own: a chunk gets one verdict, so that the text does not depend on arrival
        times."""
        if (work := self._in_flight) is None:
            raise ProtocolError("no work in flight", "complete")
        self._in_flight = None
        self.early_verdicts.clear()
        self.target_passes += 1
        if self._ended:
            return []
        cost = replace(cost, target_passes=self.target_passes, drafts=work.drafts)
        base, accepted = len(self.committed), len(judgement.path)
        self._acceptance.judged(accepted, int(judgement.replacement is not None))
        if work.drafts:
            self._pass_yield += _YIELD_WEIGHT * (accepted + 1 - self._pass_yield)
        self._keep_accepted(judgement, work)
        path = judgement.path if work.parents is not None else ()
        if judgement.replacement is not None:
            return [self._reject(judgement, base, cost, path)]
        outcome = self._bonus_token(judgement)
        frame = self._frame(base)
        logprobs = self._logprobs_recorder.take()
        if accepted:
            verdict = Verdict(*frame, accepted, False, outcome, cost, path, logprobs)
            return [verdict, *self._judge_at_once()]
        if outcome is not None:
            return [Tokens(*frame, (outcome,), cost, logprobs)]
        return self._judge_at_once()

    def go_on(self, forced: Callable[[], int | None]) -> list[CloudMessage]:
        """Commit the tokens that alone may follow the text (`forced`: the next one), where no edge
        drafts them: no pass has to say them."""
        if self.preset.drafts or self._in_flight or self._frontier is not None:
            return []
        base = len(self.committed)
        while not (self._ended or self.finished) and (token_id := forced()) is not None:
            self._commit(token_id, one_hot(self._model.vocabulary_size, token_id))
        if not (token_ids := self.committed.since(base)):
            return []
        cost = Work(target_passes=self.target_passes)
        return [Tokens(*self._frame(base), token_ids, cost, self._logprobs_recorder.take())]

    def _keep_accepted(self, judgement: Judgement, work: VerifyWork) -> None:
        """Commit the accepted drafts; of a tree's nodes the KV keeps those on the path."""
        if work.parents is None:
            self._pending.accept(len(judgement.path))
            judged, fed = len(self.committed) + len(judgement.path), len(work.token_ids)
            self.kv_length, self._kept_path = min(judged, work.kept + fed), ()
        else:
            before = len(work.token_ids) - work.drafts
            self._tree = None
            self.kv_length = work.kept
            self._kept_path = (*range(before), *(before + node for node in judgement.path))
        self._frontier = None
        for token_id, target in zip(judgement.token_ids, judgement.targets, strict=False):
            self._commit(token_id, target)

    def _commit(self, token_id: int, target: TargetProbs) -> None:
        self.committed.append(token_id)
        self._logprobs_recorder.note(target, token_id)

    def _bonus_token(self, judgement: Judgement) -> int | None:
        """The cloud's own token after the accepted drafts; None at the end or if a draft is
        next."""
        target = judgement.next_target
        if target is None:
            return None
        bonus = bool(judgement.path) and self._schedule.bonus
        if self._pending or not (bonus or self._decodes_alone):
            self._frontier = target
            return None
        token = self.rule.target_token(target, len(self.committed))
        self._commit(token, target)
        return token

    def _reject(
        self, judgement: Judgement, base: int, cost: Work, path: tuple[int, ...] = ()
    ) -> Verdict:
        """End the epoch after the accepted drafts, with the recovered token if the cloud draws."""
        accepted, target = len(judgement.path), judgement.next_target
        assert target is not None, "the rejected position was judged"
        self._end_epoch(base + accepted)
        self._frontier = None
        if isinstance(judgement.replacement, int):
            self._commit(judgement.replacement, target)
        else:
            self._recovery.begin(probs_of(target))
        frame, outcome = self._frame(base), judgement.replacement
        logprobs = self._logprobs_recorder.take()
        return Verdict(*frame, accepted, True, outcome, cost, path, logprobs)

    def _end_epoch(self, position: int) -> None:
        self.epoch += 1
        self._pending.begin_epoch(position)

    def _receive_draft(self, draft: Draft) -> list[CloudMessage]:
        if self.finished:
            return []  # past the end drafts mean nothing, and epochs are no longer counted
        stale = self._is_stale(draft)
        self._hold = draft.hold  # void or not: an edge that drafts no more does not say it again
        if stale:
            return []
        if self._recovery.due:
            raise InvalidArgument("draft", "the recovered token of the last verdict is due first")
        check_draft(draft, self.preset, self._model.vocabulary_size, self._model.max_draft_length)
        if draft.parents is not None:
            return self._receive_tree(draft)
        self._pending.check(draft)
        if (overtaken_at := self._pending.add(draft)) is not None:
            # The cloud went on alone with another token; the edge learns it from that token. The
            # committed text stays as it is, and so does the distribution kept for what follows it.
            self._end_epoch(overtaken_at)
            return []
        if draft.end_of_chunk or self._schedule.verify_on_arrival:
            self._pending.make_ready()
        return self._judge_at_once()

    def _receive_tree(self, draft: Draft) -> list[CloudMessage]:
        if self._tree is not None:
            raise InvalidArgument("draft_length", "a tree is waiting already")
        if draft.base != len(self.committed):
            raise InvalidArgument("base", f"{draft.base}: trees start at {len(self.committed)}")
        self.committed.check(draft.base, draft.prefix)
        tree = DraftTree.of(draft)
        if draft.base + tree.layers > self._length_limit:
            raise InvalidArgument("token_ids", "drafts beyond max_tokens")
        self._tree = tree
        return []

    def _judge_at_once(self) -> list[CloudMessage]:
        """The first draft may already be judged by the distribution kept from the last position."""
        if self._frontier is None or not self._pending.ready or self._in_flight:
            return []
        judge = self._judge(chain_steps(self._pending.first_ready()[:1]), bonus=False)
        judgement, cost = judge.judge(_no_row), Work(target_passes=self.target_passes)
        if judgement.replacement is not None:
            self._acceptance.judged(0, 1)
            return [self._reject(judgement, judge.base, cost)]
        if self._budget is None:
            return []
        self._acceptance.judged(1, 0)
        self._pending.accept(1)
        self._frontier = None
        self._commit(judgement.token_ids[0], judgement.targets[0])
        logprobs = self._logprobs_recorder.take()
        return [Verdict(*self._frame(judge.base), 1, False, None, cost, logprobs=logprobs)]

    def _is_stale(self, message: EdgeMessage) -> bool:
        if message.epoch > self.epoch:
            raise InvalidArgument("epoch", f"{message.epoch} is ahead of {self.epoch}")
        return message.epoch < self.epoch

    def _receive_recovered(self, message: Recovered) -> list[CloudMessage]:
        if not self._is_stale(message):
            self.committed.append(self._recovery.token(message))
        return []

    def _receive_need_full_distribution(self, message: NeedFullDistribution) -> list[CloudMessage]:
        if self._is_stale(message):
            return []
        target_probs = self._recovery.in_full(message)
        return [FullDistribution(*self._frame(message.base), target_probs=target_probs)]

    def _frame(self, base: int) -> tuple[int, int, int, int]:
        return self.session, self.epoch, base, self.committed.prefix


def _no_row(row: int) -> Array:
    raise AssertionError("no pass has given this distribution")
