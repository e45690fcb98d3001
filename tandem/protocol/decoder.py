"""The decoder's half of two-sided decoding: drafts ahead of what the two sides agree on.

`work` names the tokens to draft, `drafted` takes them one by one, `receive` takes a frame; what is
drafted past the settled text stands until a target differs from it or new relevances come.
Invariants: settled tokens are never taken back; the epoch rises when drafts that may have been sent
become void; keys and values go back by an absolute length. A work whose text has changed is no
longer `running`: its drafts are ignored, and whoever runs it had better stop. Must not import
asyncio, grpc, torch or time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.core.laws import Array, Sampling
from tandem.core.tokens import check_token_ids
from tandem.protocol.decoding_messages import (
    DecodeRequestMessage,
    DecodingCost,
    DecodingDraft,
    DecodingOpen,
    DecodingOpened,
    DecodingRelevance,
    DecodingTarget,
    DocumentUse,
)
from tandem.protocol.document_shares import DocumentShares, Estimate, Shares
from tandem.protocol.intake import VocabularyMismatch
from tandem.protocol.messages import Cancel, GoingAway, Ping, Pong
from tandem.protocol.prefixes import PrefixedTokens


class DecoderPhase(StrEnum):
    """DECODING: drafts are wanted. STOPPED: a stop string is complete, of which targets under way
    do not know. SETTLED: the answer is complete. ENDED: cancelled."""

    DECODING = "decoding"
    STOPPED = "stopped"
    SETTLED = "settled"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class DecoderModel:
    """What the machine needs to know of its engine."""

    name: str
    vocabulary_hash: str
    vocabulary_size: int
    context_length: int
    eos_token_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class DecodeWork:
    """Keep `keep` tokens after each document, feed `token_ids`, draft `count` tokens from
    `position` on, each from the mixture of the documents' laws by `shares`."""

    keep: int
    token_ids: tuple[int, ...]
    position: int
    count: int
    shares: Shares


@dataclass(frozen=True, slots=True)
class LocalDraft:
    """A draft token and the law [V] that goes with it, as the other end reconstructs it; `kept`:
    how many tokens after each document have keys and values now."""

    token_id: int
    law: Array | None
    kept: int


