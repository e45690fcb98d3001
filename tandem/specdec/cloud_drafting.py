"""The drafts that the cloud makes itself, for one session: which are due, and how often they stand.

The cloud's machine asks for them where it would decode alone. They wait among the edge's, marked as
its own, are judged as these are, and never leave the cloud. What texts propose takes no model, and
comes first where it is surer, or brings tokens faster.

Invariants: at most one task is under way; the draft KV is valid for as much of the text as it was
fed, whoever made that text since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from tandem.control.acceptance import SessionAcceptanceRate
from tandem.control.cloud_draft_budget import CloudDraftBudget
from tandem.core.errors import ProtocolError
from tandem.core.tokens import PrefixedTokens
from tandem.specdec.choices import RejectionPayload, Schedule, Uplink
from tandem.specdec.events import Drafted, DraftTask
from tandem.specdec.messages import Open
from tandem.specdec.pending_drafts import PendingDrafts
from tandem.specdec.presets import Preset, VerifySettings
from tandem.specdec.proposers import AnswerTexts, Proposed, Source
from tandem.specdec.rules import Proposal

PROBE_INTERVAL = 32
"""Rounds that are not worth drafts before a short try: what is known of acceptance grows old."""
PROBE_LENGTH = 2


@dataclass(frozen=True, slots=True)
class DraftingContext:
    """The session that is drafted for, and the limits of its drafts.

    Args:
        committed: the session's text, which its owner alone appends to.
        pending: the drafts that wait, which those of the cloud are put among.
        longest: most tokens to draft at once with the draft model.
        length_limit: tokens of prompt and answer together.
        ends: the tokens that end the text.
        acceptance: of the draft model's drafts.
        prompt_length: so many tokens of the text are the prompt that `sources` begin after.
        sources: what to propose from without a model, the best first; see `may_recall`.
        longest_from_texts: most tokens from `sources` to judge at once.
        remembers: whether they have the tenant's earlier texts.
        has_model: whether there is a draft model.
        budget: what says how many drafts are worth their time; None: as many as there may be.
        chooses: whether the draft model drafts only where that brings tokens faster than
            `sources` or nothing do; with a `budget`."""

    committed: PrefixedTokens
    pending: PendingDrafts
    longest: int
    length_limit: int
    ends: frozenset[int]
    acceptance: SessionAcceptanceRate
    prompt_length: int
    sources: tuple[Source, ...] = ()
    longest_from_texts: int = 0
    remembers: bool = False
    has_model: bool = True
    budget: CloudDraftBudget | None = None
    chooses: bool = False


class CloudDrafting:
    """Drafts from texts, or with the draft model, as many at a time as are worth it."""

    def __init__(self, context: DraftingContext) -> None:
        """Begin with an empty draft KV."""
        self.task: DraftTask | None = None
        self._context = context
        self._committed = context.committed
        self._pending = context.pending
        self._acceptance = context.acceptance
        self._length_limit = context.length_limit
        # Whether the draft model has yet to compute the text that the session begins with.
        self._unread = context.has_model and len(context.committed) > 1
        self.prefilling = self._unread and (not context.chooses or self._model_count() > 0)
        """Whether it is to do so now, or does it."""
        # The draft KV holds the first `_fed_from` committed tokens, and then `_fed`.
        self._fed_from = 0
        self._fed: tuple[int, ...] = ()
        self._texts = AnswerTexts(*context.sources)
        # So many tokens of the text the texts have followed.
        self._followed = context.prompt_length
        self._of_texts = False
        """Whether the drafts that wait are from texts."""
        self._rounds_since_draft = 0
        # The length of the text that drafting is over for, with drafts or without.
        self._drafted_at = -1

    @property
    def from_memory(self) -> bool:
        """Whether the drafts that wait are remembered ones."""
        return self._of_texts and self._context.remembers

    @property
    def room(self) -> int:
        """Most drafts that are of use: the target adds a token to those that stand."""
        return self._length_limit - len(self._committed) - 1

    def due(self) -> DraftTask | None:
        """Return the task that drafts after the text as it is, the same one until it is taken or
        given up; None where nothing is to be drafted by a model."""
        if self.prefilling:
            return self._prefill()
        if self.task is not None or self._drafted_at == len(self._committed):
            return self.task
        self._forget()
        proposed = self._from_texts()
        if proposed and not self._context.chooses:
            self._rounds_since_draft = 0
            self._propose(proposed)
            return None
        worth = self._model_count()
        count = self._maybe_probe(worth) if self._context.has_model else 0
        if proposed and not self._model_is_faster(proposed, worth, count):
            self._propose(proposed)
            return None
        if self._unread and count > 0:
            self.prefilling = True
            return self._prefill()
        return self._draft(min(count, self.room))

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
            ends=self._context.ends,
        )
        return self.task

    def _from_texts(self) -> list[Proposed]:
        """Return what texts propose after the text as it is, as much of it as is worth its rows.
        Where the draft model drafts whatever it costs, only what is surer than its drafts."""
        if not self._texts.on:
            return []
        self._texts.commit(self._committed.since(self._followed))
        self._followed = len(self._committed)
        texts = self._texts.after((), self._acceptance.rate)
        if self._context.chooses or not self._context.has_model:
            texts = texts.however_sure()
        if (first := texts.proposed) is None:
            return []
        most = self._context.longest_from_texts
        if self._context.budget is not None:
            most = self._context.budget.drafts(first.chance, most, by_model=False)
        proposed = texts.row(min(most, self.room))
        ends = [draft.token_id in self._context.ends for draft in proposed]
        return proposed[: ends.index(True) + 1] if True in ends else proposed

    def _propose(self, proposed: Sequence[Proposed]) -> None:
        """Have tokens judged that come from no model: whatever the rule, nothing else could have
        been drafted there."""
        self._pending.add_own(Proposal((draft.token_id,), draft_prob=1.0) for draft in proposed)
        self._drafted_at = len(self._committed)
        self._of_texts = True

    def _model_is_faster(self, proposed: Sequence[Proposed], worth: int, count: int) -> bool:
        """Return whether `count` drafts of the model bring tokens faster than those from texts; or
        are a probe, where none are `worth` their time."""
        assert self._context.budget is not None, "it chooses by it"
        if count > worth:
            return True
        by_texts = self._context.budget.speed(proposed[0].chance, len(proposed), made=True)
        return (
            self._context.budget.speed(self._acceptance.next_rate, min(count, self.room)) > by_texts
        )

    def _model_count(self) -> int:
        """Return how many tokens are worth drafting with the model."""
        if not self._context.has_model:
            return 0
        count = self._context.longest
        if self._context.budget is None:
            return count
        return self._context.budget.drafts(self._acceptance.next_rate, count)

    def _maybe_probe(self, count: int) -> int:
        """Return `count`, or a few now and then where that is none."""
        self._rounds_since_draft = 0 if count else self._rounds_since_draft + 1
        least: float = PROBE_INTERVAL
        if self._context.budget is not None:
            unread_tokens = len(self._committed) if self._unread else 0
            least = self._context.budget.texts_before_try(
                PROBE_LENGTH, least, made=False, unread_tokens=unread_tokens
            )
        if self._rounds_since_draft < least:
            return count
        self._rounds_since_draft = 0
        return min(PROBE_LENGTH, self._context.longest)

    def _prefill(self) -> DraftTask:
        """Return the task that computes the text so far but for its last token, which the first
        drafts feed. It drafts nothing."""
        if self.task is None:
            length = len(self._committed)
            text = self._committed.since(0)[:-1]
            self.task = DraftTask(keep=0, token_ids=text, position=length, count=0)
        return self.task

    def take(self, task: DraftTask, drafts: Sequence[Drafted], kv_length: int) -> bool:
        """Take what a task brought; False for one that is not under way.

        Args:
            task: what `due` gave.
            drafts: its tokens, in order; none for a prefill.
            kv_length: tokens that the draft KV now holds."""
        if task is not self.task:
            return False
        if len(drafts) > task.count or (task.count and not drafts):
            raise ProtocolError(f"1…{task.count} drafts expected", f"{len(drafts)} drafts")
        self.task = None
        self._fed_from = min(kv_length, task.position)
        self._fed = tuple(each.token_id for each in drafts)[: max(0, kv_length - task.position)]
        if self.prefilling:
            self.prefilling = self._unread = False
            return True
        self._drafted_at = task.position
        self._pending.add_own(map(_proposal_of, drafts))
        return True

    def give_up(self) -> None:
        """Give up the drafts under way, which are void. The draft KV holds what it held before, or
        more: the next task says how much of it to keep."""
        if self.task is None or self.prefilling:
            return
        keep = self.task.keep
        self.task = None
        self._fed = self._fed[: max(0, keep - self._fed_from)]
        self._fed_from = min(self._fed_from, keep)

    def limit(self, length: int) -> None:
        """Draft for no position from `length` on."""
        self._length_limit = min(self._length_limit, length)

    def judged(self, accepted: int, rejected: int) -> None:
        """Record what became of drafts; they wait no more. The texts see by themselves which of
        their own were right."""
        if not self._of_texts:
            self._acceptance.add(accepted, rejected)
        self._forget()

    def _forget(self) -> None:
        self._pending.drop_own()
        self._of_texts = False

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
