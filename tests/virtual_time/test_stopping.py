"""An answer ends at the same token for every method, and at both ends together."""

import random
from collections.abc import Callable
from functools import cache
from itertools import cycle

import pytest

from tandem.core.probs import SamplingParams
from tandem.core.stopping import FinishReason
from tandem.specdec.choices import Schedule
from tandem.specdec.presets import PRESETS, Preset
from tandem.testing.simulation.simulator import SimulationResult
from tests.long_runs import with_long_cases
from tests.virtual_time.cases import TokenIds, model_pair, preset, run, scheduled

ENDS = frozenset({0})
MODELS = model_pair(8, sharpness=3.0, noise=0.2)
GREEDY = model_pair(8, sharpness=3.0, noise=0.2, sampling=SamplingParams(temperature=0.0))
EVERY_GUMBEL = {
    **{f"coupled, {length}": preset("coupled", length) for length in (1, 2, 3, 5, 8)},
    "pipelined": scheduled("coupled", Schedule(8, 2, verify_on_arrival=True, bonus=False)),
    "streaming": scheduled("coupled", Schedule(4, 1, decode_when_idle=True)),
    "streaming, whole chunks": scheduled("coupled", Schedule(8, 4, decode_when_idle=True)),
}
EVERY = {
    **{
        f"{name}, {length}": preset(name, length if PRESETS[name].drafts else 1)
        for name, length in zip(PRESETS, cycle((3, 8)), strict=False)
    },
    "pipelined": scheduled("dsd", Schedule(8, 2, bonus=False)),
    "pipelined, split": scheduled("dssd", Schedule(8, 2, bonus=False)),
}
USUAL = frozenset(
    (
        *("ar", "dsd", "dssd", "picospec", "mc-dsd", "coupled", "fsd"),
        *("cloud-draft", "split"),
    )
)
METHODS = with_long_cases(
    EVERY,
    [
        *(name for name in EVERY if name.split(",")[0] in USUAL),
        "pipelined, split",
    ],
)
"""In `make test` one preset of each kind."""
GUMBEL = with_long_cases(
    EVERY_GUMBEL, ("coupled, 1", "coupled, 3", "coupled, 8", "pipelined", "streaming, whole chunks")
)


def stop_after(phrase: TokenIds) -> Callable[[int], bool]:
    """Matches a stop phrase in the tokens it gets, as a stop string in a detokenised text."""
    seen: list[int] = []

    def completes_stop(token_id: int) -> bool:
        seen.append(token_id)
        return tuple(seen[-len(phrase) :]) == phrase

    return completes_stop


@cache
def text_of_ar(seed: int, max_tokens: int) -> TokenIds:
    return run(preset("ar"), MODELS, seed, max_tokens=max_tokens).token_ids


def cut_at(text: TokenIds, ends: frozenset[int]) -> TokenIds:
    """`text` up to and with its first end."""
    for length, token in enumerate(text, start=1):
        if token in ends:
            return text[:length]
    return text


@pytest.mark.parametrize("method", GUMBEL)
def test_end_of_text_cuts_the_same_text(method: str) -> None:
    ended = 0
    for seed in range(32):
        whole = text_of_ar(seed, max_tokens=12)
        result = run(EVERY_GUMBEL[method], MODELS, seed, max_tokens=12, ends=ENDS)
        assert result.token_ids == cut_at(whole, ENDS)
        assert result.finish.reason is expected_reason(result)
        ended += result.finish.reason is FinishReason.STOP
    assert ended > 6


def expected_reason(result: SimulationResult) -> FinishReason:
    return FinishReason.STOP if result.token_ids[-1] in ENDS else FinishReason.LENGTH


@pytest.mark.parametrize("method", METHODS)
def test_nothing_follows_an_end_of_text(method: str) -> None:
    for seed in range(15):
        result = run(EVERY[method], MODELS, seed, max_tokens=12, ends=ENDS)
        assert result.token_ids == cut_at(result.token_ids, ENDS)
        assert result.finish.reason is expected_reason(result)
        if result.finish.reason is FinishReason.LENGTH:
            assert len(result.token_ids) == 12


@pytest.mark.parametrize("method", METHODS)
def test_ends_of_text_are_tokens_like_others_when_ignored(method: str) -> None:
    chosen = EVERY[method]
    seen = 0
    for seed in range(6):
        ignoring = run(chosen, MODELS, seed, max_tokens=12, ends=ENDS, ignore_eos=True)
        assert ignoring.token_ids == run(chosen, MODELS, seed, max_tokens=12).token_ids
        assert len(ignoring.token_ids) == 12
        assert ignoring.finish.reason is FinishReason.LENGTH
        seen += 0 in ignoring.token_ids[:-1]
    assert seen > 1


@pytest.mark.parametrize("method", METHODS)
def test_the_length_limit_falls_anywhere_in_a_chunk(method: str) -> None:
    for max_tokens in range(1, 14):
        result = run(EVERY[method], MODELS, max_tokens, max_tokens=max_tokens)
        assert len(result.token_ids) == max_tokens
        assert result.finish.reason is FinishReason.LENGTH


@pytest.mark.parametrize("method", GUMBEL)
def test_a_shorter_limit_cuts_the_same_text(method: str) -> None:
    for seed in range(3):
        whole = text_of_ar(seed, max_tokens=13)
        for max_tokens in range(1, 14):
            result = run(EVERY_GUMBEL[method], MODELS, seed, max_tokens=max_tokens)
            assert result.token_ids == whole[:max_tokens]


@pytest.mark.parametrize("method", GUMBEL)
def test_a_stop_phrase_ends_the_text_inside_a_chunk(method: str) -> None:
    for seed in range(24):
        whole = text_of_ar(seed, max_tokens=16)
        source = random.Random(seed)
        end = source.randint(2, 16)
        phrase = whole[end - source.randint(1, 2) : end]
        expected = next(
            whole[:length] for length in range(1, 17) if whole[:length][-len(phrase) :] == phrase
        )
        result = run(
            EVERY_GUMBEL[method],
            MODELS,
            seed,
            max_tokens=16,
            completes_stop=stop_after(phrase),
        )
        assert result.token_ids == expected
        assert result.finish.reason is FinishReason.STOP


def test_the_stop_callback_gets_every_token_once() -> None:
    for method, chosen in EVERY.items():
        seen: list[int] = []

        def listen(token_id: int, seen: list[int] = seen) -> bool:
            seen.append(token_id)
            return False

        result = run(chosen, MODELS, 5, max_tokens=12, ends=ENDS, completes_stop=listen)
        assert tuple(seen) == result.token_ids, method


@cache
def greedy_texts(chosen: Preset) -> list[TokenIds]:
    prompts = [(first, second) for first in range(8) for second in (first % 4, 5)]
    return [
        run(chosen, GREEDY, 1, prompt_ids=prompt, max_tokens=12, ends=ENDS).token_ids
        for prompt in prompts
    ]


@pytest.mark.parametrize("method", METHODS)
def test_greedy_answers_end_alike(method: str) -> None:
    assert greedy_texts(EVERY[method]) == greedy_texts(preset("ar"))