class DecoderMachine:
    """One session. Raises InvalidArgument, ProtocolError or PrefixMismatch when the aggregator
    breaks the conversation, and is then as it was before."""

    def __init__(
        self,
        opening: DecodingOpen,
        prompt_ids: tuple[int, ...],
        documents: Sequence[Sequence[int]],
        model: DecoderModel,
        lead: int = 0,
    ) -> None:
        """`prompt_ids` and `documents`: the opening's, as token ids; the first `lead` tokens of the
        prompt begin every document and are not fed again. Everything is checked here, before a
        session costs anything."""
        self.lead = lead
        self.opening = opening
        self.model = model
        self.prompt_ids = prompt_ids
        self.max_tokens = _granted(opening, prompt_ids, documents, model, lead)
        self.phase = DecoderPhase.DECODING
        self.epoch = 0
        self.running: DecodeWork | None = None
        self.settled = PrefixedTokens((*prompt_ids, *opening.committed_ids))
        self.sampling = law_sampling(opening.sampling)
        self.drafted_tokens = 0
        self.accepted_tokens = 0
        self._lengths = [len(document) for document in documents]
        self._limit = len(prompt_ids) + self.max_tokens
        self._drafts: list[int] = []
        self._kept = lead
        relevances = [document.relevance for document in opening.documents]
        self._shares = DocumentShares(relevances, len(prompt_ids), opening.reweigh_every)

    @property
    def capacity(self) -> int:
        """Most tokens after each document."""
        return self._limit

    def opened(self, warm: Sequence[bool]) -> DecodingOpened:
        """The first frame; `warm` says of each document whether its KV is at hand."""
        model = self.model
        return DecodingOpened(
            self.opening.session,
            self.epoch,
            len(self.settled),
            self.settled.prefix,
            model_name=model.name,
            vocabulary_hash=model.vocabulary_hash,
            vocabulary_size=model.vocabulary_size,
            context_length=model.context_length,
            eos_token_ids=model.eos_token_ids,
            prompt_ids=self.prompt_ids,
            log_mass=self._shares.current.log_mass,
            ahead=self.opening.ahead,
            max_tokens=self.max_tokens,
            documents=tuple(map(DocumentUse, self._lengths, warm)),
        )

    def going_away(self, grace_s: float) -> GoingAway:
        return GoingAway(*self._head(), grace_s=grace_s)

    def receive(self, message: DecodeRequestMessage) -> list[Pong]:
        """Take a frame after `open`; what is to be answered at once."""
        if message.session != self.opening.session:
            raise InvalidArgument("session", f"{message.session} is not this stream's session")
        if self.phase is DecoderPhase.ENDED:
            raise ProtocolError(self.phase, type(message).__name__)
        match message:
            case DecodingTarget():
                self._settle(message)
            case DecodingRelevance():
                self._reweigh(message)
            case Ping():
                return [Pong(*self._head(), nonce=message.nonce)]
            case Cancel():
                self._stop(DecoderPhase.ENDED)
            case DecodingOpen():
                raise ProtocolError(self.phase, "open", "the session is open already")
        return []

    def work(self) -> DecodeWork | None:
        """The drafts that are due, None while there are none or one work is running."""
        if self.running is not None or self.phase is not DecoderPhase.DECODING:
            return None
        position = len(self.settled) + len(self._drafts)
        shares, until = self._shares.at(self._answer_ids)
        end = self._limit if until is None else min(until, self._limit)
        count = min(self.opening.ahead - len(self._drafts), end - position)
        if count < 1 or shares is None:
            return None
        keep = self._kept = min(self._kept, position - 1)
        token_ids = (*self.settled.since(keep), *self._drafts)[-(position - keep) :]
        self.running = DecodeWork(keep, token_ids, position, count, shares)
        return self.running

    def estimate(self) -> Estimate | None:
        """The relevances without which nothing more can be drafted."""
        if self.phase is not DecoderPhase.DECODING or self.running is not None:
            return None
        room = self._limit - len(self.settled) - len(self._drafts)
        if room < 1 or len(self._drafts) >= self.opening.ahead:
            return None
        return self._shares.wanted(self._answer_ids)

    def estimated(self, estimate: Estimate, relevances: Sequence[float]) -> None:
        """Take the outcome of an estimate."""
        self._check_count(relevances)
        self._shares.estimated(estimate, relevances)

    @property
    def _answer_ids(self) -> tuple[int, ...]:
        """The answer as far as it is drafted."""
        return (*self.settled.since(len(self.prompt_ids)), *self._drafts)

    def drafted(
        self, work: DecodeWork, draft: LocalDraft, cost: DecodingCost
    ) -> DecodingDraft | None:
        """Take the next draft of a work; None if the work is no longer running."""
        if work is not self.running:
            return None
        position = len(self.settled) + len(self._drafts)
        frame = DecodingDraft(
            self.opening.session,
            self.epoch,
            position,
            self.settled.prefix_with(self._drafts),
            token_id=draft.token_id,
            law=draft.law,
            log_mass=work.shares.log_mass,
            settled=len(self.settled),
            cost=cost,
        )
        self._drafts.append(draft.token_id)
        self._kept = draft.kept
        self.drafted_tokens += 1
        if position + 1 == work.position + work.count:
            self.running = None
        return frame

    def text_ended(self) -> None:
        """A stop string is complete: nothing more is drafted."""
        if self.phase is DecoderPhase.DECODING:
            self._stop(DecoderPhase.STOPPED)

    def _settle(self, target: DecodingTarget) -> None:
        self._check_target(target)
        matching = 0
        for token_id, draft in zip(target.token_ids, self._drafts, strict=False):
            if token_id != draft:
                break
            matching += 1
        self.settled.extend(target.token_ids)
        self.accepted_tokens += matching
        if matching < len(target.token_ids):
            self._go_back(target.base + matching, voids=matching < len(self._drafts))
            self._drafts.clear()
        else:
            del self._drafts[:matching]
        self._shares.settled(len(self.settled))
        if target.last or len(self.settled) == self._limit:
            self._stop(DecoderPhase.SETTLED)

    def _check_target(self, target: DecodingTarget) -> None:
        if self.phase is DecoderPhase.SETTLED:
            raise ProtocolError(self.phase, "target", "the answer is complete")
        self._check_epoch(target.epoch)
        if target.base != len(self.settled):
            why = f"{target.base} is not where the settled text ends, {len(self.settled)}"
            raise InvalidArgument("base", why)
        self.settled.check(target.base, target.prefix)
        check_token_ids(target.token_ids, self.model.vocabulary_size, "token_ids")
        if not target.token_ids and not target.last:
            raise InvalidArgument("token_ids", "a target that settles nothing")
        if target.base + len(target.token_ids) > self._limit:
            raise InvalidArgument("token_ids", f"more than max_tokens, {self.max_tokens}")

    def _reweigh(self, message: DecodingRelevance) -> None:
        self._check_epoch(message.epoch)
        self._check_count(message.relevances)
        if self.opening.reweigh_every:
            raise InvalidArgument("relevances", "this session estimates them by itself")
        if not len(self.settled) <= message.base <= self._limit:
            raise InvalidArgument("base", f"{message.base} is outside the answer to come")
        if message.base == len(self.settled):
            self.settled.check(message.base, message.prefix)
        shares = Shares.of(message.relevances)
        drafted = message.base - len(self.settled)
        # Raised whether or not drafts are void: so the aggregator knows what it will be.
        self._go_back(message.base, voids=True)
        del self._drafts[drafted:]
        self._shares.told(message.base, shares)
        self._shares.settled(len(self.settled))

    def _go_back(self, position: int, voids: bool) -> None:
        """What was drafted from `position` on is void, and so is what is being drafted there."""
        self._kept = min(self._kept, position)
        if voids:
            self.epoch += 1
        if self.running is not None and position < self.running.position + self.running.count:
            self.running = None

    def _stop(self, phase: DecoderPhase) -> None:
        self.phase = phase
        self.running = None
        self._drafts.clear()

    def _check_count(self, relevances: Sequence[float]) -> None:
        if len(relevances) != len(self._lengths):
            why = f"{len(relevances)} for {len(self._lengths)} documents"
            raise InvalidArgument("relevances", why)

    def _check_epoch(self, epoch: int) -> None:
        if epoch > self.epoch:
            raise InvalidArgument("epoch", f"{epoch} is ahead of the decoder's {self.epoch}")

    def _head(self) -> tuple[int, int, int, int]:
        settled = self.settled
        return self.opening.session, self.epoch, len(settled), settled.prefix


