"""The decoder's half of two-sided decoding: drafts ahead of what the two sides agree on. Drafts
stand until a target differs from them.

Invariants: committed tokens are never taken back; a draft says after which text it was drawn. A
work whose text has changed is no longer `running`: its drafts are ignored, and whoever runs it
should stop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from tandem.core.errors import FailedPrecondition, InvalidArgument, ProtocolError
from tandem.core.probs import SamplingParams
from tandem.core.processors import no_token_left
from tandem.core.tokens import PrefixedTokens, check_token_ids
from tandem.specdec.cloud_checks import CloudModel
from tandem.specdec.messages import Cancel, FrameHeader, GoingAway, Ping, Pong
from tandem.two_sided.protocol.draft_head import DraftProbs
from tandem.two_sided.protocol.messages import (
    DecodeRequestMessage,
    DecodingOpen,
    DecodingOpened,
    DecodingTarget,
    SideDraftFrame,
    frame_header,
)
from tandem.two_sided.protocol.mixture import document_weights, log_mass


class DecoderPhase(StrEnum):
    """DECODING: drafts are due. STOPPED: a stop string is complete, of which targets under way
    do not know. COMPLETE: the answer is complete. ENDED: cancelled."""

    DECODING = "decoding"
    STOPPED = "stopped"
    COMPLETE = "complete"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class DecodeTask:
    """Keep `keep` tokens after each document, feed `token_ids`, draft `count` tokens from
    `position` on, each from the `mixture` of the documents' distributions. `answer_ids`: the answer
    before the first of them."""

    keep: int
    token_ids: tuple[int, ...]
    position: int
    count: int
    mixture: LocalMixture
    answer_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LocalDraft:
    """A draft token and what goes with it of its distribution, as the other end reconstructs it;
    `kept`: how many tokens after each document have keys and values now; `log_left`: the logarithm
    of the mass that processors leave of the side's distribution."""

    token_id: int
    probs: DraftProbs | None
    kept: int
    log_left: float = 0.0


