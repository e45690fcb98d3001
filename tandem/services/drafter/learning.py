"""Learning from the verdicts of one drafter: which adapter an answer drafts with, and what is kept
of the answer to learn from.

Invariants: an answer has one adapter, from its first token to its last, and finds no keys and
values that were computed with another; only tokens that the target said are learned from."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tandem.backends.adaptation import Adaptation, JudgedText, KnownProbs, adaptation_of
from tandem.backends.interface import Engine, Session
from tandem.core.errors import InvalidArgument
from tandem.core.probs import Array, most_likely
from tandem.core.processors import Processors
from tandem.core.sparse_payload import FullPayload, SparsePayload
from tandem.learning.learner import IDLE_S, Learner, adapted_tenant
from tandem.learning.replay import MOST_KNOWN
from tandem.learning.tenant_folders import TenantFolders
from tandem.learning.tenant_learning import LearningSetup, UsedAdapter
from tandem.net.tenant import Tenant
from tandem.runtime.engine_thread import EngineThread
from tandem.runtime.prefix_cache import KeptText, PrefixCache
from tandem.specdec.choices import Acceptance
from tandem.specdec.edge import EdgeMachine
from tandem.specdec.events import Commit, EdgeRequest
from tandem.specdec.logprobs import check_logprobs_available
from tandem.telemetry.metrics import Metrics

MOST_REMEMBERED = 64
"""Tenants whose last adapter is remembered, to free what was computed with it."""


@dataclass(frozen=True, slots=True)
class LearningPlace:
    """Where a drafter keeps what it learns, how many bytes of texts for each tenant, and a hash of
    the draft model's weights."""

    folder: Path
    most_bytes: int
    model_hash: str
    idle_s: float = IDLE_S
    """How long no request must have been open before anything is trained."""
    top_logprobs: int = 0
    """How many of the likeliest tokens the cloud is asked for at each token of an answer."""


class DraftLearning:
    """The learning of one drafter; without a `learner` nothing is learned or adapted."""

    def __init__(
        self,
        learner: Learner | None,
        adaptation: Adaptation | None,
        thread: EngineThread,
        prefixes: PrefixCache,
        top_logprobs: int = 0,
    ) -> None:
        self._learner = learner
        self.top_logprobs = top_logprobs
        self._adaptation = adaptation
        self._thread = thread
        self._prefixes = prefixes
        self._found_as: OrderedDict[Tenant, Tenant] = OrderedDict()

    @property
    def learner(self) -> Learner | None:
        return self._learner

    def start(self) -> None:
        """Begin to learn, on the running loop."""
        if self._learner is not None:
            self._learner.start()

    async def close(self) -> None:
        if self._learner is not None:
            await self._learner.close()

    async def begin(self, tenant: Tenant) -> AnswerLearning:
        """Return the learning of an answer for `tenant`, who pays for it."""
        used = None if self._learner is None else await self._learner.used_by(tenant)
        return AnswerLearning(self, tenant, used)

    async def adapt(self, session: Session, used: UsedAdapter) -> None:
        """Have a fresh session use an adapter."""
        adaptation = self._adaptation
        assert adaptation is not None, "there is an adapter"
        await self._thread.call(lambda: adaptation.use(session, used.placed))

    def found_as(self, tenant: Tenant, text: KeptText, used: UsedAdapter | None) -> KeptText:
        """Return as what keys and values of a text are found and kept: computed with this adapter,
        for this tenant; what is public is so only without an adapter."""
        adapted = text
        if used is not None:
            adapted = replace(text, tenant=adapted_tenant(text.tenant, used), public_tokens=0)
        before = self._found_as.pop(tenant, None)
        if before is not None and before != adapted.tenant:
            self._prefixes.forget(before)
        if used is not None:
            self._found_as[tenant] = adapted.tenant
            if len(self._found_as) > MOST_REMEMBERED:
                self._found_as.popitem(last=False)
        return adapted

    def record(self, tenant: Tenant, text: JudgedText) -> None:
        """Keep a text to learn from it."""
        if self._learner is not None:
            self._learner.record(tenant, text)


