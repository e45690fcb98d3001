"""Is a pair's text, by a preset and over a link, the target's own? Three questions to a suite:
texts at temperature 0; texts of one seed where the preset couples its draws; where it does not,
short sequences against the target's distribution. Invariant: what is compared with came from the
target alone, by preset `ar` or by its engine."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from tandem.analysis.goodness_of_fit import Fit, Prefix, choose_cells, fit
from tandem.backends.interface import Engine, ForwardRequest
from tandem.core.probs import Array, SamplingParams, probs_from_logits
from tandem.generation.client import AggregatorClient, Generated
from tandem.generation.request import GenerationRequest
from tandem.netem.link_model import LinkSettings
from tandem.specdec.presets import Preset
from tandem.suite.embedded import EmbeddedSuite
from tandem.suite.models import ModelPair

ALONE = "ar"
AT_ONCE = 16
_KINDS = {"greedy": SamplingParams(temperature=0.0), "coupled": SamplingParams()}

Ids = tuple[int, ...]
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
        """How many a run takes."""
        alone = 2 * len(self.prompts)
        own = (
            alone if each.drafter_invariant else len(self.prompts) + self.samples
            for each in presets
        )
        return alone + sum(own)


@dataclass(frozen=True, slots=True)
class PresetCheck:
    """Of one preset. `different` texts by kind of comparison, of `texts` each; `sequences` where
    the preset does not couple its draws. Bytes and target passes per token, over all texts."""

    preset: str
    lossy: bool
    texts: int
    different: dict[str, int]
    sequences: Fit | None
    uplink_bytes: float
    downlink_bytes: float
    target_passes: float

    @property
    def passed(self) -> bool:
        """A preset that is lossy by its rule never passes, however little shows."""
        fits = self.sequences is None or self.sequences.fits
        return not self.lossy and fits and not any(self.different.values())


async def check_presets(
    pair: ModelPair,
    presets: Sequence[Preset],
    plan: LosslessPlan,
    link: LinkSettings | None = None,
    advance: Advance = lambda: None,
) -> list[PresetCheck]:
    """Raises Rejected where the suite refuses a request."""
    run = _Run(plan, advance)
    target_probs = _target_probs(pair.target, plan.prompts[0])
    drawn = not all(preset.drafter_invariant for preset in presets)
    cells = choose_cells(target_probs, plan.sequence, plan.samples) if drawn else None
    async with EmbeddedSuite(pair, link=link) as suite, AggregatorClient(suite.target) as client:
        alone = {name: await run.texts(client, ALONE, kind) for name, kind in _KINDS.items()}
        checks = []
        for preset in presets:
            names = list(_KINDS) if preset.drafter_invariant else ["greedy"]
            own = {name: await run.texts(client, preset.name, _KINDS[name]) for name in names}
            sequences = None
            if cells is not None and not preset.drafter_invariant:
                sequences = fit(cells, await run.sequences(client, preset.name))
            checks.append(_check(preset, own, alone, sequences))
    return checks


class _Run:
    def __init__(self, plan: LosslessPlan, advance: Advance) -> None:
        self._plan, self._advance = plan, advance
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
                self._request(plan.prompts[0], preset, _KINDS["coupled"], plan.sequence, number),
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
            sampling=sampling,
            max_tokens=tokens,
            seed=self._plan.seed + number,
            ignore_eos=True,
        )

    async def _ask(self, client: AggregatorClient, request: GenerationRequest) -> Generated:
        async with self._slots:
            answer = await client.generate(request)
        self._advance()
        return answer


def _target_probs(engine: Engine, prompt: tuple[int, ...]) -> Callable[[Prefix], Array]:
    """The distribution [V] of the token after the prompt and a prefix, at temperature 1, by the
    engine itself. Nothing else may use the engine meanwhile."""

    def after(prefix: Prefix) -> Array:
        ids = (*prompt, *prefix)
        session = engine.open(len(ids))
        try:
            (logits,) = engine.forward([ForwardRequest(session, ids, logits_to_keep=1)])
        finally:
            session.close()
        return probs_from_logits(logits[0], _KINDS["coupled"])

    return after


def _check(
    preset: Preset,
    own: dict[str, list[Generated]],
    alone: dict[str, list[Generated]],
    sequences: Fit | None,
) -> PresetCheck:
    different = {
        name: sum(
            got.token_ids != want.token_ids for got, want in zip(texts, alone[name], strict=True)
        )
        for name, texts in own.items()
    }
    summaries = [each.summary for texts in own.values() for each in texts if each.summary]
    tokens = max(1, sum(each.tokens for each in summaries))
    return PresetCheck(
        preset.name,
        preset.lossy,
        len(own["greedy"]),
        different,
        sequences,
        sum(each.uplink_bytes for each in summaries) / tokens,
        sum(each.downlink_bytes for each in summaries) / tokens,
        sum(each.target_passes for each in summaries) / tokens,
    )
