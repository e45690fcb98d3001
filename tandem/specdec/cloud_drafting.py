"""The drafts that the cloud makes itself, for one session: which are due, which wait to be judged,
and how often they stand.

The cloud's machine asks for them where it would decode alone, and judges them in one pass. They
never leave the cloud. What is remembered of the tenant's earlier texts comes first where it is
surer; it takes no model, like drafts by lookup. Invariants: drafts that wait follow the committed
text as it is, or are forgotten; at most one task is under way; the draft KV is valid for as much of
the text as it was fed, whoever made that text since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from tandem.control.cloud_draft_budget import CloudDraftBudget
from tandem.control.pass_budget import SessionAcceptance
from tandem.core.errors import ProtocolError
from tandem.core.text_lookup import GrowingText
from tandem.core.tokens import PrefixedTokens
from tandem.specdec.choices import RejectionPayload, Schedule, Uplink
from tandem.specdec.events import Drafted, DraftTask
from tandem.specdec.messages import Open
from tandem.specdec.ngram_proposer import NgramTexts
from tandem.specdec.presets import Preset, VerifySettings
from tandem.specdec.proposers import AnswerTexts
from tandem.specdec.rules import Proposal

RETRY_AFTER = 32
"""Texts that are not worth drafts before a short try: what is known of acceptance grows old."""
MOST_RETRY_AFTER = 4 * RETRY_AFTER
"""The same where many sessions share the passes: each of them waits for the tries of all."""
RETRY_LENGTH = 2


@dataclass(frozen=True, slots=True)
class SourceBudgets:
    """What says how many drafts are worth their time, of a draft model and of lookup."""

    model: CloudDraftBudget
    lookup: CloudDraftBudget


@dataclass(frozen=True, slots=True)
class DraftingContext:
    """The session that is drafted for, and the limits of its drafts.

    Args:
        committed: the session's text, which its owner alone appends to.
        longest: most tokens to draft at once.
        length_limit: tokens of prompt and answer together.
        ends: the tokens that end the text.
        acceptance: of drafts that this cloud makes.
        longest_remembered: most tokens of what is remembered to judge at once.
        budget: what says how many drafts are worth their time; None: as many as there may be.
        memory: earlier texts to draft from; see `may_recall`.
        prompt_length: so many tokens of the text are the prompt that `memory` begins after."""

    committed: PrefixedTokens
    longest: int
    length_limit: int
    ends: frozenset[int]
    acceptance: SessionAcceptance
    longest_remembered: int = 0
    budget: CloudDraftBudget | None = None
    memory: NgramTexts | None = None
    prompt_length: int = 0


class CloudDrafting:
    """Drafts with the draft model, as many at a time as are worth it."""

    def __init__(self, context: DraftingContext) -> None:
        """Begin with an empty draft KV."""
        committed = context.committed
        self.task: DraftTask | None = None
        self.prefilling = len(committed) > 1
        """Whether the draft model has yet to compute the text that the session begins with."""
        self.draft_s = 0.0
        """What it took to make the drafts that wait."""
        self.from_memory = False
        """Whether the drafts that wait are remembered ones."""
        self._acceptance = context.acceptance
        self._budget = context.budget
        self._committed = committed
        self._length_limit = context.length_limit
        self._ends = context.ends
        # The draft KV holds the first `_fed_from` committed tokens, and then `_fed`.
        self._fed_from = 0
        self._fed: tuple[int, ...] = ()
        self._drafts: tuple[Proposal, ...] = ()
        self._longest = context.longest
        self._longest_remembered = context.longest_remembered
        self._texts = AnswerTexts(None, context.memory)
        # So many tokens of the text the memory has followed.
        self._followed = context.prompt_length
        # How often the remembered drafts that wait are expected to be right.
        self._remembered_rate = 0.0
        self._rested = 0
        # The length of the text that drafting is over for, with drafts or without.
        self._drafted_at = -1

    @property
    def rate(self) -> float:
        """The rate at which the session's drafts are accepted."""
        return self._acceptance.rate

    @property
    def room(self) -> int:
        """Most drafts that are of use: the target adds a token to those that stand."""
        return self._length_limit - len(self._committed) - 1

    @property
    def is_over(self) -> bool:
        """True if the text as it is was drafted after, or is not to be."""
        return self._drafted_at == len(self._committed)

    @property
    def pays(self) -> bool:
        """True unless the last text was not worth a draft."""
        return not self._rested

    @property
    def begun(self) -> int:
        """The number of drafts after the text as it is that are made or being made."""
        if self.task is not None:
            return self.task.count if self.task.position == len(self._committed) else 0
        return len(self._drafts) if self.is_over else 0

    @property
    def proposals(self) -> tuple[Proposal, ...]:
        """The drafts that wait to be judged."""
        return self._drafts if self.is_over else ()

    def due(self) -> DraftTask | None:
        """Return the task that drafts after the text as it is, the same one until it is taken or
        given up; None where nothing is to be drafted by a model."""
        if self.prefilling:
            return self._prefill()
        if self.task is not None or self.is_over:
            return self.task
        self._forget()
        if self._recall(surer_than=self._acceptance.rate):
            return None
        return self._draft(min(self._worth(), self.room))

    def _draft(self, wanted: int) -> DraftTask | None:
        """Return the task that drafts `wanted` tokens after the text; None if that is none."""
        length = len(self._committed)
        if wanted < 1:
            self._drafted_at = length
            return None
        keep = min(self._valid_length, length - 1)
        self.task = DraftTask(
            keep=keep,
            token_ids=self._committed.since(keep),
            position=length,
            count=wanted,
            ends=self._ends,
        )
        return self.task

    def _recall(self, surer_than: float) -> bool:
        """Draft what is remembered to follow the text as it is, if anything is that is surer than
        drafts which are accepted at this rate; return whether there is."""
        if not self._texts.on:
            return False
        self._texts.commit(self._committed.since(self._followed))
        self._followed = len(self._committed)
        texts = self._texts.after((), surer_than)
        draft = texts.proposed
        if draft is None:
            return False
        chance = draft.chance
        most = self._longest_remembered
        if self._budget is not None:
            most = self._budget.drafts(chance, most, by_model=False)
        most = min(most, self.room)
        token_ids = list[int]()
        while len(token_ids) < most and draft is not None:
            token_ids.append(draft.token_id)
            if draft.token_id in self._ends:
                break
            texts = texts.after((draft.token_id,), confirmed=False)
            draft = texts.proposed
        if not token_ids:
            return False
        self._rested = 0
        self._propose(token_ids)
        self.from_memory = True
        self._remembered_rate = chance
        return True

    def _propose(self, token_ids: Sequence[int]) -> None:
        """Have tokens judged that come from no model: whatever the rule, nothing else could have
        been drafted there."""
        self._drafts = tuple(Proposal((token_id,), draft_prob=1.0) for token_id in token_ids)
        self._drafted_at = len(self._committed)

    def _worth(self) -> int:
        """Return the tokens to draft: now and then a few where none are worth it."""
        count = self._longest
        if self._budget is not None:
            count = self._budget.drafts(self._acceptance.next_rate, count)
        return self._or_a_try(count)

    def _or_a_try(self, count: int) -> int:
        """Return `count`, or a few now and then where that is none."""
        self._rested = 0 if count else self._rested + 1
        least = tries_after(self._budget)
        if self._budget is not None:
            least = self._budget.texts_before_try(
                RETRY_LENGTH, least, made=False, unread_tokens=self._unread_tokens
            )
        if self._rested < least:
            return count
        self._rested = 0
        return min(RETRY_LENGTH, self._longest)

    @property
    def _unread_tokens(self) -> int:
        """Tokens of the text that the draft model has to read before it drafts, but for the last
        few."""
        return 0

    def _prefill(self) -> DraftTask:
        """Return the task that computes the text so far but for its last token, which the first
        drafts feed. It drafts nothing."""
        if self.task is None:
            length = len(self._committed)
            text = self._committed.since(0)[:-1]
            self.task = DraftTask(keep=0, token_ids=text, position=length, count=0)
        return self.task

    def take(
        self, task: DraftTask, drafts: Sequence[Drafted], kv_length: int, draft_s: float
    ) -> bool:
        """Take what a task brought; False for one that is not under way.

        Args:
            task: what `due` gave.
            drafts: its tokens, in order; none for a prefill.
            kv_length: tokens that the draft KV now holds.
            draft_s: what drafting them took."""
        if task is not self.task:
            return False
        if len(drafts) > task.count or (task.count and not drafts):
            raise ProtocolError(f"1…{task.count} drafts expected", f"{len(drafts)} drafts")
        self.task = None
        self._fed_from = min(kv_length, task.position)
        self._fed = tuple(each.token_id for each in drafts)[: max(0, kv_length - task.position)]
        if self.prefilling:
            self.prefilling = False
            return True
        self._drafts = tuple(map(_proposal_of, drafts))
        self._drafted_at = task.position
        self.draft_s = draft_s
        return True

    def give_up(self) -> None:
        """Give up the task under way, which is void. The draft KV holds what it held before, or
        more: the next task says how much of it to keep."""
        if self.task is None:
            return
        keep = self.task.keep
        self.task = None
        self._fed = self._fed[: max(0, keep - self._fed_from)]
        self._fed_from = min(self._fed_from, keep)

    def limit(self, length: int) -> None:
        """Draft for no position from `length` on."""
        self._length_limit = min(self._length_limit, length)

    def judged(self, accepted: int, rejected: int) -> None:
        """Record what became of drafts; they wait no more. The memory sees by itself which of its
        own were right."""
        if not self.from_memory:
            self._acceptance.judged(accepted, rejected)
        self._forget()

    def _forget(self) -> None:
        self._drafts = ()
        self.draft_s = 0.0
        self.from_memory = False

    @property
    def _valid_length(self) -> int:
        """Tokens of the committed text that the draft KV holds."""
        after = self._committed.since(self._fed_from)
        agreed = takewhile(lambda pair: pair[0] == pair[1], zip(self._fed, after, strict=False))
        return self._fed_from + sum(1 for _ in agreed)


