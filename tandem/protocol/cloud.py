"""The cloud's half of a session: judges drafts, decodes alone, keeps the committed text.

One machine covers every schedule (DESIGN §4). `receive` takes a frame, `work` names the forward
pass that is due, `complete` takes its laws. Invariants: committed tokens are never retracted; the
KV is valid exactly for the first `kv_length` committed tokens; drafts of an older epoch change
nothing. Must not import asyncio, grpc, torch or time; never logs, never reads a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tandem.core.chance import Chance, SeededChance
from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.core.laws import Array
from tandem.policy.idle import decodes_alone
from tandem.protocol.early_verdicts import EarlyJudge, EarlyQueue, early_answer_rule
from tandem.protocol.intake import check_draft, check_frame, check_open, opened_text
from tandem.protocol.logprobs import Telling
from tandem.protocol.messages import (
    Cancel,
    CloudMessage,
    Draft,
    EarlyVerdict,
    EdgeMessage,
    Frame,
    FullLaw,
    GoingAway,
    NeedFullLaw,
    Open,
    Opened,
    Ping,
    Pong,
    Recovered,
    Tokens,
    Verdict,
    Work,
)
from tandem.protocol.pending_drafts import PendingDrafts
from tandem.protocol.rules import TargetLaw, acceptance_rule, answer_rule, law_of
from tandem.protocol.tree_judging import ProposedTree, judge_tree, tree_pass
from tandem.protocol.verify_work import VerifyWork

_EXPECTED_YIELD, _YIELD_WEIGHT = 2.0, 0.2
"""Tokens that a pass over drafts yields: as expected at first, and how fast it is learnt."""


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


class CloudMachine:
    """One session. Raises InvalidArgument for what the edge got wrong, ProtocolError for what the
    shell got wrong, PrefixMismatch when the two committed texts differ."""

    def __init__(self, opening: Open, model: CloudModel, chance: Chance | None = None) -> None:
        check_open(opening, model.vocabulary_hash, model.vocabulary_size, model.context_length)
        chance = chance if chance is not None else SeededChance(opening.seed)
        self.session = opening.session
        self.preset = opening.preset
        self.sampling = opening.sampling
        self.epoch = opening.epoch
        self.committed = opened_text(opening)
        self.kv_length = 0
        self.target_passes = 0
        self._model = model
        self._schedule = opening.preset.schedule
        self._telling = Telling(opening.logprobs, opening.top_logprobs)
        self.rule = acceptance_rule(opening.preset, opening.seed, chance, opening.logprobs)
        self._answers = answer_rule(opening.preset, self.rule, chance)
        self._early_answers = early_answer_rule(opening.preset, self.rule, chance)
        self.exits = tuple(range(model.exits))[max(0, model.exits - opening.preset.exits) :]
        self.early_verdicts = EarlyQueue(opening.preset.exit_order, opening.seed)
        self._length_limit = len(opening.prompt_ids) + opening.max_tokens
        self._eos = frozenset() if opening.ignore_eos else model.eos_token_ids
        self._pending = PendingDrafts(self.committed, self._schedule.window, self._length_limit)
        self._tree: ProposedTree | None = None
        self._kept_path: tuple[int, ...] = ()
        self._frontier_law: TargetLaw | None = None
        self._refused_law: Array | None = None
        self._in_flight: VerifyWork | None = None
        self._pass_yield = _EXPECTED_YIELD
        self._hold = False
        self._ended = False

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
            case NeedFullLaw():
                return self._receive_need_full_law(message)
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
        if self._in_flight or self._ended or self.finished or self._refused_law is not None:
            return None
        if self._tree is not None:
            unfed = self.committed.since(self.kv_length + len(self._kept_path))
            self._in_flight = tree_pass(self._tree, self.kv_length, self._kept_path, unfed)
            return self._in_flight
        drafts = self._pending.ready
        if not drafts and not self._is_due_without_drafts():
            return None
        fed = (*self.committed.since(self.kv_length), *self._pending.token_ids[:drafts])
        wanted = drafts + (self._frontier_law is None)
        self._in_flight = VerifyWork(
            self.kv_length, fed, wanted, drafts, self._early_judge() if drafts else None
        )
        return self._in_flight

    def _early_judge(self) -> EarlyJudge | None:
        """Who judges the drafts that are ready, if this session hears early exits."""
        if not self.exits:
            return None
        return EarlyJudge(
            Frame(*self._frame(len(self.committed))),
            self.exits,
            self._pending.first_ready(),
            self._frontier_law,
            self._eos,
            self._length_limit,
            self._schedule.bonus and len(self._pending) == self._pending.ready,
            self.rule,
            self._early_answers,
        )

    def hear_early(self, work: VerifyWork, verdict: EarlyVerdict) -> None:
        """An exit of the pass for `work` has spoken: its verdict waits in `early_verdicts` to be
        sent, and is void once that pass is over."""
        if work is self._in_flight and not self._ended:
            self.early_verdicts.push(verdict)

    def _is_due_without_drafts(self) -> bool:
        """True for the prompt, which needs no draft; after it, where the cloud decodes alone."""
        if self._frontier_law is not None:
            return False
        return self.target_passes == 0 or self._decodes_alone

    @property
    def _decodes_alone(self) -> bool:
        """Whether it goes on by itself while no draft waits."""
        if not self._schedule.decode_when_idle or self._hold:
            return False
        return not self.preset.drafts or decodes_alone(self.preset.idle_weight, self._pass_yield)

    def _count_yield(self, work: VerifyWork, tokens: int) -> None:
        if work.drafts:
            self._pass_yield += _YIELD_WEIGHT * (tokens - self._pass_yield)

    def complete(self, target_laws: Sequence[TargetLaw], cost: Work) -> list[CloudMessage]:
        """Take the laws of the work in flight ([wanted, vocabulary], after sampling settings)."""
        work = self._in_flight
        if work is None:
            raise ProtocolError("no work in flight", "complete")
        if len(target_laws) != work.wanted:
            raise ProtocolError(f"{work.wanted} laws wanted", f"complete with {len(target_laws)}")
        self._in_flight = None
        self.early_verdicts.clear()
        self.target_passes += 1
        if self._ended:
            return []
        laws = list(target_laws)
        if self._frontier_law is not None:
            laws.insert(0, self._frontier_law)
        self._kept_path = ()
        judge = self._judge if work.parents is None else self._judge_tree
        cost = replace(cost, target_passes=self.target_passes, drafts=work.drafts)
        return judge(laws, work, cost)

    def _judge(self, laws: list[TargetLaw], work: VerifyWork, cost: Work) -> list[CloudMessage]:
        """Judge the drafts of `work`; laws[i] speaks of the i-th position from the frontier on.

        Drafts that came while the pass ran wait for their own: a whole chunk gets one verdict, so
        that rounds, and with them the text, do not depend on when a frame arrives.
        """
        base = len(self.committed)
        accepted = 0
        self._frontier_law = None
        while accepted < work.drafts and not self.finished:
            if not self.rule.accepts(laws[accepted], self._pending.first, base + accepted):
                self.kv_length = base + accepted
                self._count_yield(work, accepted + 1)
                return [self._refuse(laws[accepted], base, accepted, cost)]
            self._commit(self._pending.accept(), laws[accepted])
            accepted += 1
        self.kv_length = base + accepted
        self._count_yield(work, accepted + 1)
        outcome = None if self.finished else self._own_token(laws[accepted], accepted)
        frame = (self.session, self.epoch, base, self.committed.prefix)
        if accepted:
            verdict = Verdict(
                *frame,
                accepted=accepted,
                rejected=False,
                outcome=outcome,
                work=cost,
                logprobs=self._telling.take(),
            )
            return [verdict, *self._refuse_at_once()]
        if outcome is not None:
            told = self._telling.take()
            return [Tokens(*frame, token_ids=(outcome,), work=cost, logprobs=told)]
        return self._refuse_at_once()

    def _judge_tree(
        self, laws: list[TargetLaw], work: VerifyWork, cost: Work
    ) -> list[CloudMessage]:
        """Judge the tree of `work`; of its nodes the KV keeps those on the accepted path."""
        assert self._tree is not None, "a tree's pass has a tree"
        base, before = len(self.committed), len(work.token_ids) - work.drafts
        self._frontier_law = None
        judged = judge_tree(self._tree, laws, self.rule, base, self._commit)
        self._tree = None
        self.kv_length = work.kept
        self._kept_path = (*range(before), *(before + node for node in judged.path))
        self.epoch += judged.rejected
        verdict = Verdict(
            self.session,
            self.epoch,
            base,
            self.committed.prefix,
            accepted=len(judged.path),
            rejected=judged.rejected,
            outcome=judged.token,
            work=cost,
            path=judged.path,
            logprobs=self._telling.take(),
        )
        return [verdict]

    def _commit(self, token_id: int, law: TargetLaw) -> bool:
        """Whether the text is complete with the token, which was taken from `law`."""
        self.committed.append(token_id)
        self._telling.note(law, token_id)
        return self.finished

    def _own_token(self, law: TargetLaw, accepted: int) -> int | None:
        """A bonus or idle token at the frontier, or None with the law kept for the next draft."""
        bonus = bool(accepted) and self._schedule.bonus
        if self._pending or not (bonus or self._decodes_alone):
            self._frontier_law = law
            return None
        token = self.rule.own_token(law, len(self.committed))
        self._commit(token, law)
        return token

    def _refuse(self, law: TargetLaw, base: int, accepted: int, cost: Work) -> Verdict:
        """End the epoch at the frontier: commit the recovered token, or let the edge draw it."""
        outcome = self._answers.answer(law, self._pending.first, base + accepted)
        self._end_epoch(base + accepted)
        if isinstance(outcome, int):
            self._commit(outcome, law)
        else:
            self._refused_law = law_of(law)
        return Verdict(
            self.session,
            self.epoch,
            base,
            self.committed.prefix,
            accepted=accepted,
            rejected=True,
            outcome=outcome,
            work=cost,
            logprobs=self._telling.take(),
        )

    def _end_epoch(self, position: int) -> None:
        self.epoch += 1
        self._pending.begin_epoch(position)
        self._frontier_law = None

    def _receive_draft(self, draft: Draft) -> list[CloudMessage]:
        if self.finished or self._is_stale(draft):
            return []  # past the end drafts mean nothing, and epochs are no longer counted
        if self._refused_law is not None:
            raise InvalidArgument("draft", "the recovered token of the last verdict is due first")
        check_draft(draft, self.preset, self._model.vocabulary_size, self._model.max_draft_length)
        if draft.parents is not None:
            return self._receive_tree(draft)
        self._pending.check(draft)
        self._hold = draft.hold
        overtaken_at = self._pending.add(draft)
        if overtaken_at is not None:
            # The cloud went on alone with another token; the edge learns it from that token.
            self._end_epoch(overtaken_at)
            return []
        if draft.end_of_chunk or self._schedule.verify_on_arrival:
            self._pending.make_ready()
        return self._refuse_at_once()

    def _receive_tree(self, draft: Draft) -> list[CloudMessage]:
        if self._tree is not None:
            raise InvalidArgument("draft_length", "a tree is waiting already")
        if draft.base != len(self.committed):
            raise InvalidArgument("base", f"{draft.base}: trees start at {len(self.committed)}")
        self.committed.check(draft.base, draft.prefix)
        tree = ProposedTree(draft)
        if draft.base + tree.layers > self._length_limit:
            raise InvalidArgument("token_ids", "drafts beyond max_tokens")
        self._tree = tree
        return []

    def _refuse_at_once(self) -> list[CloudMessage]:
        """The first draft may already be judged by the law kept from the last position."""
        law = self._frontier_law
        if law is None or not self._pending.ready or self._in_flight:
            return []
        base = len(self.committed)
        if self.rule.accepts(law, self._pending.first, base):
            return []
        return [self._refuse(law, base, 0, Work(target_passes=self.target_passes))]

    def _is_stale(self, message: EdgeMessage) -> bool:
        if message.epoch > self.epoch:
            raise InvalidArgument("epoch", f"{message.epoch} is ahead of {self.epoch}")
        return message.epoch < self.epoch

    def _receive_recovered(self, message: Recovered) -> list[CloudMessage]:
        if self._is_stale(message):
            return []
        if self._refused_law is None:
            raise InvalidArgument("recovered", "no verdict left a token to be drawn")
        if message.base != len(self.committed):
            raise InvalidArgument("base", f"{message.base} is not the refused position")
        if not 0 <= message.token_id < self._model.vocabulary_size:
            raise InvalidArgument("token_id", f"{message.token_id} is outside the vocabulary")
        if not self._refused_law[message.token_id] > 0:
            raise InvalidArgument("token_id", "the target law cannot draw this token")
        self.committed.check(message.base, message.prefix)
        self.committed.append(message.token_id)
        self._refused_law = None
        return []

    def _receive_need_full_law(self, message: NeedFullLaw) -> list[CloudMessage]:
        if self._is_stale(message):
            return []
        if self._refused_law is None or message.base != len(self.committed):
            raise InvalidArgument("need_full_law", "no law is being drawn from at this position")
        return [FullLaw(*self._frame(message.base), target_probs=self._refused_law)]

    def _frame(self, base: int) -> tuple[int, int, int, int]:
        return self.session, self.epoch, base, self.committed.prefix
