"""What a drafter's answers have to do with learning: which adapter an answer drafts with, and what
is kept of the answer to learn from. Implements the drafter's hook.

Invariants: an answer has one adapter, from its first token to its last, and finds no keys and
values that were computed with another; only tokens that the target said are learned from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tandem.backends.interface import Engine, Session
from tandem.core.errors import InvalidArgument
from tandem.core.probs import most_likely
from tandem.core.processors import Processors
from tandem.core.sparse_payload import FullPayload, SparsePayload
from tandem.learning.adaptation import adaptation_of
from tandem.learning.examples import Example, TargetProbs
from tandem.learning.learner import IDLE_S, Learner
from tandem.learning.replay_buffer import MAX_PROBS
from tandem.learning.series import LearningSeries
from tandem.learning.settings import LearningSettings
from tandem.learning.store import default_folder
from tandem.learning.tenant import Adapter, LearningSetup
from tandem.net.tenant import Tenant
from tandem.runtime.draft_hook import AnswerHook, DraftHook
from tandem.runtime.engine_thread import EngineThread
from tandem.runtime.prefix_cache import KeptText
from tandem.runtime.served_engine import ServedEngine
from tandem.specdec.choices import Acceptance
from tandem.specdec.edge import EdgeMachine
from tandem.specdec.events import Commit, Drafted, EdgeRequest
from tandem.specdec.logprobs import check_logprobs_available
from tandem.telemetry.logging import get_logger
from tandem.telemetry.metrics import Metrics

log = get_logger(__name__)


class DraftLearning(DraftHook):
    """The learning of one drafter's engine."""

    def __init__(
        self,
        engine: Engine,
        metrics: Metrics,
        folder: Path,
        *,
        max_bytes: int,
        model_hash: str,
        idle_s: float = IDLE_S,
        top_logprobs: int = 0,
    ) -> None:
        """Prepare to learn. Raises InvalidArgument("learn") for a draft model that cannot.

        Args:
            folder: where it is kept.
            max_bytes: of texts for each tenant.
            model_hash: of the draft model's weights.
            idle_s: how long no request must have been open before anything is trained.
            top_logprobs: how many of the likeliest tokens the cloud is asked for at each token of
                an answer."""
        adaptation = adaptation_of(engine)
        if adaptation is None:
            why = (
                f"{engine.model_name} cannot learn: that needs the engine torch, a draft model of"
                " the Llama family in float32, bfloat16 or float16, and the target's tokenizer"
            )
            raise InvalidArgument("learn", why)
        self._setup = LearningSetup(
            adaptation=adaptation,
            vocabulary_hash=engine.vocabulary_hash,
            vocabulary_size=engine.vocabulary_size,
            model_hash=model_hash,
            max_bytes=max_bytes,
        )
        self._series = metrics.series(LearningSeries, model_name=engine.model_name)
        self._folder = folder
        self._idle_s = idle_s
        self._top_logprobs = top_logprobs
        self._learner: Learner | None = None

    def start(self, served: ServedEngine) -> None:
        log.info("keeps answers to learn from", folder=str(self._folder))
        self._learner = Learner(
            served.thread,
            self._setup,
            self._folder,
            self._series,
            busy=lambda: served.admission.sessions > 0,
            idle_s=self._idle_s,
        )
        self._thread = served.thread
        self._learner.start()

    async def close(self) -> None:
        if self._learner is not None:
            await self._learner.close()

    async def settled(self) -> None:
        """Wait until nothing is left to learn; for tests and measurements."""
        assert self._learner is not None, "started"
        await self._learner.settled()

    async def begin(self, payer: Tenant, *, keeps: bool) -> AnswerLearning:
        learner = self._learner
        assert learner is not None, "started"
        return AnswerLearning(
            adapter=await learner.adapter_for(payer),
            use=self._setup.adaptation.use,
            thread=self._thread,
            record=(lambda text: learner.record(payer, text)) if keeps else None,
            top_logprobs=self._top_logprobs,
        )