def _proposal_of(drafted: Drafted) -> Proposal:
    """Return a draft with the distribution it was drawn from, if the rule asked for one."""
    probs = drafted.draft_probs if drafted.draft_probs.size else None
    return Proposal((drafted.token_id,), draft_probs=probs)


class CloudLookup(CloudDrafting):
    """The same where drafts are looked up in the text: without a model, and so without tasks."""

    def __init__(self, context: DraftingContext) -> None:
        super().__init__(context)
        self.prefilling = False
        self._text = GrowingText()

    def due(self) -> DraftTask | None:
        """Look up what may follow the text as it is, in earlier texts first; there is never a
        task."""
        if not self.is_over:
            self._forget()
            if not self._recall(surer_than=0.0):
                self._text.extend(self._committed.since(len(self._text)))
                self._propose(self._text.followers(min(self._worth(), self.room)))
        return None


class CloudDraftsOfAnyKind(CloudDrafting):
    """Drafts by lookup, or with the draft model where there is one: in each place what is expected
    to bring tokens faster. The draft model computes no text before its drafts are worth it."""

    def __init__(
        self,
        context: DraftingContext,
        *,
        lookup_acceptance: SessionAcceptance,
        budgets: SourceBudgets,
        has_model: bool,
    ) -> None:
        """Begin as `CloudDrafting` does.

        Args:
            context: the session; its `acceptance` is of the draft model's drafts.
            lookup_acceptance: of what is looked up.
            budgets: what says how many drafts of each source are worth their time.
            has_model: whether there is a draft model."""
        super().__init__(context)
        self._budgets = budgets
        self._has_model = has_model
        self._unread = has_model and self.prefilling
        self.prefilling = self._unread and self._model_count() > 0
        self._lookup_acceptance = lookup_acceptance
        self._lookup_rested = 0
        self._text = GrowingText()
        self._looked_up = False

    @property
    def rate(self) -> float:
        """The rate at which drafts of the source are accepted that the last ones are of."""
        return self._lookup_acceptance.rate if self._looked_up else self._acceptance.rate

    def faster_than(self, others: int, acceptance_rate: float) -> bool:
        """Return whether what is drafted after the text as it is, or would be, brings tokens faster
        than `others` drafts from elsewhere, which are there already."""
        budget = self._budgets.model
        rate = self._acceptance.next_rate
        if self._looks_up:
            budget = self._budgets.lookup
            rate = self._lookup_acceptance.next_rate
        elif self.proposals and self.from_memory:
            budget = self._budgets.lookup
            rate = self._remembered_rate
        if self.task is not None or self.is_over:
            count = self.begun
        else:
            count = 0 if self._unread else min(self._model_count(), self.room)
        speed = budget.speed(rate, count, made=bool(self.proposals))
        return speed > budget.speed(acceptance_rate, others, made=True)

    @property
    def _unread_tokens(self) -> int:
        return len(self._committed) if self._unread else 0

    @property
    def _looks_up(self) -> bool:
        return self._looked_up and self.is_over

    def _model_count(self) -> int:
        if not self._has_model:
            return 0
        budget = self._budgets.model
        return budget.drafts(self._acceptance.next_rate, budget.longest(self._longest))

    def due(self) -> DraftTask | None:
        """Return the task of the draft model, if what it would draft is better than what is
        remembered or looked up."""
        if self.prefilling:
            return self._prefill()
        if self.task is not None or self.is_over:
            return self.task
        self._forget()
        if self._recall(surer_than=self._acceptance.rate if self._has_model else 0.0):
            return None
        followers = self._lookup()
        worth = self._model_count()
        wanted = min(self._or_a_try(worth), self.room) if self._has_model else 0
        model_speed = self._budgets.model.speed(self._acceptance.next_rate, wanted)
        lookup_rate = self._lookup_acceptance.next_rate
        lookup_speed = self._budgets.lookup.speed(lookup_rate, len(followers))
        is_try = wanted > worth  # of the model, whose drafts are not expected to pay
        if followers and lookup_speed >= model_speed and not is_try:
            self._looked_up = True
            self._propose(followers)
            return None
        if self._unread and wanted > 0:
            self.prefilling = True
            return self._prefill()
        return self._draft(wanted)

    def _lookup(self) -> tuple[int, ...]:
        """Return what may follow the text by lookup, as much of it as is worth its rows; now and
        then a little where it is not worth it."""
        self._text.extend(self._committed.since(len(self._text)))
        budget = self._budgets.lookup
        count = budget.drafts(self._lookup_acceptance.next_rate, budget.longest(self._longest))
        self._lookup_rested = 0 if count else self._lookup_rested + 1
        if self._lookup_rested >= budget.texts_before_try(RETRY_LENGTH, RETRY_AFTER, made=True):
            self._lookup_rested = 0
            count = RETRY_LENGTH
        return self._text.followers(max(0, min(count, self.room)))

    def take(
        self, task: DraftTask, drafts: Sequence[Drafted], kv_length: int, draft_s: float
    ) -> bool:
        if task is self.task and self.prefilling:
            self._unread = False
        return super().take(task, drafts, kv_length, draft_s)

    def judged(self, accepted: int, rejected: int) -> None:
        if self.from_memory:  # which sees by itself what was right
            self._forget()
            return
        acceptance = self._lookup_acceptance if self._looked_up else self._acceptance
        acceptance.judged(accepted, rejected)
        self._forget()

    def _forget(self) -> None:
        super()._forget()
        self._looked_up = False