class DecoderMachine:
    """One session. Raises InvalidArgument, ProtocolError or PrefixMismatch when the aggregator
    breaks the conversation, and is then as it was before."""

    def __init__(
        self,
        opening: DecodingOpen,
        *,
        prompt_ids: tuple[int, ...],
        documents: Sequence[Sequence[int]],
        model: CloudModel,
        leading_length: int = 0,
    ) -> None:
        """Begin a session; everything is checked here.

        Args:
            opening: the request.
            prompt_ids: the prompt as token ids.
            documents: each document as token ids.
            model: the model that decodes.
            leading_length: how many tokens of the prompt every document begins with, or the first
                of joined ones. They are not fed again."""
        self.leading_length = leading_length
        self.opening = opening
        self.model = model
        self.prompt_ids = prompt_ids
        self.max_tokens = _granted(
            opening,
            prompt_ids=prompt_ids,
            documents=documents,
            model=model,
            leading_length=leading_length,
        )
        self.phase = DecoderPhase.DECODING
        self.running: DecodeTask | None = None
        self.committed = PrefixedTokens((*prompt_ids, *opening.committed_ids))
        self.sampling = probs_sampling(opening.sampling)
        self.drafted_tokens = 0
        self.accepted_tokens = 0
        self._lengths = [len(document) for document in documents]
        self.capacity = len(prompt_ids) + self.max_tokens
        """Most tokens after each document."""
        self._drafts: list[int] = []
        self._dead_end: tuple[int, ...] | None = None
        self._kept = leading_length
        relevances = [document.relevance for document in opening.documents]
        if opening.joined and relevances:
            relevances = [log_mass(relevances)]  # one sequence, which has what they have together
        self._mixtures = LocalMixtures(relevances, opening.reweigh_every)

    def opened(self) -> DecodingOpened:
        """Return the first frame."""
        model = self.model
        return DecodingOpened(
            **self._header(),
            model_name=model.model_name,
            vocabulary_hash=model.vocabulary_hash,
            vocabulary_size=model.vocabulary_size,
            context_length=model.context_length,
            eos_token_ids=model.eos_token_ids,
            prompt_ids=self.prompt_ids,
            log_mass=self._mixtures.first.log_mass,
            max_tokens=self.max_tokens,
            document_tokens=tuple(self._lengths),
        )

    def going_away(self) -> GoingAway:
        return GoingAway(**self._header())

    def receive(self, message: DecodeRequestMessage) -> list[Pong]:
        """Take a frame after `open`; returns what to answer at once."""
        if message.session != self.opening.session:
            raise InvalidArgument("session", f"{message.session} is not this stream's session")
        if self.phase is DecoderPhase.ENDED:
            raise ProtocolError(self.phase, type(message).__name__)
        match message:
            case DecodingTarget():
                self._commit(message)
            case Ping():
                return [Pong(**self._header(), nonce=message.nonce)]
            case Cancel():
                self._stop(DecoderPhase.ENDED)
            case DecodingOpen():
                raise ProtocolError(self.phase, "open", "the session is open already")
        return []

    def work(self) -> DecodeTask | None:
        """Return the drafts that are due; None while a task is running."""
        if self.running is not None or self.phase is not DecoderPhase.DECODING:
            return None
        position = len(self.committed) + len(self._drafts)
        answer_ids = self._answer_ids
        if self._drafts and answer_ids == self._dead_end:
            return None
        mixture = self._mixtures.at(answer_ids)
        count = min(self.opening.ahead - len(self._drafts), self.capacity - position)
        if every := self._mixtures.every:
            count = min(count, every - len(answer_ids) % every)
        if count < 1 or mixture is None:
            return None
        keep = self._kept = min(self._kept, position - 1)
        token_ids = (*self.committed.since(keep), *self._drafts)[-(position - keep) :]
        self.running = DecodeTask(
            keep=keep,
            token_ids=token_ids,
            position=position,
            count=count,
            mixture=mixture,
            answer_ids=answer_ids,
        )
        return self.running

    def estimate(self) -> tuple[int, ...] | None:
        """Return the answer to whose end the documents' relevances must be estimated before
        anything more can be drafted."""
        drafts = self.phase is DecoderPhase.DECODING and self.running is None
        full = len(self.committed) + len(self._drafts) == self.capacity
        if not drafts or full or len(self._drafts) >= self.opening.ahead:
            return None
        answer_ids = self._answer_ids
        known = self._mixtures.at(answer_ids) is not None
        return None if known else self._mixtures.estimated_after(answer_ids)

    def estimated(self, answer_ids: tuple[int, ...], relevances: Sequence[float]) -> None:
        """Take the outcome of an estimate; harmless if the text is another one by now."""
        if len(relevances) != len(self._lengths):
            why = f"{len(relevances)} for {len(self._lengths)} documents"
            raise InvalidArgument("relevances", why)
        self._mixtures.estimated(answer_ids, relevances)

    @property
    def _answer_ids(self) -> tuple[int, ...]:
        """The answer as far as it is drafted."""
        return (*self.committed.since(len(self.prompt_ids)), *self._drafts)

    def drafted(
        self, work: DecodeTask, draft: LocalDraft, decode_s: float
    ) -> SideDraftFrame | None:
        """Take the next draft of a task. Return the frame to send, or None if the task is no longer
        running."""
        if work is not self.running:
            return None
        position = len(self.committed) + len(self._drafts)
        frame = SideDraftFrame(
            session=self.opening.session,
            base=position,
            prefix_hash=self.committed.prefix_with(self._drafts),
            token_id=draft.token_id,
            probs=draft.probs,
            log_mass=work.mixture.log_mass + draft.log_left,
            committed=len(self.committed),
            decode_s=decode_s,
        )
        self._drafts.append(draft.token_id)
        self._kept = draft.kept
        self.drafted_tokens += 1
        if position + 1 == work.position + work.count:
            self.running = None
        return frame

    def stands(self, draft: SideDraftFrame) -> bool:
        """Return whether a draft still follows the text, and is not committed."""
        place = draft.base - len(self.committed)
        return (
            0 <= place < len(self._drafts)
            and self.committed.prefix_with(self._drafts[:place]) == draft.prefix_hash
        )

    def ended_dead(self, work: DecodeTask) -> None:
        """End a task after whose drafts processors leave no token. Nothing more is drafted until
        that text has changed, for it may never come; if it has, raises InvalidArgument naming the
        processor."""
        if work is not self.running:
            return
        self.running = None
        if not self._drafts:
            raise no_token_left(self.opening.processors, len(self._answer_ids))
        self._dead_end = self._answer_ids

    def text_ended(self) -> None:
        """Draft nothing more: a stop string is complete."""
        if self.phase is DecoderPhase.DECODING:
            self._stop(DecoderPhase.STOPPED)

    def _commit(self, target: DecodingTarget) -> None:
        self._check_target(target)
        matching = 0
        for token_id, draft in zip(target.token_ids, self._drafts, strict=False):
            if token_id != draft:
                break
            matching += 1
        self.committed.extend(target.token_ids)
        self.accepted_tokens += matching
        if matching < len(target.token_ids):
            self._go_back(target.base + matching)
            self._drafts.clear()
        else:
            del self._drafts[:matching]
        self._mixtures.forget_before(len(self.committed) - len(self.prompt_ids))
        if target.last or len(self.committed) == self.capacity:
            self._stop(DecoderPhase.COMPLETE)

    def _check_target(self, target: DecodingTarget) -> None:
        if self.phase is DecoderPhase.COMPLETE:
            raise ProtocolError(self.phase, "target", "the answer is complete")
        if target.base != (end := len(self.committed)):
            why = f"{target.base} is not where the committed text ends, {end}"
            raise InvalidArgument("base", why)
        self.committed.check(target.base, target.prefix_hash)
        check_token_ids(target.token_ids, self.model.vocabulary_size, "token_ids")
        if not target.token_ids and not target.last:
            raise InvalidArgument("token_ids", "a target that commits nothing")
        if target.base + len(target.token_ids) > self.capacity:
            raise InvalidArgument("token_ids", f"more than max_tokens, {self.max_tokens}")

    def _go_back(self, position: int) -> None:
        """Drop what is under way from `position` on."""
        self._kept = min(self._kept, position)
        if self.running is not None and position < self.running.position + self.running.count:
            self.running = None

    def _stop(self, phase: DecoderPhase) -> None:
        self.phase = phase
        self.running = None
        self._drafts.clear()

    def _header(self) -> FrameHeader:
        return frame_header(self.opening.session, self.committed)


