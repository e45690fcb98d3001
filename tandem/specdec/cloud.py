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

from collections.abc import Callable
from enum import StrEnum

from tandem.control.acceptance import PooledAcceptanceRate, SessionAcceptanceRate
from tandem.control.cloud_draft_budget import CloudDraftBudget
from tandem.control.pass_budget import PassBudget
from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.core.probs import Array, one_hot
from tandem.core.randomness import RandomSource, SeededRandom
from tandem.core.sparse_payload import FullPayload, SparsePayload
from tandem.specdec.choices import CloudDrafts
from tandem.specdec.cloud_checks import (
    CloudModel,
    check_draft,
    check_open,
    opened_text,
)
from tandem.specdec.cloud_drafting import (
    CloudDrafting,
    DraftingContext,
    may_recall,
)
from tandem.specdec.events import Drafted, DraftTask
from tandem.specdec.judge import Judge, Steps, Verification, chain_steps
from tandem.specdec.logprobs import LogprobsRecorder, PromptReader, parts_of
from tandem.specdec.messages import (
    Cancel,
    CloudMessage,
    CloudRoundFrame,
    Committed,
    Drafts,
    EdgeMessage,
    EdgeRoundFrame,
    FrameHeader,
    GoingAway,
    Open,
    Opened,
    Ping,
    Pong,
    PromptLogprobs,
    Work,
)
from tandem.specdec.ngram_proposer import NgramTexts
from tandem.specdec.pending_drafts import PendingDrafts
from tandem.specdec.rounds.cloud import CloudRounds
from tandem.specdec.rules import PayloadRule, TargetProbs, acceptance_rule, payload_rule
from tandem.specdec.verify_task import VerifyTask


class State(StrEnum):
    """What the machine does or waits for."""

    IDLE = "idle"
    """A pass may begin, if it is anybody's `Turn`."""
    DRAFTING = "drafting"
    """The next pass is over drafts that the cloud makes now."""
    PASS = "pass"
    """A pass is in flight. Drafts that arrive wait for the next one."""
    NEEDS_RECOVERED = "needs_recovered"
    """Nothing continues before the edge has drawn the token in the place of a rejected draft."""
    ENDED = "ended"
    """The answer is complete, or the edge is done with it."""


class Turn(StrEnum):
    """Whose drafts the next pass is over. It follows from what waits and what is known."""

    EDGE = "edge"
    """Drafts of the edge are there, and go before all others."""
    OWN = "own"
    """The cloud would decode alone, and drafts first."""
    ALONE = "alone"
    """Nobody's: the cloud decodes alone."""
    PREPARE = "prepare"
    """Part of the edge's drafts is there, and is fed before the rest comes."""
    NOBODY = "nobody"
    """The cloud waits for the edge."""


