"""Answers from more than two sides: the text that one machine with all documents gives, and the
mixture's distribution; whichever link is slow, cut or lost."""

from collections import Counter
from fractions import Fraction
from typing import Any

import pytest

from lab.simulation.two_sided_answer import TwoSidedAnswer
from tandem.core.randomness import SeededRandom
from tandem.core.stopping import FinishReason
from tandem.core.tokens import TokenSource
from tandem.netem.link_model import link_from
from tandem.specdec.events import Commit
from tandem.specdec.liveness import LivenessTimes, LostCloud
from tandem.two_sided.many_sides import (
    ManySidesStats,
    SidesCommit,
    coupled_number,
    mixture_of,
    preset_of_sides,
    shares_of,
)
from tandem.two_sided.protocol.presets import AggregationMode
from tests.exact import fractions, outcome_probs
from tests.virtual_time.cases import assert_sample, faults_of
from tests.virtual_time.more_sides import (
    ManySides,
    central_text,
    many_sides,
    processed_sides,
    run_many,
)
from tests.virtual_time.test_aggregation_text import PROCESSORS
from tests.virtual_time.test_exact_distribution import NumberPerDecision
from tests.virtual_time.two_sides import (
    Answer,
    chosen,
    documents,
    factors_of,
    request_for,
    run_sides,
)

MASSES = (0.4, 0.0, 0.9, -0.5, 0.2)
SIZES = documents(12)
TIMES = LivenessTimes(ping_after_s=0.2, dead_after_s=0.6, give_up_after_s=1.0)


def sides_of(commit: Commit) -> tuple[tuple[int, ...], ...]:
    assert isinstance(commit, SidesCommit)
    return commit.token_sides


def made_by(result: TwoSidedAnswer, number: int) -> int:
    stats = result.stats[0]
    assert isinstance(stats, ManySidesStats)
    return stats.made[number]


def asked(seed: int, count: int, **options: Any) -> Any:
    choices = {name: options.pop(name) for name in ("top", "reweigh_every") if name in options}
    preset = preset_of_sides(chosen("dragon-coupled", **choices), count)
    return request_for(preset, SIZES, seed, **{"max_tokens": 12, **options})


@pytest.mark.parametrize("count", [3, 5])
def test_no_fault_or_link_changes_a_text(count: int) -> None:
    sides = many_sides(12, MASSES[:count])
    for seed in range(10):
        request = asked(seed, count)
        result = run_many(request, sides, faults=faults_of(seed, span_s=1.0))
        assert result.token_ids == central_text(request, sides), seed
        assert result.stats[0].tokens == 12


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_so_it_is_where_the_weights_change(temperature: float) -> None:
    sides = many_sides(12, MASSES[:3], reweigh_every=4)
    for seed in range(8):
        request = asked(seed, 3, temperature=temperature, reweigh_every=4, max_tokens=14)
        result = run_many(request, sides, faults=faults_of(seed, span_s=1.0))
        assert result.token_ids == central_text(request, sides), seed
        if seed == 0:
            assert result.token_ids != central_text(request, many_sides(12, MASSES[:3]))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_so_it_is_of_the_processed_mixture(temperature: float) -> None:
    plain = many_sides(12, MASSES[:3])
    sides = processed_sides(plain, factors_of(PROCESSORS, 12))
    for seed in range(8):
        request = asked(seed, 3, temperature=temperature, processors=PROCESSORS)
        result = run_many(request, sides, faults=faults_of(seed, span_s=1.0))
        assert result.token_ids == central_text(request, sides), seed
        if seed == 0:
            assert result.token_ids != central_text(request, plain), "the processors matter"


def test_at_temperature_0_the_text_is_the_argmax_of_all_and_short_lists_grow() -> None:
    sides, fetches = many_sides(12, MASSES[:4], likeness=0.3), 0
    for seed in range(10):
        prompt_ids = (seed % 12, 5 * seed % 12)
        request = asked(seed, 4, temperature=0, top=2, prompt_ids=prompt_ids)
        result = run_many(request, sides)
        assert result.token_ids == central_text(request, sides), seed
        fetches += result.stats[0].fetches
    assert fetches > 0


def test_of_two_sides_a_coin_at_the_device_gives_the_same_text() -> None:
    sides = documents(12, seed=2, sharpness=3.0)
    for seed in range(8):
        preset = chosen("dragon-coupled")
        request = request_for(preset, sides, seed, max_tokens=12)
        at_device = chosen("dragon-coupled", mode=AggregationMode.DEVICE_COIN)
        other = request_for(at_device, sides, seed, max_tokens=12)
        assert run_sides(other, sides).token_ids == run_sides(request, sides).token_ids


SHARES = (Fraction(1, 4), Fraction(1, 4), Fraction(1, 2))
ROWS = ([1, 2, 5, 0], [4, 1, 1, 2], [0, 1, 3, 0])