def law_sampling(sampling: Sampling) -> Sampling:
    """How documents' laws are formed. The argmax of a mixture needs their whole laws, so at
    temperature 0 they are those of temperature 1, and only the draw is greedy."""
    return replace(sampling, temperature=1.0) if sampling.greedy else sampling


def _granted(
    opening: DecodingOpen,
    prompt_ids: tuple[int, ...],
    documents: Sequence[Sequence[int]],
    model: DecoderModel,
    lead: int,
) -> int:
    """The most tokens the answer may have; InvalidArgument naming the field that leaves none."""
    _check_vocabulary(opening, model)
    opening.law.validate(model.vocabulary_size)
    opening.sampling.validate(model.vocabulary_size)
    check_token_ids(prompt_ids, model.vocabulary_size, "prompt")
    check_token_ids(opening.committed_ids, model.vocabulary_size, "committed_ids")
    if not prompt_ids:
        raise InvalidArgument("prompt", "is empty")
    room = model.context_length - len(prompt_ids)
    if room < 1:
        why = f"{len(prompt_ids)} tokens; the context holds {model.context_length}"
        raise InvalidArgument("prompt", why)
    least = room
    for index, document in enumerate(documents):
        field = f"documents[{index}]"
        if not document:
            raise InvalidArgument(field, "is empty")
        check_token_ids(document, model.vocabulary_size, field)
        if len(document) - lead >= room:
            why = f"{len(document)} tokens; {room} of the context are left beside the prompt"
            raise InvalidArgument(field, why)
        least = min(least, room + lead - len(document))
    granted = min(opening.max_tokens, least)
    if granted < 1:
        raise InvalidArgument("max_tokens", f"must be at least 1, is {opening.max_tokens}")
    if len(opening.committed_ids) >= granted:
        raise InvalidArgument("committed_ids", f"the answer is complete: {granted} tokens")
    return granted


def _check_vocabulary(opening: DecodingOpen, model: DecoderModel) -> None:
    differs = opening.vocabulary_hash not in ("", model.vocabulary_hash)
    if differs or opening.vocabulary_size not in (0, model.vocabulary_size):
        raise VocabularyMismatch("vocabulary_hash: the two sides do not share a vocabulary")