class CloudMachine:
    """One session, from its opening frame to its end.

    Raises InvalidArgument for bad frames, ProtocolError for wrong use by the caller, PrefixMismatch
    when the two committed texts differ."""

    def __init__(
        self,
        opening: Open,
        model: CloudModel,
        rng: RandomSource | None = None,
        budget: PassBudget | None = None,
        tenant_share: Callable[[], float] = lambda: 1.0,
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
            tenant_share: returns how many sessions the tenant has, relative to an even share.
            draft_budget: of the drafts that the cloud makes itself, shared as `budget` is.
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
        self._prompt_length = len(opening.prompt_ids)
        self._length_limit = self._prompt_length + params.max_tokens
        self._eos = frozenset() if params.ignore_eos else model.eos_token_ids
        self._rounds = CloudRounds(
            opening.settings,
            model,
            self.rule,
            rng,
            seed=params.seed,
            committed=self.committed,
            length_limit=self._length_limit,
            append=self._append,
        )
        self.early_verdicts = self._rounds.early_verdicts
        """Early verdicts of the pass in flight that wait for the link."""
        self.exits = self._rounds.exits
        """The early exits that judge."""
        self._pending = PendingDrafts(self.committed, self.settings.window, self._length_limit)
        # The target of the position after the committed text, where a pass gave it already.
        self._next_target: TargetProbs | None = None
        self._in_flight: VerifyTask | None = None
        self._budget = budget if opening.settings.allows_partial_verification else None
        self._tenant_share = tenant_share
        self._acceptance = SessionAcceptanceRate(
            budget.acceptance if budget else PooledAcceptanceRate()
        )
        self._has_draft_model = has_draft_model
        self._cloud_drafting: CloudDrafting | None = None
        if opening.settings.may_draft_in_cloud:
            known = memory if may_recall(opening) else None
            self._cloud_drafting = self._drafting_of(draft_budget, known)
        # What the draft model does while the next pass waits for it.
        self._awaited_task: DraftTask | None = None

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
        sources = () if memory is None else (memory,)
        if not sources and kind is not CloudDrafts.MODEL:
            prompt = self.committed.since(0)[: self._prompt_length]
            sources = (NgramTexts(prompt, self._model.vocabulary_size),)
        return CloudDrafting(
            DraftingContext(
                committed=self.committed,
                pending=self._pending,
                longest=longest,
                length_limit=self._length_limit,
                ends=self._eos,
                acceptance=SessionAcceptanceRate(
                    draft_budget.acceptance if draft_budget else PooledAcceptanceRate()
                ),
                prompt_length=self._prompt_length,
                sources=sources,
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
        if self._awaited_task is not None:
            return State.DRAFTING
        return State.NEEDS_RECOVERED if self._rounds.waits else State.IDLE

    @property
    def finished(self) -> bool:
        """True if the answer is complete: end of text, or its length limit."""
        length, start = self.committed.end, self.committed.start
        return length >= self._length_limit or (length > start and self.committed.last in self._eos)

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
            **self._header(self.committed.end),
            max_draft_length=model.max_draft_length,
            eos_token_ids=model.eos_token_ids,
            model_name=model.model_name,
            cached_tokens=self.kv_length,
            same_bits=model.same_bits,
            batch_invariant=model.batch_invariant,
            row_share=model.row_share,
            drafts_never_pay=model.drafts_never_pay,
            cloud_drafts=self._cloud_drafts_here,
        )

    @property
    def _cloud_drafts_here(self) -> CloudDrafts:
        """What this cloud drafts of what it was asked for."""
        if self.settings.cloud_drafts is not CloudDrafts.ANY:
            return self.settings.cloud_drafts
        return CloudDrafts.MODEL if self._has_draft_model else CloudDrafts.LOOKUP

    def going_away(self) -> GoingAway:
        """Ask the edge to finish its round and reconnect."""
        return GoingAway(**self._header(self.committed.end))

    # Frames of the edge.

    def receive(self, message: EdgeMessage) -> list[CloudMessage]:
        """Take one frame; return what is to be sent at once."""
        if message.session != self.session:
            raise InvalidArgument("session", f"{message.session} is not this stream's session")
        if self.ended:
            return []
        self._awaited_task = None
        match message:
            case Drafts():
                return self._receive_draft(message)
            case EdgeRoundFrame():
                return self._rounds.receive(message, self._header(self.committed.end))
            case Ping():
                return [Pong(**self._header(self.committed.end), nonce=message.nonce)]
            case Cancel():
                self.ended = True
                self._pending.clear()
                self._rounds.end()
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
            self._rounds.receive_tree(draft)
            return []
        ready = draft.end_of_chunk or self.settings.verify_on_arrival
        if not self._pending.add(draft, ready=ready):
            # Other tokens are committed, or wait, than were drafted: the edge learns it from what
            # is committed. The distribution kept for what follows the text stays as it is.
            return []
        return self._judge_at_once()

    # The forward pass that is due.

    @property
    def turn(self) -> Turn:
        """Whose drafts the next pass is over."""
        if self.state is not State.IDLE:
            return Turn.NOBODY
        waiting = self._pending
        if self._rounds.tree is not None or (waiting.ready and not waiting.own):
            return Turn.EDGE
        if self._is_due_without_drafts():
            return Turn.OWN if self._drafts_first() else Turn.ALONE
        prepares = (
            self.settings.prepare_on_arrival and waiting and not self._rounds.prefilled_targets
        )
        return Turn.PREPARE if prepares else Turn.NOBODY

    def work(self) -> VerifyTask | None:
        """Return the forward pass that is due now, if any; it stays in flight until `complete`."""
        turn = self.turn
        if turn is Turn.NOBODY or (turn is Turn.OWN and self._waits_for_own_drafts()):
            return None
        self._in_flight = self._pass_of(turn)
        if self._cloud_drafting is not None:
            self._cloud_drafting.give_up()
        return self._in_flight

    def _pass_of(self, turn: Turn) -> VerifyTask:
        unfed = self.committed.since(self._kv_length + len(self._rounds.kept_path))
        if turn is Turn.PREPARE:
            return self._preparation(unfed)
        if self._rounds.tree is not None and len(unfed) < 2:
            return self._tree_pass(unfed)
        return self._chain_pass(unfed)  # a longer text before its tree: that mask costs less

    def _chain_pass(self, unfed: tuple[int, ...]) -> VerifyTask:
        """Return the pass over the drafts that are ready, if any, after the text that is not fed
        yet."""
        drafts = self._pending.ready
        own = self._pending.own and drafts > 0
        proposals = self._pending.first_ready() if drafts else ()
        if self._budget is not None and not own:
            rate = self._acceptance.next_rate
            drafts = self._budget.drafts(rate, drafts, tenant_share=self._tenant_share())
            proposals = proposals[: drafts + 1]  # the last needs no more than the rows before it
        judge = self._judge(chain_steps(proposals), bonus=drafts == len(proposals), own=own)
        waiting = self._pending.token_ids if drafts else ()
        prepared = waiting[: len(self._rounds.prefilled_targets)]
        prompt_reader = early = None
        if self._unread_prompt:
            prompt_reader = PromptReader(self._unread_prompt, self._top_logprobs)
        if self.exits and drafts and not own:
            bonus = self.settings.bonus and len(self._pending) == drafts
            early = self._rounds.early_judge(judge, self._header(judge.base), bonus=bonus)
        return VerifyTask(
            keep=self._kv_length + len(prepared),
            token_ids=(*unfed, *waiting[len(prepared) : drafts]),
            logits_to_keep=drafts + 1 - len(judge.known),
            drafts=drafts - len(prepared),
            judge=judge,
            early=early,
            path=self._rounds.kept_path,
            prepared=prepared,
            hidden=self._rounds.hidden.take(),
            first_layer=self.settings.split_layers,
            prompt_reader=prompt_reader,
            by_cloud=own,
        )

    def _preparation(self, unfed: tuple[int, ...]) -> VerifyTask:
        """Return the pass that feeds the first drafts of a chunk which is not whole yet."""
        drafts = self._pending.token_ids
        known = self._next_target is not None
        judge = self._rounds.preparation(len(drafts), known=known)
        return VerifyTask(
            keep=self.kv_length,
            token_ids=(*unfed, *drafts),
            logits_to_keep=judge.rows,
            drafts=len(drafts),
            judge=judge,
        )

    def _tree_pass(self, unfed: tuple[int, ...]) -> VerifyTask:
        """Return the pass over the tree that waits, after the committed token that is `unfed`, if
        one is."""
        tree = self._rounds.tree
        assert tree is not None, "a tree waits"
        before = len(unfed)
        return VerifyTask(
            keep=self.kv_length,
            token_ids=(*unfed, *tree.token_ids),
            logits_to_keep=before + len(tree.token_ids),
            drafts=len(tree.token_ids),
            judge=self._judge(tree.steps),
            parents=(*(-1 for _ in unfed), *(parent + before for parent in tree.parents)),
            path=self._rounds.kept_path,
        )

    def _judge(self, steps: Steps, bonus: bool = True, own: bool = False) -> Judge:
        """Return the judge of drafts after the text. Nobody else knows the cloud's `own`: it draws
        the token in the place of a rejected one."""
        payloads = PayloadRule(self.rule, self._payloads.rng) if own else self._payloads
        return Judge(
            base=self.committed.end,
            steps=steps,
            rule=self.rule,
            payloads=payloads,
            eos=self._eos,
            length_limit=self._length_limit,
            known=self._cached_targets,
            bonus=bonus,
        )

    @property
    def _cached_targets(self) -> tuple[TargetProbs, ...]:
        """The targets from the end of the committed text on that passes gave already."""
        return (
            ()
            if self._next_target is None
            else (self._next_target, *self._rounds.prefilled_targets)
        )

    def _is_due_without_drafts(self) -> bool:
        """Return whether a pass without drafts is due: for the prompt, which needs none, and after
        it where the cloud decodes alone."""
        if self._next_target is not None or not self._rounds.hidden.complete(self.committed.end):
            return False
        return self.target_passes == 0 or self.settings.decode_when_idle

    def push_early_verdict(self, work: VerifyTask, verdict: CloudRoundFrame) -> None:
        """Queue an exit's verdict in `early_verdicts`, to be sent before the pass for `work`
        ends."""
        if work is self._in_flight and not self.ended:
            self._rounds.push_early_verdict(verdict)

    # What the cloud drafts itself.

    def draft_task(self) -> DraftTask | None:
        """Return what the draft model in the cloud is to do now, if anything: the same task until
        `drafted` is called with it, or until it is void and another one or none is due."""
        drafting = self._cloud_drafting
        if drafting is None or self.state is State.ENDED:
            return None
        if self._awaited_task is not None:
            return self._awaited_task
        if drafting.prefilling or self.turn is Turn.OWN:
            return drafting.due()
        drafting.give_up()
        return None

    def drafted(self, task: DraftTask, drafts: list[Drafted], kv_length: int) -> None:
        """Take what a task of `draft_task` brought; what a void one brought is dropped.

        Args:
            task: what `draft_task` gave.
            drafts: its tokens, in order; none where it asks for none.
            kv_length: tokens that the draft KV now holds."""
        if self._cloud_drafting is not None:
            self._awaited_task = None
            self._cloud_drafting.take(task, drafts, kv_length)

    def limit_cloud_drafts(self, length: int) -> None:
        """Draft nothing in the cloud for positions from `length` on: the draft model reads no
        longer text."""
        if self._cloud_drafting is not None:
            self._cloud_drafting.limit(length)

    def go_without_cloud_drafts(self) -> None:
        """Draft nothing in the cloud from now on: its draft model does not work, or the session is
        over. The text keeps its distribution."""
        self._cloud_drafting = self._awaited_task = None

    def _drafts_first(self) -> bool:
        """Return whether the cloud drafts before it decodes alone. The first pass has no drafts,
        since it computes the prompt meanwhile; but where the text depends on drafts, a resumed
        session has them where it had them before."""
        if self._cloud_drafting is None or (self._pending and not self._pending.own):
            return False
        at_start = self.rule.drafter_invariant or self.committed.end == self._prompt_length
        return self.target_passes > 0 or not at_start

    def _waits_for_own_drafts(self) -> bool:
        """Return whether the pass that is due is to judge drafts that the cloud is making. While
        the draft model computes a long prompt, the cloud goes on alone, unless the text would
        depend on how long that takes. Until something happens it waits for the same task, whatever
        other sessions' passes, which another thread counts, make of it since."""
        drafting = self._cloud_drafting
        assert drafting is not None, "it is its turn"
        if drafting.prefilling and self.rule.drafter_invariant:
            return False
        self._awaited_task = drafting.due()
        return self._awaited_task is not None

    # What a pass found.

    def complete(self, verification: Verification, cost: Work) -> list[CloudMessage]:
        """Take what the judge of the work in flight found. Drafts that came while the pass ran wait
        for their own: a chunk gets one verdict, so that the text does not depend on arrival
        times."""
        if (work := self._in_flight) is None:
            raise ProtocolError("no work in flight", "complete")
        self._in_flight = None
        self._rounds.early_verdicts.clear()
        self.target_passes += 1
        if self.ended:
            return []
        self._unread_prompt = ()
        if not isinstance(work.judge, Judge):
            self._keep_prefilled(verification)
            return self._judge_at_once()
        return [*self._prompt_frames(verification), *self._outcome_of(verification, work, cost)]

    def _keep_prefilled(self, verification: Verification) -> None:
        """Keep the targets of a preparation; the KV holds its drafts after the committed text."""
        targets = verification.targets
        if self._next_target is None:
            self._next_target, *rest = targets
            targets = tuple(rest)
        self._rounds.prefilled_targets = targets
        self._kv_length = self.committed.end

    def _prompt_frames(self, verification: Verification) -> list[CloudMessage]:
        if not verification.prompt_logprobs:
            return []
        header = self._header(self.committed.end)
        return [
            PromptLogprobs(**header, first=first, logprobs=logprobs)
            for first, logprobs in parts_of(verification.prompt_logprobs)
        ]

    def _outcome_of(
        self, verification: Verification, work: VerifyTask, cost: Work
    ) -> list[CloudMessage]:
        """Commit what was accepted, and what comes after it."""
        base = self.committed.end
        accepted = len(verification.path)
        rejected = int(verification.replacement is not None)
        of_edge = max(len(work.prepared) + work.drafts, accepted + rejected)
        judged = 0 if work.by_cloud else of_edge
        cost = Work(
            verify_s=cost.verify_s,
            queue_s=cost.queue_s,
            batch_size=cost.batch_size,
            target_passes=self.target_passes,
            drafts=judged,
            cloud_drafts=work.drafts if work.by_cloud else 0,
        )
        if work.by_cloud:
            self._judge_own(work.drafts, accepted, rejected)
        elif judged:
            self._acceptance.add(accepted, rejected)
        self._keep_judged(verification, work)
        path = verification.path if work.parents is not None else ()
        if rejected:
            return self._reject(verification, base, cost, path, own=work.by_cloud)
        self._bonus_token(verification)
        committed = self._committed_since(
            base, cost, accepted=accepted, own=work.by_cloud, path=path
        )
        return [*committed, *self._judge_at_once()]

    def _judge_own(self, drafts: int, accepted: int, rejected: int) -> None:
        """Record what became of drafts that the cloud made itself."""
        if (drafting := self._cloud_drafting) is None:
            return
        if drafting.from_memory:
            self.proposed_memory_tokens += drafts
            self.accepted_memory_tokens += accepted
        drafting.judged(accepted, rejected)

    def commit_forced_tokens(self, next_forced: Callable[[], int | None]) -> list[CloudMessage]:
        """Commit the tokens that alone may follow the text, where no edge drafts them: no pass has
        to say them.

        Args:
            next_forced: the only token that a grammar leaves after the text as it is then; None
                where it leaves several."""
        if self.settings.drafts or self._next_target is not None:
            return []
        base = self.committed.end
        while self.state is State.IDLE and (token_id := next_forced()) is not None:
            self._commit(token_id, one_hot(self._model.vocabulary_size, token_id))
        return self._committed_since(base)

    def _committed_since(
        self,
        base: int,
        cost: Work | None = None,
        *,
        accepted: int = 0,
        own: bool = False,
        draw_from: FullPayload | SparsePayload | None = None,
        path: tuple[int, ...] = (),
    ) -> list[CloudMessage]:
        """Return the frame that tells the edge what is committed from `base` on, if anything is, or
        what it is to draw the next token from.

        Args:
            base: first position.
            cost: of a pass; None where none was needed.
            accepted: so many of these tokens are drafts.
            own: whether they are the cloud's own, which the edge has not; else they are its.
            draw_from: in the place of a draft that was refused.
            path: the accepted nodes of a tree."""
        if self.committed.end == base and draw_from is None:
            return []
        of_edge = 0 if own else accepted
        return [
            Committed(
                **self._header(base),
                accepted=of_edge,
                token_ids=self.committed.since(base + of_edge),
                work=cost or Work(target_passes=self.target_passes),
                logprobs=self._logprobs_recorder.take(),
                cloud_accepted=accepted - of_edge,
                draw_from=draw_from,
                path=path,
            )
        ]

    def _keep_judged(self, verification: Verification, work: VerifyTask) -> None:
        """Commit what was judged; of a tree's nodes the KV keeps those on the path."""
        if work.parents is None:
            accepted = len(verification.path)
            # Rejected drafts were fed too, and the token in place of the first one was not.
            self._kv_length = min(self.committed.end + accepted, work.kept + len(work.token_ids))
            self._rounds.kept_path = ()
        else:
            self._kv_length = work.kept
            self._rounds.keep_path(verification, len(work.token_ids) - work.drafts)
        self._forget_targets()
        self._commit_judged(verification)

    def _commit_judged(self, verification: Verification) -> None:
        """Commit the accepted drafts, and the token in the place of a rejected one if the cloud
        has drawn it."""
        token_ids = verification.token_ids
        if isinstance(verification.replacement, int):
            token_ids = (*token_ids, verification.replacement)
        if token_ids:
            self._append(*token_ids)
        if self._logprobs_recorder.enabled:
            for token_id, target in zip(token_ids, verification.targets, strict=False):
                self._logprobs_recorder.note(target, token_id)

    def _commit(self, token_id: int, target: TargetProbs) -> None:
        self._append(token_id)
        self._logprobs_recorder.note(target, token_id)

    def _append(self, *token_ids: int) -> None:
        """Commit tokens. The drafts that wait for their positions, if any do, are judged by that:
        if one is another token, all that follow it are void."""
        self.committed.extend(token_ids)
        self._pending.pass_by(token_ids)

    def _bonus_token(self, verification: Verification) -> None:
        """Commit the cloud's own token after the accepted drafts, unless the text is complete or a
        draft is next."""
        target = verification.next_target
        if target is None:
            return
        bonus = bool(verification.path) and self.settings.bonus
        if self._pending or not (bonus or self.settings.decode_when_idle):
            self._next_target = target
            return
        self._commit(self.rule.target_token(target, self.committed.end), target)

    def _reject(
        self,
        verification: Verification,
        base: int,
        cost: Work,
        path: tuple[int, ...] = (),
        *,
        own: bool = False,
    ) -> list[CloudMessage]:
        """Tell of a rejection that is committed, or have the edge draw the recovered token. Until
        that is known the rejected draft waits, and all after it."""
        draw_from = None
        if not isinstance(verification.replacement, int):
            draw_from = verification.replacement
            target = verification.next_target
            assert target is not None, "the rejected position was judged"
            self._rounds.let_draw(target)
        accepted = len(verification.path)
        return self._committed_since(
            base, cost, accepted=accepted, own=own, draw_from=draw_from, path=path
        )

    def _judge_at_once(self) -> list[CloudMessage]:
        """Judge the first drafts by the distributions kept from earlier passes, if there are any.
        A rejection needs no pass; an acceptance waits for one, unless passes may be cut short."""
        if self._next_target is None or not self._pending.ready or self.state is not State.IDLE:
            return []
        known = len(self._cached_targets)
        judge = self._judge(chain_steps(self._pending.first_ready()[:known]), bonus=False)
        verification = judge.judge(_no_row)
        accepted = len(verification.path)
        if verification.replacement is not None:
            self._acceptance.add(accepted, 1)
            if accepted:  # they were fed ahead
                self._kv_length = self.committed.end + accepted
            self._commit_judged(verification)
            self._forget_targets()
            cost = Work(target_passes=self.target_passes, drafts=accepted + 1)
            return self._reject(verification, judge.base, cost)
        if self._budget is None:
            return []
        self._acceptance.add(1, 0)
        self._next_target = None
        self._commit_judged(verification)
        cost = Work(target_passes=self.target_passes, drafts=1)
        return self._committed_since(judge.base, cost, accepted=1)

    def _forget_targets(self) -> None:
        self._next_target = None
        self._rounds.prefilled_targets = ()

    def _header(self, base: int) -> FrameHeader:
        """Return the header of every frame; the hash is that of all committed tokens."""
        return {
            "session": self.session,
            "base": base,
            "prefix_hash": self.committed.prefix,
        }


def _no_row(row: int) -> Array:
    raise AssertionError("no pass has given this distribution")
