"""Both machines face to face, without a link: one frame at a time, and a look at each."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import cast

import numpy as np

from tandem.core.ngram_index import NgramIndex
from tandem.core.probs import Array, truncate, truncate_keeping
from tandem.core.randomness import RandomSource
from tandem.runtime.forced_drafts import forced_drafts
from tandem.specdec.cloud import CloudMachine
from tandem.specdec.cloud_checks import CloudModel
from tandem.specdec.edge import EdgeMachine
from tandem.specdec.events import (
    Commit,
    Drafted,
    DraftTask,
    EdgeOutput,
    EdgeRequest,
    Interrupt,
    Reconnect,
    Send,
)
from tandem.specdec.judge import Verification
from tandem.specdec.liveness import Liveness, LivenessTimes, LostCloud
from tandem.specdec.messages import CloudMessage, EdgeMessage, GenerationParams, Open, Work
from tandem.specdec.ngram_proposer import HitRates, NgramTexts
from tandem.specdec.predicted_text import PredictedText
from tandem.specdec.presets import Preset
from tandem.specdec.proposers import DraftSource, TextDrafts
from tandem.specdec.rounds.messages import EarlyVerdict
from tandem.specdec.rounds.tree_drafting import TreeGrowth, with_remembered
from tandem.specdec.text_memory import TextMemory
from tandem.specdec.verify_task import VerifyTask
from tandem.testing.simulation.simulated_cloud_drafts import draw
from tests.virtual_time.cases import ModelPair, TokenIds

VOCABULARY_HASH = "scripted"
CONTEXT_LENGTH = 64

ToCloud = Callable[[CloudMachine, EdgeMessage], None]
ToEdge = Callable[[EdgeMachine, CloudMessage], bool]


def request_for(
    chosen: Preset,
    models: ModelPair,
    *,
    seed: int = 1,
    prompt_ids: TokenIds = (1, 2),
    max_tokens: int = 12,
    ends: frozenset[int] = frozenset(),
    predicted: TokenIds | None = None,
    remembered: Sequence[TokenIds] = (),
) -> EdgeRequest:
    """`remembered`: earlier texts; where there are some, the answer is drafted from them."""
    size = models.vocabulary_size
    return EdgeRequest(
        session=7,
        prompt_ids=prompt_ids,
        vocabulary_hash=VOCABULARY_HASH,
        vocabulary_size=models.vocabulary_size,
        params=GenerationParams(sampling=models.sampling, seed=seed, max_tokens=max_tokens),
        preset=replace(chosen, recalls=True) if remembered else chosen,
        eos_token_ids=ends,
        predicted=None if predicted is None else PredictedText(predicted, size),
        memory=texts_for(prompt_ids, size, remembered) if remembered else None,
    )


def texts_for(prompt_ids: TokenIds, vocabulary_size: int, texts: Sequence[TokenIds]) -> NgramTexts:
    """What an answer may be drafted from after these texts, which were always right so far."""
    earlier, hit_rates = _remembered(tuple(texts))
    return NgramTexts(prompt_ids, vocabulary_size, earlier, deepcopy(hit_rates))


@cache
def _remembered(texts: tuple[TokenIds, ...]) -> tuple[NgramIndex, HitRates]:
    """The same for every path through the random choices; an answer changes the rates alone."""
    memory = TextMemory(quota=10_000)
    hit_rates = HitRates()
    for text in texts:
        memory.learn(text, ())
        for _ in range(50):
            hit_rates.add(3, 1.0, True)
            hit_rates.add(5, 1.0, True)
    return memory.index, hit_rates


def model_for(models: ModelPair, ends: frozenset[int] = frozenset()) -> CloudModel:
    return CloudModel(
        model_name="scripted",
        vocabulary_hash=VOCABULARY_HASH,
        vocabulary_size=models.vocabulary_size,
        context_length=CONTEXT_LENGTH,
        eos_token_ids=ends,
        max_draft_length=64,
        exits=len(models.exit_distributions),
        layer_count=8,
        hidden_size=1,
    )


def judgement_for(models: ModelPair, cloud: CloudMachine, work: VerifyTask) -> Verification:
    """What the judge of a work finds in a target model's distributions."""
    contexts = contexts_of(cloud, work)
    if work.hidden is not None:
        assert work.hidden[:, 0].tolist() == list(work.token_ids), "of these very tokens"
    return work.judge.judge(lambda row: models.target_probs(contexts[row]))


