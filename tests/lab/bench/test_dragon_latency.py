"""What is predicted for two-sided answers, against the machines in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from lab.bench.harness.report import make_row
from lab.bench.two_sided.dragon_corpus import RankedDocument
from lab.bench.two_sided.dragon_latency import PACINGS, PRESETS, answer, goals
from lab.bench.two_sided.dragon_prediction import (
    Acceptance,
    Times,
    aggregated_s,
    coupled_s,
    measure_acceptance,
    owners_of,
    synchronous_s,
)
from lab.bench.two_sided.dragon_probs import Question, after_documents
from lab.bench.two_sided.dragon_ttft import Hardware, first_token_s, waits_below
from lab.bench.two_sided.overridden import overridden
from tandem.core.probs import SamplingParams
from tandem.testing.scripted import ScriptedEngine, scripted_probs
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import (
    AGGREGATION_PRESETS,
    DocumentContext,
    LocalProbs,
    ProbsPayload,
)

SIZE = 96
TIMES = Times(0.06, 0.05, 0.2)
ALWAYS = Acceptance(1, 1, 1.0, 0.0)
NEVER = Acceptance(0, 0, 0.0, 1.0)
OWNERS = [[Side.DEVICE, Side.CLOUD, Side.CLOUD, Side.DEVICE] * 6]


@pytest.fixture(scope="module")
def question() -> Iterator[Question]:
    """Two documents a side, over one model whose distribution follows its last two tokens."""
    engine = ScriptedEngine(SIZE, scripted_probs(1, SIZE, order=40), context_length=256)
    documents = [RankedDocument(tuple(range(start, start + 20)), 1.0) for start in range(4)]
    found = Question(
        (1, 2, 3),
        after_documents(engine, documents[:2], SamplingParams()),
        after_documents(engine, documents[2:], SamplingParams()),
    )
    yield found
    found.close()


def test_sides_that_always_agree_go_at_the_pace_of_the_slower_at_most() -> None:
    assert coupled_s(TIMES, ALWAYS, OWNERS, seed=1) <= 0.06 + 0.1 / 23
    same = Times(0.05, 0.05, 0.0)
    assert coupled_s(same, ALWAYS, OWNERS, seed=1) == pytest.approx(0.05)


def test_sides_that_never_agree_wait_one_way_at_each_change_of_owner() -> None:
    """From the device to the cloud: 0.1 s and the cloud's step, and as long back again, less what
    passes until the first token is seen."""
    changes = [[Side.DEVICE, Side.CLOUD] * 50]
    per_token_s = coupled_s(TIMES, NEVER, changes, seed=1)
    assert per_token_s == pytest.approx((0.1 + 0.05 + 0.1 + 0.06) / 2, rel=0.02)


def test_no_acceptance_is_waiting_for_every_token() -> None:
    assert aggregated_s(TIMES, NEVER, Side.DEVICE) == synchronous_s(TIMES) == pytest.approx(0.25)
    assert aggregated_s(TIMES, ALWAYS, None) == pytest.approx(0.06)


def test_acceptance_is_measured_along_the_text(question: Question) -> None:
    alike = Question(question.prompt_ids, question.device, question.device)
    whole = LocalProbs(payload=ProbsPayload.FULL)
    same = measure_acceptance([alike], whole, seed=1, tokens=12)
    assert (same.agreement, same.distance) == (1.0, 0.0)
    assert 0.5 < same.device < 1
    other = measure_acceptance([question], whole, seed=1, tokens=12)
    assert other.agreement < 1
    assert other.distance > 0.05
    by_head = measure_acceptance([question], AGGREGATION_PRESETS["dragon"].probs, 1, 12)
    assert 0.9 * other.device < by_head.device < other.device


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_runs_and_waiting_is_as_predicted(name: str, question: Question) -> None:
    ran = answer(overridden(name), question, TIMES, 0.0, seed=3, tokens=8)
    assert len(ran.token_ids) == 8
    if name == "drdg-tw":
        tpot_s = (ran.commits[-1][0] - ran.commits[0][0]) / 7
        assert tpot_s == pytest.approx(synchronous_s(TIMES))


def test_the_coin_s_recursion_follows_the_machines(question: Question) -> None:
    """With agreement known at every position the recursion has no freedom left."""
    alike = Question(question.prompt_ids, question.device, question.device)
    ran = answer(AGGREGATION_PRESETS["dragon-coupled"], alike, TIMES, 0.0, seed=5, tokens=16)
    measured_s = (ran.commits[-1][0] - ran.commits[0][0]) / 15
    owners = [owners_of(alike, 5, 16)]
    # The machines' cloud starts half a round trip later, when it has been asked.
    assert measured_s == pytest.approx(coupled_s(TIMES, ALWAYS, owners, seed=1), abs=0.012)


def test_the_first_token_has_retrieval_and_prompt_in_it(question: Question) -> None:
    hardware = Hardware()

    def ttft_s(name: str, context: DocumentContext) -> float:
        preset = replace(AGGREGATION_PRESETS[name], context=context)
        return first_token_s(preset, question, TIMES, hardware, 1)

    # One sequence a document: the prompt in each, and what is fetched as text.
    alone_s = ttft_s("crcg-device", DocumentContext.SEPARATE)
    assert alone_s == pytest.approx(0.0526 + 2 * 3 * 0.013 + 0.06)
    text_s = ttft_s("drcg-text", DocumentContext.SEPARATE)
    asked_s = 0.2 + 0.0526
    assert text_s == pytest.approx(alone_s + asked_s + (2 * 3 + 2 * 64) * 0.013)
    # One sequence of all: the prompt once, and every document but those at its beginning.
    alone_s = ttft_s("crcg-device", DocumentContext.JOINED)
    assert alone_s == pytest.approx(0.0526 + (3 + 64) * 0.013 + 0.06)
    assert ttft_s("drcg-text", DocumentContext.JOINED) == pytest.approx(
        0.0526 + asked_s + (3 + 4 * 64) * 0.013 + 0.06
    )
    assert ttft_s("drcg-kv", DocumentContext.JOINED) == pytest.approx(
        0.0526 + asked_s + 0.2 + 114e6 / 12.5e6 + (3 + 2 * 64) * 0.013 + 0.06
    )
    assert waits_below(0.302, hardware) == 12
    assert waits_below(0.0, hardware) == 0


def test_goals_compare_the_longest_link_and_every_cell() -> None:
    fast = {"dragon-coupled": 0.05, "dragon": 0.1, "dragon-device": 0.12}
    rows = [
        make_row(
            preset=name,
            pacing=pacing.name,
            added_s=added_s,
            tpot_s=fast.get(name, 0.2),
            efficiency=0.95,
        )
        for name in PRESETS
        for pacing in PACINGS
        for added_s in (0.0, 0.3)
    ]
    found = {goal.name.split(",")[0]: goal for goal in goals(rows)}
    assert found["TPOT saved by dragon over drdg-tw"].figure == pytest.approx(0.5)
    assert found["TPOT saved by dragon-coupled over dragon"].figure == pytest.approx(0.5)
    assert all(goal.met for goal in found.values())
    slower = [row | {"tpot_s": 0.04} if row["preset"] == "drdg-tw" else row for row in rows]
    assert not all(goal.met for goal in goals(slower))
