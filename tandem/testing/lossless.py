"""Is a pair's text, by a preset and over a link, the target's own? Three questions to a suite:
texts at temperature 0; texts of one seed where the preset couples its draws; where it does not,
short sequences against the target's distribution. Invariant: what is compared with came from the
target alone, by preset `ar` or by its engine."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np

from tandem.backends.interface import Engine, ForwardRequest, KnowsLargestLogits
from tandem.core.gumbel import gumbel
from tandem.core.probs import Array, SamplingParams, probs_from_logits
from tandem.generation.client import AggregatorClient, Generated
from tandem.generation.request import GenerationRequest
from tandem.net.status import Rejected
from tandem.netem.link_model import LinkShape
from tandem.specdec.messages import GenerationParams
from tandem.specdec.presets import Preset
from tandem.suite.embedded import EmbeddedSuite
from tandem.suite.models import ModelPair
from tandem.testing.goodness_of_fit import Fit, Prefix, choose_cells, fit

ALONE = "ar"
ROUNDING = 1e-4
"""What float32 may change in a score whose passes are cut otherwise; some 1e-5 was seen."""
AT_ONCE = 16

Ids = tuple[int, ...]
Kinds = Mapping[str, SamplingParams]
"""How texts of one seed are drawn, by the kind of comparison."""
Advance = Callable[[], None]
"""Called for each answer that came."""


@dataclass(frozen=True, slots=True)
class LosslessPlan:
    """What is asked: `texts` prompts of `tokens` each, and `samples` of `sequence` tokens after the
    first prompt. Token ids of prompts."""

    prompts: tuple[tuple[int, ...], ...]
    tokens: int
    samples: int
    sequence: int
    seed: int

    def answers(self, presets: Sequence[Preset]) -> int:
        """Return how many answers a run takes."""
        alone = 2 * len(self.prompts)
        counts = (
            alone if preset.drafter_invariant else len(self.prompts) + self.samples
            for preset in presets
        )
        return alone + sum(counts)


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where one of the `texts`, counted from 0, leaves the target's own: its first other `token`.
    `gap`: how far apart the target's own scores of the two tokens are, logits or with the noise of
    the draw log-probabilities; None for a token that it cannot draw, or an end."""

    kind: str
    text: int
    token: int
    gap: float | None

    @property
    def is_rounding(self) -> bool:
        """True if the last bits decide between the two."""
        return self.gap is not None and self.gap <= ROUNDING


@dataclass(frozen=True, slots=True)
class PresetCheck:
    """The check of one preset. `different` texts by kind of comparison, of `texts` each, and where
    they turn; `sequences` where the preset does not couple its draws. Bytes and target passes per
    token, over all texts."""

    preset: str
    lossy: bool
    texts: int
    different: dict[str, int]
    sequences: Fit | None
    uplink_bytes: float
    downlink_bytes: float
    target_passes: float
    divergences: tuple[Divergence, ...] = ()

    @property
    def passed(self) -> bool:
        """A preset that is lossy by its rule never passes, however little shows."""
        fits = self.sequences is None or self.sequences.fits
        return not self.lossy and fits and not any(self.different.values())


async def check_presets(
    pair: ModelPair,
    presets: Sequence[Preset],
    plan: LosslessPlan,
    *,
    link: LinkShape | None = None,
    advance: Advance = lambda: None,
) -> list[PresetCheck]:
    """Check that the presets' answers follow the target's distribution. Raises Rejected where the
    suite refuses a request."""
    kinds = _kinds(pair.target)
    run = _Run(plan, kinds["coupled"], advance)
    target_probs = _target_probs(pair.target, plan.prompts[0], kinds["coupled"])
    drawn = not all(preset.drafter_invariant for preset in presets)
    cells = choose_cells(target_probs, plan.sequence, plan.samples) if drawn else None
    suite = EmbeddedSuite(pair, link=link)
    async with suite, AggregatorClient(suite.target) as client:
        alone = {name: await run.texts(client, ALONE, kind) for name, kind in kinds.items()}
        checks = []
        texts = []
        for preset in presets:
            names = list(kinds) if preset.drafter_invariant else ["greedy"]
            answers = {name: await run.texts(client, preset.name, kinds[name]) for name in names}
            sequences = None
            if cells is not None and not preset.drafter_invariant:
                sequences = fit(cells, await run.sequences(client, preset.name))
            checks.append(_check(preset, answers, alone, sequences))
            texts.append(answers)
    return [
        replace(check, divergences=tuple(_divergences(pair.target, plan, answers, alone)))
        for check, answers in zip(checks, texts, strict=True)
    ]


def _kinds(target: Engine) -> Kinds:
    """Return how texts are drawn: from whole distributions, or where the target tells of the
    likeliest tokens alone, from those."""
    known = target.known_tokens if isinstance(target, KnowsLargestLogits) else 0
    return {"greedy": SamplingParams(temperature=0.0), "coupled": SamplingParams(top_k=known)}