def contexts_of(cloud: CloudMachine, work: VerifyTask) -> list[TokenIds]:
    """What the work's wanted distributions are the distributions after."""
    return work.contexts((*cloud.committed.since(0)[: work.kept], *work.prepared))


def cloud_drafts(models: ModelPair, cloud: CloudMachine, task: DraftTask) -> list[Drafted]:
    """What the draft model makes of a task of the cloud itself."""
    if not task.count:
        return []
    context = (*cloud.committed.since(0)[: task.keep], *task.token_ids)
    assert context == cloud.committed.since(0), "the draft KV holds the text"
    drafts: list[Drafted] = []
    while len(drafts) < task.count:
        drafts.append(draw(cloud, models.draft_probs, context))
        if drafts[-1].token_id in task.ends:
            break
        context = (*context, drafts[-1].token_id)
    return drafts


@dataclass(frozen=True)
class Pace:
    """How many turns things take: drafting a token, judging, a frame's way up and down, and a token
    that the cloud drafts itself."""

    draft: int = 1
    judge: int = 1
    up: int = 1
    down: int = 1
    cloud_draft: int = 1


@dataclass(eq=False)
class _Drafting:
    """A work under way: the tokens not handed over yet, and the turns they take. What is from texts
    takes none."""

    work: DraftTask
    drafts: list[Drafted]
    started_turn: int
    turns_each: int
    handed: int = 0
    handed_own: int = 0

    @property
    def due_turn(self) -> int:
        ready = self.drafts[:1] if self.work.stepwise else self.drafts
        own = self.handed_own + sum(drafted.source is DraftSource.MODEL for drafted in ready)
        return self.started_turn + self.turns_each * own

    @property
    def kv_length(self) -> int:
        if self.work.expansion:
            return self.work.position if self.handed_own else self.work.keep
        return self.work.position + self.handed - 1

    def take_ready(self, turn: int) -> list[Drafted]:
        ready = 1 if self.work.stepwise else len(self.drafts)
        taken, self.drafts = self.drafts[:ready], self.drafts[ready:]
        self.handed += len(taken)
        self.handed_own += sum(drafted.source is DraftSource.MODEL for drafted in taken)
        return taken