@dataclass(slots=True)
class AnswerLearning(AnswerHook):
    """One answer: what it drafts with, and what its target tells. `use` has a session use a placed
    adapter. `record` keeps a text to learn from; None where nothing of this answer may be kept."""

    adapter: Adapter | None
    use: Callable[[Session, object], None]
    thread: EngineThread
    record: Callable[[Example], None] | None
    top_logprobs: int
    _target_probs: dict[int, TargetProbs] = field(default_factory=dict)

    @property
    def on_broken(self) -> Callable[[], None] | None:
        return None if self.adapter is None else self.adapter.set_aside

    def asking(self, request: EdgeRequest) -> EdgeRequest:
        """Return the request with the question for the target's likeliest tokens, to learn from
        them, where they tell more than the token that was drawn and nobody else asks."""
        count = self.top_logprobs
        params = request.params
        idle = self.record is None or not count
        if idle or params.logprobs or params.sampling.greedy or request.preset.lossy:
            return request
        try:
            check_logprobs_available(request.preset.verify_settings, count)
        except InvalidArgument:
            return request
        asking = replace(params, logprobs=True, top_logprobs=count)
        return replace(request, params=asking, logprobs_are_optional=True)

    def kept_text(self, text: KeptText) -> KeptText:
        """Return the text as one that was computed with this adapter, for its tenant; what is
        public is so only without an adapter."""
        if self.adapter is None:
            return text
        name = text.tenant.id + b"\0adapter\0" + self.adapter.digest
        return replace(text, tenant=replace(text.tenant, id=name), public_tokens=0)

    async def opened(self, session: Session) -> None:
        if (adapter := self.adapter) is not None:
            await self.thread.call(lambda: self.use(session, adapter.placed))

    def on_drawn(
        self, position: int, token_id: int, payload: FullPayload | SparsePayload, rejected: Drafted
    ) -> None:
        if isinstance(payload, FullPayload):
            ids = most_likely(payload.target_probs, MAX_PROBS).astype(np.int32)
            probs = payload.target_probs[ids]
        else:
            ids, probs = payload.ids.astype(np.int32), payload.probs
        if len(ids):
            self._target_probs[position] = TargetProbs(
                ids, probs.astype(np.float32), rejected.draft_probs[ids].astype(np.float32)
            )

    def on_commit(self, position: int, commit: Commit) -> None:
        for index, logprob in enumerate(commit.logprobs, start=position):
            if logprob.top:
                ids, logprobs = zip(*logprob.top[:MAX_PROBS], strict=True)
                probs = np.exp(np.array(logprobs, dtype=np.float32))
                self._target_probs[index] = TargetProbs(
                    np.array(ids, dtype=np.int32), probs, np.zeros_like(probs)
                )

    def ended(self, machine: EdgeMachine) -> None:
        """Keep the answer to learn from, if all of it is the target's own text."""
        request = machine.request
        params = request.params
        of_target = not (machine.stats.unverified_tokens or request.preset.lossy or params.images)
        plain = _without_limits(params.processors) == Processors()
        if self.record is None or not of_target or not plain:
            return
        coupled = request.preset.acceptance is Acceptance.GUMBEL
        text = Example(
            token_ids=np.asarray(machine.committed.since(0), dtype=np.int32),
            first=len(request.prompt_ids),
            temperature=params.sampling.temperature,
            seed=params.seed if coupled else None,
            target_probs=self._target_probs,
        )
        self.record(text)


def learning_of(
    settings: LearningSettings, engine: Engine, metrics: Metrics, model_hash: Callable[[], str]
) -> DraftLearning | None:
    """Return the learning of a draft engine; None where the settings want none. `model_hash` reads
    all of the model's weights. Raises InvalidArgument("learn") for a model that cannot learn."""
    if not settings.learn:
        return None
    return DraftLearning(
        engine,
        metrics,
        settings.learn_folder or default_folder(),
        max_bytes=settings.learn_bytes,
        model_hash=model_hash(),
        top_logprobs=settings.learn_logprobs,
    )


def _without_limits(processors: Processors) -> Processors:
    """Return the processors but for those that only decide when an answer or its thinking ends."""
    return replace(processors, thinking=None, min_tokens=0, end_token_ids=())