def probs_sampling(sampling: SamplingParams) -> SamplingParams:
    """Return how documents' distributions are formed: in full at temperature 0 too, where only the
    draw is greedy, since the argmax of a mixture needs them."""
    return replace(sampling, temperature=1.0) if sampling.greedy else sampling


def _granted(
    opening: DecodingOpen,
    *,
    prompt_ids: tuple[int, ...],
    documents: Sequence[Sequence[int]],
    model: CloudModel,
    leading_length: int,
) -> int:
    """Return the answer's length limit. Raises InvalidArgument naming the field that leaves no
    room."""
    _check_vocabulary(opening, model)
    opening.probs.validate(model.vocabulary_size)
    opening.sampling.validate(model.vocabulary_size)
    opening.processors.validate(model.vocabulary_size)
    check_token_ids(opening.end_ids, model.vocabulary_size, "end_ids")
    check_token_ids(prompt_ids, model.vocabulary_size, "prompt")
    check_token_ids(opening.committed_ids, model.vocabulary_size, "committed_ids")
    if opening.joined and opening.reweigh_every:
        raise InvalidArgument("reweigh_every", "joined documents have no weights")
    if not prompt_ids:
        raise InvalidArgument("prompt", "is empty")
    room = model.context_length - len(prompt_ids)
    if room < 1:
        why = f"{len(prompt_ids)} tokens; the context holds {model.context_length}"
        raise InvalidArgument("prompt", why)
    for index, document in enumerate(documents):
        field = f"documents[{index}]"
        if not document:
            raise InvalidArgument(field, "is empty")
        check_token_ids(document, model.vocabulary_size, field)
    lengths = {f"documents[{index}]": len(document) for index, document in enumerate(documents)}
    if opening.joined and documents:
        lengths = {"documents": sum(lengths.values())}
    for field, length in lengths.items():
        if length - leading_length >= room:
            why = f"{length} tokens; {room} of the context are left beside the prompt"
            raise InvalidArgument(field, why)
    longest = max(lengths.values(), default=leading_length)
    granted = min(opening.max_tokens, room + leading_length - longest)
    if granted < 1:
        raise InvalidArgument("max_tokens", f"must be at least 1, is {opening.max_tokens}")
    if len(opening.committed_ids) >= granted:
        raise InvalidArgument("committed_ids", f"the answer is complete: {granted} tokens")
    return granted