class Lockstep:
    """Runs a request to its end, in turns; the machines' clock stands still.

    `to_cloud` and `to_edge` see every frame just before the machine that is about to take it. Where
    `to_edge` returns False the edge finds the stream broken instead.
    """

    def __init__(
        self,
        chosen: Preset,
        models: ModelPair,
        *,
        seed: int = 1,
        max_tokens: int = 12,
        ends: frozenset[int] = frozenset(),
        target_ends: frozenset[int] | None = None,
        rng: RandomSource | None = None,
        pace: Pace | None = None,
        to_cloud: ToCloud = lambda cloud, message: None,
        to_edge: ToEdge = lambda edge, message: True,
        predicted: TokenIds | None = None,
        remembered: Sequence[TokenIds] = (),
        remembered_in_cloud: Sequence[TokenIds] = (),
        longest_draft: int = 64,
        known_longest: int = 64,
    ) -> None:
        """`longest_draft`: drafts that the cloud takes in a frame; `known_longest`: what the edge
        has heard of that before; 0: nothing."""
        request = request_for(
            chosen,
            models,
            seed=seed,
            max_tokens=max_tokens,
            ends=ends,
            predicted=predicted,
            remembered=remembered,
        )
        request = replace(request, longest_draft=known_longest)
        if remembered_in_cloud:
            request = replace(request, allows_memory=True)
        liveness = Liveness(LostCloud.WAIT, LivenessTimes(), now=0.0)
        self.edge = EdgeMachine(request, liveness, rng=rng)
        self.cloud: CloudMachine | None = None
        self.committed: list[int] = []
        self._models = models
        model = model_for(models, ends if target_ends is None else target_ends)
        self._model = replace(model, max_draft_length=longest_draft)
        self._rng = rng
        self._remembered_in_cloud = remembered_in_cloud
        self._pace = pace or Pace()
        self._to_cloud = to_cloud
        self._to_edge = to_edge
        self._turn = 0
        self._up: deque[tuple[int, EdgeMessage]] = deque()
        self._down: deque[tuple[int, CloudMessage]] = deque()
        self._drafting: list[_Drafting] = []
        self._judging: tuple[int, Verification] | None = None
        self._cloud_drafting: tuple[int, DraftTask, list[Drafted]] | None = None
        self._speaking: list[tuple[int, VerifyTask, EarlyVerdict]] = []
        self._apply(self.edge.connect(0.0))

    def run(self) -> TokenIds:
        """The answer, as the sum of what was committed."""
        while self.edge.finish_reason is None:
            self._turn += 1
            assert self._turn < 10_000, "the machines wait for each other"
            self._draft()
            self._judge()
            while self._up and self._up[0][0] <= self._turn:
                self._receive_at_cloud(self._up.popleft()[1])
            while self._down and self._down[0][0] <= self._turn:
                self._receive_at_edge(self._down.popleft()[1])
        return tuple(self.committed)

    def _apply(self, outputs: list[EdgeOutput]) -> None:
        for output in outputs:
            match output:
                case Send(message):
                    self._up.append((self._turn + self._pace.up, message))
                case Commit(token_ids):
                    self.committed += token_ids
                case Interrupt(work):
                    self._drafting = [job for job in self._drafting if job.work is not work]
                case Reconnect():
                    self._up.clear()
                    self._down.clear()
                    self.cloud = self._judging = self._cloud_drafting = None
                    self._apply(self.edge.connect(0.0))

    def _draft(self) -> None:
        for job in [job for job in self._drafting if job.due_turn <= self._turn]:
            self._hand_over(job)
        self._draft_on()

    def _draft_on(self) -> None:
        """Begin the tasks that are due at the edge."""
        while (work := self.edge.work(0.0)) is not None:
            self._drafting.append(_Drafting(work, self._drafts(work), self._turn, self._pace.draft))
        while (task := self.edge.layers_work()) is not None:
            states = np.array(task.token_ids, dtype=np.float32)[:, None]
            self._apply(self.edge.layers_done(task, states, 0.0))

    def _hand_over(self, job: "_Drafting") -> None:
        """What is ready of a work, unless it was interrupted by what came before it this turn."""
        if job not in self._drafting:
            return
        ready = job.take_ready(self._turn)
        if not job.drafts:
            self._drafting.remove(job)
        self._apply(self.edge.drafted(job.work, ready, job.kv_length, 0.0, 0.0))

    def _drafts(self, work: DraftTask) -> list[Drafted]:
        if work.expansion:
            branch = self._from_texts(work, self.edge.texts(work), (), work.count)
            return branch if len(branch) == work.count else self._tree(work)
        context, rule = self.edge.context(work), self.edge.rule
        texts = self.edge.texts(work)
        drafts = self._from_texts(work, texts, (), work.count + work.max_extra)
        if len(drafts) >= work.count or (drafts and drafts[-1].ends_chunk):
            return drafts
        drafts = []
        threshold = self.edge.request.preset.confidence_threshold
        while len(drafts) < work.count and not (
            drafts and (drafts[-1].token_id in work.ends or drafts[-1].ends_chunk)
        ):
            if found := self._from_texts(work, texts, drafts, 1):
                drafts += found
                context = (*context, found[0].token_id)
                continue
            chosen = self.edge.request.preset
            whole = self._models.draft_probs(context)
            probs = truncate(whole, chosen.truncation)
            drawn_from = whole if chosen.truncate_after_sampling else probs
            token = rule.propose(drawn_from, len(context))
            if chosen.truncate_after_sampling:
                probs = truncate_keeping(whole, chosen.truncation, token)
            wanted = work.alternatives
            runners_up = rule.top_alternatives(probs, token, len(context), wanted) if wanted else ()
            unsure = threshold > 0 and bool(max(self._models.draft_probs(context)) < threshold)
            drafts.append(Drafted(token, probs, runners_up, ends_chunk=unsure))
            context = (*context, token)
        return drafts

    def _from_texts(
        self, work: DraftTask, texts: TextDrafts, drafts: Sequence[Drafted], most: int
    ) -> list[Drafted]:
        """What texts propose after the `drafts`, in the arithmetic of the models."""
        token_ids = tuple(drafted.token_id for drafted in drafts)
        after = texts.after(*token_ids)
        found = forced_drafts(work, None, token_ids, most=most, by_token=False, texts=after)
        if not self._models.draft_probs((1, 2)).dtype.hasobject:
            return found
        return [
            replace(drafted, draft_probs=np.array([Fraction(int(p)) for p in drafted.draft_probs]))
            for drafted in found
        ]

    def _tree(self, work: DraftTask) -> list[Drafted]:
        growth, contexts = TreeGrowth(work, self.edge.rule), {-1: self.edge.context(work)}
        texts = {-1: self.edge.texts(work)}
        truncation = self.edge.request.preset.truncation
        newest: Iterable[int] = (-1,)
        while True:
            distributions = [
                truncate(self._with_branch(contexts[n], texts[n]), truncation) for n in newest
            ]
            if growth.grow(distributions):
                return growth.nodes
            newest = growth.newest
            for node in newest:
                drafted = growth.nodes[node]
                contexts[node] = (*contexts[drafted.parent], drafted.token_id)
                texts[node] = texts[drafted.parent].after(drafted.token_id)

    def _with_branch(self, context: TokenIds, texts: TextDrafts) -> Array:
        """The draft model's distribution with what is remembered, in the arithmetic of the
        models."""
        probs, branches = self._models.draft_probs(context), texts.branches
        if branches and probs.dtype.hasobject:
            chance = cast("float", Fraction(1, 2 * len(branches)))
            branches = tuple(replace(draft, chance=chance) for draft in branches)
        return with_remembered(probs, branches)

    def _judge(self) -> None:
        if self.cloud is None:
            return
        while self._speaking and self._speaking[0][0] <= self._turn:
            self._hear_exit(*self._speaking.pop(0)[1:])
        if self._judging and self._judging[0] <= self._turn:
            verification = self._judging[1]
            self._judging = None
            self._send_down(self.cloud.complete(verification, Work(verify_s=0.01)))
        self._begin_pass(self.cloud)

    def _begin_pass(self, cloud: CloudMachine) -> None:
        """Begin what is due in the cloud."""
        self._draft_in_cloud(cloud)
        work = cloud.work()
        if work:
            verification = judgement_for(self._models, cloud, work)
            self._judging = (self._turn + self._pace.judge, verification)
            self._speaking = self._early_verdicts(cloud, work)

    def _draft_in_cloud(self, cloud: CloudMachine) -> None:
        """Go on with what the cloud drafts itself. Computing a text takes no turn."""
        while True:
            task = cloud.draft_task()
            if task is None:
                self._cloud_drafting = None
                return
            if self._cloud_drafting is None or self._cloud_drafting[1] is not task:
                drafts = cloud_drafts(self._models, cloud, task)
                turns = self._pace.cloud_draft * len(drafts)
                self._cloud_drafting = (self._turn + turns, task, drafts)
            due, _, drafts = self._cloud_drafting
            if due > self._turn:
                return
            self._cloud_drafting = None
            cloud.drafted(task, drafts, task.position + len(drafts) - 1)

    def _early_verdicts(
        self, cloud: CloudMachine, work: VerifyTask
    ) -> list[tuple[int, VerifyTask, EarlyVerdict]]:
        """What each exit of a pass says, and in which turn."""
        spoken = []
        for index in work.early.exits if work.early else ():
            probs_of, contexts = self._models.exit_distributions[index], contexts_of(cloud, work)
            assert work.early is not None
            verdict = work.early.verdict(
                index,
                lambda row, probs_of=probs_of, contexts=contexts: probs_of(contexts[row]),  # type: ignore[misc]
                lambda row, index=index: 0.5 + 0.1 * index,  # type: ignore[misc]
            )
            turn = self._turn + self._pace.judge * (index + 1) // (
                len(self._models.exit_distributions) + 1
            )
            if verdict is not None:
                spoken.append((turn, work, verdict))
        return spoken

    def _hear_exit(self, work: VerifyTask, verdict: EarlyVerdict) -> None:
        if self.cloud is None:
            return
        self.cloud.push_early_verdict(work, verdict)
        while self.cloud.early_verdicts:
            self._send_down([self.cloud.early_verdicts.pop()])

    def _receive_at_cloud(self, message: EdgeMessage) -> None:
        if isinstance(message, Open):
            memory = None
            if texts := self._remembered_in_cloud:
                size = message.vocabulary_size
                memory = texts_for(message.prompt_ids, size, texts)
            self.cloud = CloudMachine(message, self._model, self._rng, memory=memory)
            self._send_down([self.cloud.opened()])
            return
        assert self.cloud is not None
        self._to_cloud(self.cloud, message)
        self._send_down(self.cloud.receive(message))

    def _send_down(self, messages: list[CloudMessage]) -> None:
        self._down += [(self._turn + self._pace.down, message) for message in messages]

    def _receive_at_edge(self, message: CloudMessage) -> None:
        whole = self._to_edge(self.edge, message)
        self._apply(self.edge.receive(message, 0.0) if whole else self.edge.lost(0.0))