def test_the_answers_distribution_is_the_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two tokens, in fractions, over every path through the random choices."""
    monkeypatch.setattr("tandem.two_sided.many_sides.shares_of", lambda masses: SHARES)
    rows = [{last: fractions(row[last:] + row[:last]) for last in range(4)} for row in ROWS]

    def probs_of(number: int) -> Any:
        return lambda context: rows[number][context[-1]]

    sides = ManySides(4, tuple(map(probs_of, range(3))), lambda number, context: 0.0)
    preset = preset_of_sides(chosen("dragon-coupled"), 3)

    def answer(rng: Any) -> Answer:
        request = request_for(preset, documents(4), 0, max_tokens=2)
        links = [link_from(0.05), link_from(0.02)]
        return run_many(request, sides, links=links, rng=NumberPerDecision(rng)).token_ids

    wanted = {
        (first, second): before * after
        for first, before in enumerate(mixture_of([row[2] for row in rows], SHARES))
        for second, after in enumerate(mixture_of([row[first] for row in rows], SHARES))
        if before * after
    }
    assert outcome_probs(answer, once=False) == wanted
    assert sum(wanted.values()) == 1


def test_answers_over_faulty_links_are_distributed_as_the_mixture() -> None:
    sides, counts = many_sides(3, MASSES[:3], likeness=0.3), Counter[Answer]()
    for seed in range(240):
        faults = faults_of(seed, span_s=0.5) if seed % 3 == 0 else None
        request = request_for(
            preset_of_sides(chosen("dragon-coupled"), 3), documents(3), seed, max_tokens=2
        )
        counts[run_many(request, sides, faults=faults).token_ids] += 1
    shares = shares_of(MASSES[:3])
    wanted: dict[Answer, float] = {(): 1.0}
    for _ in range(2):
        wanted = {
            (*answer, token): before * float(after)
            for answer, before in wanted.items()
            for token, after in enumerate(
                mixture_of([probs((1, 2, *answer)) for probs in sides.probs], shares)
            )
        }
    assert_sample(counts, wanted)


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_side_without_documents_makes_no_token(number: int, temperature: float) -> None:
    masses = [0.3, 0.1, 0.2]
    masses[number] = float("-inf")
    sides = many_sides(12, masses)
    request = asked(3, 3, temperature=temperature)
    result = run_many(request, sides)
    assert result.token_ids == central_text(request, sides)
    rest = [each for each in range(3) if each != number]
    without = ManySides(
        12, tuple(sides.probs[each] for each in rest), lambda at, _: masses[rest[at]]
    )
    if request.sampling.greedy:
        assert result.token_ids == central_text(request, without)


def test_who_made_a_token_is_known_and_judged_by_side() -> None:
    sides = many_sides(12, MASSES[:3])
    request = asked(4, 3, max_tokens=40)
    result = run_many(request, sides)
    made = [source for _, commit in result.commits for source in commit.token_sources]
    shares = shares_of(MASSES[:3])
    rng = SeededRandom(request.seed)
    owners = [coupled_number(shares, rng, 2 + place) for place in range(40)]
    told = (TokenSource.DEVICE, TokenSource.CLOUD, TokenSource.SIDE)
    assert made == [told[owner] for owner in owners]
    sides_of_tokens = [numbers for _, commit in result.commits for numbers in sides_of(commit)]
    assert sides_of_tokens == [(owner,) for owner in owners]
    stats = result.stats[0]
    for number in range(3):
        assert owners.count(number) <= stats.accepted[number] <= stats.drafted[number] <= 40
        assert made_by(result, number) == owners.count(number)


def test_at_temperature_0_those_made_a_token_who_had_drafted_it() -> None:
    result = run_many(asked(4, 3, temperature=0, max_tokens=40), many_sides(12, MASSES[:3]))
    alone = [0, 0, 0]
    for _, commit in result.commits:
        for source, numbers in zip(commit.token_sources, sides_of(commit), strict=True):
            assert (source is TokenSource.BOTH) == (len(numbers) > 1)
            assert (source is TokenSource.RECOVERED) == (not numbers)
            assert (source is TokenSource.SIDE) == (numbers == (2,))
            if len(numbers) == 1:
                alone[numbers[0]] += 1
    assert [made_by(result, number) for number in range(3)] == alone
    assert 0 < sum(alone) < 40


@pytest.mark.parametrize("link", [0, 1])
def test_a_lost_side_leaves_the_device_alone_or_fails_the_request(link: int) -> None:
    sides = many_sides(12, MASSES[:3])
    for policy in (LostCloud.EDGE, LostCloud.FAIL):
        links = [link_from(0.02), link_from(0.02)]
        links[link].cut(0.5)
        links[link].restore(1e9)
        request = asked(2, 3, max_tokens=60)
        result = run_many(request, sides, links=links, lost_cloud=policy, liveness_times=TIMES)
        verified = len(result.token_ids) - result.stats[0].unverified_tokens
        assert 0 < verified < 60
        assert result.token_ids[:verified] == central_text(request, sides)[:verified]
        if policy is LostCloud.FAIL:
            assert result.finish.reason is FinishReason.ERROR
            assert verified == len(result.token_ids)
        else:
            assert len(result.token_ids) == 60


def test_a_side_that_comes_back_is_waited_for() -> None:
    sides = many_sides(12, MASSES[:3])
    links = [link_from(0.02), link_from(0.02)]
    links[1].cut(0.3)
    links[1].restore(2.0)
    request = asked(2, 3, max_tokens=30)
    result = run_many(request, sides, links=links, liveness_times=TIMES)
    assert result.token_ids == central_text(request, sides)
    assert result.stats[0].links_lost > 0
    assert result.duration_s > 2.0