def tries_after(budget: CloudDraftBudget | None) -> float:
    """Return how many texts in a row that are not worth drafts come before a try.

    Each session that shares the passes makes tries, waits for those of all others, and knows what
    became of them. So that tries take the same part of the time with any number of sessions, each
    makes fewer where there are more.

    Args:
        budget: of the drafts that are tried; None: the session has the passes to itself."""
    sessions = 1.0 if budget is None else budget.sessions
    return min(MOST_RETRY_AFTER, RETRY_AFTER * sessions)


def may_recall(opening: Open) -> bool:
    """Return whether a session's text may be drafted from what is remembered in the cloud: where
    the cloud drafts, the caller lets it, and a seed gives the same text with any drafts, unless the
    preset says otherwise."""
    settings = opening.settings
    if not (opening.allows_memory and settings.may_draft_in_cloud):
        return False
    same_text = settings.drafter_invariant or opening.params.sampling.greedy
    return same_text or settings.recalls


def cloud_draft_preset(settings: VerifySettings) -> Preset:
    """Return how the cloud's drafts are drawn: from the whole distribution of the draft model after
    sampling settings, as nothing of it is sent."""
    length = settings.cloud_draft_length
    return Preset(
        name=settings.preset_name,
        schedule=Schedule(length, length),
        acceptance=settings.acceptance,
        uplink=Uplink.IDS,
        rejection_payload=RejectionPayload.TOKEN,
    )