def _check_vocabulary(opening: DecodingOpen, model: CloudModel) -> None:
    differs = opening.vocabulary_hash not in ("", model.vocabulary_hash)
    if differs or opening.vocabulary_size not in (0, model.vocabulary_size):
        raise FailedPrecondition("vocabulary_hash: the two sides do not share a vocabulary")


@dataclass(frozen=True, slots=True)
class LocalMixture:
    """The documents' weights [n] in the side's distribution, and the side's h; one plain sequence
    has (1,) and -inf."""

    weights: tuple[float, ...]
    log_mass: float

    @classmethod
    def of(cls, relevances: Sequence[float]) -> LocalMixture:
        """Make it from relevances. Raises InvalidArgument("relevances")."""
        if not relevances:
            return cls((1.0,), -math.inf)
        return cls(tuple(document_weights(relevances).tolist()), log_mass(relevances))

    def left(self, log_left: Sequence[float]) -> tuple[NDArray[np.float64], float]:
        """Return the weights [n] where processors leave this much (log) of each document's mass,
        -inf for nothing, and how much of all: each document counts by its relevance times what is
        left of it, so that the mixture of what is left is what is left of the mixture. Raises
        InvalidArgument where nothing is."""
        with np.errstate(divide="ignore"):
            scores = np.log(np.array(self.weights)) + np.array(log_left)
        return document_weights(scores), log_mass(scores)


class LocalMixtures:
    """The mixtures of an answer. `every`: tokens between estimates of the documents' relevances, 0
    for none. Which mixture holds is decided by the answer up to the last estimate."""

    def __init__(self, relevances: Sequence[float], every: int = 0) -> None:
        self.first = LocalMixture.of(relevances)
        self.every = every if relevances else 0
        self._estimates: dict[tuple[int, ...], LocalMixture] = {(): self.first}

    def estimated_after(self, answer_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Return the beginning of the answer that the mixture after it depends on."""
        return answer_ids[: len(answer_ids) // self.every * self.every] if self.every else ()

    def at(self, answer_ids: tuple[int, ...]) -> LocalMixture | None:
        """Return the mixture after these tokens of the answer, None while its estimate is
        missing."""
        return self._estimates.get(self.estimated_after(answer_ids))

    def estimated(self, answer_ids: tuple[int, ...], relevances: Sequence[float]) -> None:
        """Take the relevances to a text that ends with `answer_ids`."""
        self._estimates[answer_ids] = LocalMixture.of(relevances)

    def forget_before(self, length: int) -> None:
        """Forget what was only for an answer shorter than `length`, which is committed."""
        for known in [each for each in self._estimates if 0 < len(each) < length - self.every]:
            del self._estimates[known]