@dataclass(slots=True)
class AnswerLearning:
    """One answer: what it drafts with, and what its verdicts tell."""

    learning: DraftLearning
    tenant: Tenant
    used: UsedAdapter | None
    known_probs: dict[int, KnownProbs] = field(default_factory=dict)

    def kept_text(self, text: KeptText) -> KeptText:
        """Return as what the keys and values of the text are found and kept."""
        return self.learning.found_as(self.tenant, text, self.used)

    @property
    def on_broken(self) -> Callable[[], None] | None:
        """What to call if the draft model gives no distribution; None where no adapter is to
        blame."""
        return None if self.used is None else self.used.set_aside

    async def adapt(self, session: Session) -> None:
        """Have the answer's fresh session use its adapter, if there is one."""
        if self.used is not None:
            await self.learning.adapt(session, self.used)

    def asking(self, request: EdgeRequest) -> EdgeRequest:
        """Return the request with the question for the target's likeliest tokens, to learn from
        them, where they tell more than the token that was drawn and nobody else asks."""
        count = self.learning.top_logprobs
        params = request.params
        if not count or params.logprobs or params.sampling.greedy or request.preset.lossy:
            return request
        try:
            check_logprobs_available(request.preset.verify_settings, count)
        except InvalidArgument:
            return request
        asking = replace(params, logprobs=True, top_logprobs=count)
        return replace(request, params=asking, logprobs_are_optional=True)

    def committed(self, position: int, commit: Commit) -> None:
        """Keep what the cloud told of the target distributions of tokens from a `position` of the
        text on."""
        if self.learning.learner is None:
            return
        for index, logprob in enumerate(commit.logprobs, start=position):
            if logprob.top:
                ids, logprobs = zip(*logprob.top[:MOST_KNOWN], strict=True)
                probs = np.exp(np.array(logprobs, dtype=np.float32))
                self.known_probs[index] = KnownProbs(
                    np.array(ids, dtype=np.int32), probs, np.zeros_like(probs)
                )

    def heard(
        self, position: int, payload: FullPayload | SparsePayload, draft_probs: Array
    ) -> None:
        """Keep what a rejection told of the target distribution at a position, whose draft was
        drawn from `draft_probs` [V]."""
        if self.learning.learner is None:
            return
        if isinstance(payload, FullPayload):
            ids = most_likely(payload.target_probs, MOST_KNOWN).astype(np.int32)
            probs = payload.target_probs[ids]
        else:
            ids, probs = payload.ids.astype(np.int32), payload.probs
        if len(ids):
            self.known_probs[position] = KnownProbs(
                ids, probs.astype(np.float32), draft_probs[ids].astype(np.float32)
            )

    def ended(self, machine: EdgeMachine) -> None:
        """Keep the answer to learn from, if all of it is the target's own text."""
        request = machine.request
        params = request.params
        of_target = not (machine.stats.unverified_tokens or request.preset.lossy or params.images)
        plain = _without_limits(params.processors) == Processors()
        if self.learning.learner is None or not of_target or not plain:
            return
        token_ids = np.asarray(machine.committed.since(0), dtype=np.int32)
        coupled = request.preset.acceptance is Acceptance.GUMBEL
        text = JudgedText(
            token_ids=token_ids,
            first=len(request.prompt_ids),
            temperature=params.sampling.temperature,
            seed=params.seed if coupled else None,
            known_probs=self.known_probs,
        )
        self.learning.record(self.tenant, text)


def draft_learning(
    engine: Engine,
    thread: EngineThread,
    prefixes: PrefixCache,
    place: LearningPlace | None,
    metrics: Metrics,
    busy: Callable[[], bool],
) -> DraftLearning:
    """Return the learning of a drafter's engine; none without a `place`. `busy`: whether a request
    is open. Raises InvalidArgument("learn") for a draft model that cannot learn."""
    if place is None:
        return DraftLearning(None, None, thread, prefixes)
    adaptation = adaptation_of(engine)
    if adaptation is None:
        why = (
            f"{engine.model_name} cannot learn: that needs the engine torch, a draft model of the"
            " Llama family in float32, bfloat16 or float16, and the target's tokenizer"
        )
        raise InvalidArgument("learn", why)
    setup = LearningSetup(
        adaptation=adaptation,
        vocabulary_hash=engine.vocabulary_hash,
        vocabulary_size=engine.vocabulary_size,
        model_hash=place.model_hash,
        most_bytes=place.most_bytes,
    )
    learner = Learner(
        thread=thread,
        setup=setup,
        folders=TenantFolders(place.folder),
        series=metrics.learning(engine.model_name),
        busy=busy,
        idle_s=place.idle_s,
    )
    return DraftLearning(learner, adaptation, thread, prefixes, place.top_logprobs)


def _without_limits(processors: Processors) -> Processors:
    """Return the processors but for those that only decide when an answer or its thinking ends."""
    return replace(processors, thinking=None, min_tokens=0, end_token_ids=())