class _Run:
    def __init__(self, plan: LosslessPlan, drawn: SamplingParams, advance: Advance) -> None:
        self._plan = plan
        self._drawn = drawn
        self._advance = advance
        self._at_once = AT_ONCE
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def texts(
        self, client: AggregatorClient, preset: str, sampling: SamplingParams
    ) -> list[Generated]:
        plan = self._plan
        return await asyncio.gather(
            *(
                self._ask(client, self._request(prompt, preset, sampling, plan.tokens, index))
                for index, prompt in enumerate(plan.prompts)
            )
        )

    async def sequences(self, client: AggregatorClient, preset: str) -> list[list[int]]:
        plan = self._plan
        answers: list[Awaitable[Generated]] = [
            self._ask(
                client,
                self._request(plan.prompts[0], preset, self._drawn, plan.sequence, number),
            )
            for number in range(plan.samples)
        ]
        return [answer.token_ids for answer in await asyncio.gather(*answers)]

    def _request(
        self,
        prompt: tuple[int, ...],
        preset: str,
        sampling: SamplingParams,
        tokens: int,
        number: int,
    ) -> GenerationRequest:
        return GenerationRequest(
            prompt,
            preset,
            GenerationParams(
                sampling=sampling, max_tokens=tokens, seed=self._plan.seed + number, ignore_eos=True
            ),
        )

    async def _ask(self, client: AggregatorClient, request: GenerationRequest) -> Generated:
        """Return an answer. If the target has no room for this many sessions, send fewer requests
        at once from then on."""
        while True:
            async with self._slots:
                try:
                    answer = await client.generate(request)
                except Rejected as error:
                    if error.code.name != "RESOURCE_EXHAUSTED" or self._at_once == 1:
                        raise
                else:
                    self._advance()
                    return answer
            if self._at_once > 1:
                self._at_once -= 1
                await self._slots.acquire()


def _target_probs(
    engine: Engine, prompt: tuple[int, ...], drawn: SamplingParams
) -> Callable[[Prefix], Array]:
    """Return a function from a prefix to the distribution [V] of the token after the prompt and
    that prefix, as it is `drawn` from and the engine computes it. Nothing else may use the engine
    meanwhile."""

    def after(prefix: Prefix) -> Array:
        return probs_from_logits(_logits_after(engine, (*prompt, *prefix)), drawn)

    return after


def _logits_after(engine: Engine, ids: Ids) -> Array:
    """Return the logits [V] after the ids, by one pass."""
    session = engine.open(len(ids))
    try:
        (logits,) = engine.forward([ForwardRequest(session, ids, logits_to_keep=1)])
    finally:
        session.close()
    return np.array(logits[0])


def _divergences(
    engine: Engine,
    plan: LosslessPlan,
    answers: dict[str, list[Generated]],
    alone: dict[str, list[Generated]],
) -> Iterator[Divergence]:
    """Yield where answers first differ from the target's. Nothing else may use the engine
    meanwhile."""
    kinds = _kinds(engine)
    for kind, texts in answers.items():
        for number, (got, want) in enumerate(zip(texts, alone[kind], strict=True)):
            ids = got.token_ids, want.token_ids
            if ids[0] == ids[1]:
                continue
            pairs = zip(*ids, strict=False)
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            gap = None
            if same < min(map(len, ids)):
                context = (*plan.prompts[number], *ids[1][:same])
                tokens = np.array([ids[0][same], ids[1][same]])
                gap = _gap(engine, context, tokens, kinds[kind], plan.seed + number)
            yield Divergence(kind, number, same, gap)


def _gap(
    engine: Engine, context: Ids, tokens: Array, sampling: SamplingParams, seed: int
) -> float | None:
    logits = _logits_after(engine, context)
    if sampling.greedy:
        scores = logits[tokens].astype(np.float64)
    else:
        with np.errstate(divide="ignore"):
            scores = np.log(probs_from_logits(logits, sampling)[tokens].astype(np.float64))
        scores += gumbel(seed, len(context), tokens)
    gap = float(abs(scores[1] - scores[0]))
    return gap if np.isfinite(gap) else None


def _check(
    preset: Preset,
    answers: dict[str, list[Generated]],
    alone: dict[str, list[Generated]],
    sequences: Fit | None,
) -> PresetCheck:
    different = {
        name: sum(
            got.token_ids != want.token_ids for got, want in zip(texts, alone[name], strict=True)
        )
        for name, texts in answers.items()
    }
    summaries = [answer.summary for texts in answers.values() for answer in texts if answer.summary]
    tokens = max(1, sum(answer.tokens for answer in summaries))
    return PresetCheck(
        preset.name,
        preset.lossy,
        len(answers["greedy"]),
        different,
        sequences,
        sum(answer.uplink_bytes for answer in summaries) / tokens,
        sum(answer.downlink_bytes for answer in summaries) / tokens,
        sum(answer.target_passes for answer in summaries) / tokens,
    )
