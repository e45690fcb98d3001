"""The drafts that the cloud makes itself, for one session: which are due, which wait to be judged,
and how often they stand.

The cloud's machine asks for them where it would decode alone, and judges them in one pass. They
never leave the cloud. Invariants: drafts that wait follow the committed text as it is, or are
forgotten; at most one task is under way; the draft KV is valid for as much of the text as it was
fed, whoever made that text since. Drafts by lookup need no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

from tandem.control.pass_budget import SessionAcceptance
from tandem.core.errors import ProtocolError
from tandem.core.text_lookup import GrowingText
from tandem.core.tokens import PrefixedTokens
from tandem.specdec.choices import RejectionPayload, Schedule, Uplink
from tandem.specdec.events import Drafted, DraftTask
from tandem.specdec.presets import Preset, VerifySettings
from tandem.specdec.rules import Proposal

RETRY_AFTER = 32
"""Texts that are not worth drafts before a short try: what is known of acceptance grows old."""
RETRY_LENGTH = 2


class CloudDrafting:
    """Reads `committed`, which its owner alone appends to."""

    def __init__(
        self,
        committed: PrefixedTokens,
        *,
        longest: int,
        races: bool,
        length_limit: int,
        ends: frozenset[int],
        acceptance: SessionAcceptance,
    ) -> None:
        """Begin with an empty draft KV.

        Args:
            committed: the session's text.
            longest: most tokens to draft at once.
            races: whether drafts of an edge and these come to positions by who is first, and the
                text depends on that. No draft may then come sooner because of what it is (see
                `Preset.timing_dependent`): an end of text ends no drafting.
            length_limit: tokens of prompt and answer together.
            ends: the tokens that end the text.
            acceptance: of drafts that this cloud makes."""
        self.task: DraftTask | None = None
        self.prefilling = len(committed) > 1
        """Whether the draft model has yet to compute the text that the session begins with."""
        self.draft_s = 0.0
        """What it took to make the drafts that wait."""
        self._acceptance = acceptance
        self._committed = committed
        self._length_limit = length_limit
        self._ends = frozenset[int]() if races else ends
        # The draft KV holds the first `_fed_from` committed tokens, and then `_fed`.
        self._fed_from = 0
        self._fed: tuple[int, ...] = ()
        self._drafts: tuple[Proposal, ...] = ()
        self._longest = longest
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

    def due(self, count: Callable[[], int]) -> DraftTask | None:
        """Return the task that drafts after the text as it is, the same one until it is taken or
        given up; None where nothing is to be drafted.

        Args:
            count: how many tokens, asked for once for each text."""
        if self.prefilling:
            return self._prefill()
        if self.task is not None or self.is_over:
            return self.task
        self._forget()
        if (wanted := min(self._worth(count()), self.room)) < 1:
            self._drafted_at = len(self._committed)
            return None
        length = len(self._committed)
        keep = min(self._valid_length, length - 1)
        self.task = DraftTask(
            keep=keep,
            token_ids=self._committed.since(keep),
            position=length,
            count=wanted,
            ends=self._ends,
        )
        return self.task

    def _worth(self, count: int) -> int:
        """Return the tokens to draft where `count` are worth it: now and then a few where none
        are."""
        self._rested = 0 if count else self._rested + 1
        if self._rested < RETRY_AFTER:
            return count
        self._rested = 0
        return min(RETRY_LENGTH, self._longest)

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
        """Record what became of drafts; they wait no more."""
        self._acceptance.judged(accepted, rejected)
        self._forget()

    def _forget(self) -> None:
        self._drafts = ()
        self.draft_s = 0.0

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

    def __init__(self, committed: PrefixedTokens, **options: Any) -> None:
        super().__init__(committed, **options)
        self.prefilling = False
        self._text = GrowingText()

    def due(self, count: Callable[[], int]) -> DraftTask | None:
        """Look up what may follow the text as it is; there is never a task."""
        if not self.is_over:
            self._forget()
            self._text.extend(self._committed.since(len(self._text)))
            found = self._text.followers(min(self._worth(count()), self.room))
            # Nothing else could have been drafted there, whatever the rule.
            self._drafts = tuple(Proposal((token_id,), draft_prob=1.0) for token_id in found)
            self._drafted_at = len(self._committed)
        return None


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
