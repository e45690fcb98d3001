"""Efficiency on a paced pair behind an emulated link: predicted ÷ measured TPOT.

The prediction adds up what the run itself measured (`lab.bench.speculation.prediction`); pacing
makes the models' times those of larger hardware, so what is missing to 1 is overhead and nothing
else.
"""

from __future__ import annotations

from collections.abc import Sequence

from lab.bench.harness.report import Row, counted
from lab.bench.harness.suite import Models, Pacing, Suite, running_suite
from lab.bench.harness.texts import prompts
from lab.bench.harness.workload import (
    add_speedups,
    answers_row,
    one_after_another,
    requests,
    summary_of,
)
from lab.bench.speculation.prediction import (
    RoundSums,
    SetLink,
    stop_and_wait_tpot_s,
    streamed_tpot_s,
)
from tandem.generation.client import Generated
from tandem.net.process import run_loop

PRESETS = ("ar", "dsd", "dssd", "coupled")
PACING = Pacing(draft_s=0.024, verify_first_s=0.072, verify_further_s=0.003)
RTTS_S = (0.0, 0.030, 0.100)
MBPS = 20.0
DRAFT_LENGTH = 4


def measure_efficiency(
    models: Models, answers: int, max_tokens: int, seed: int, rtts_s: Sequence[float] = RTTS_S
) -> list[Row]:
    """Return one row per preset and round trip."""
    texts = prompts(answers)
    rows: list[Row] = []
    with running_suite(models, PACING, with_link=True) as suite:
        assert suite.link is not None, "a link was asked for"
        prefills_s = _prefills_s(suite, texts, seed)
        for rtt_s in counted(rtts_s, lambda rtt_s: f"efficiency, round trip {rtt_s * 1e3:g} ms"):
            link = SetLink(rtt_s, MBPS)
            suite.link.set(link.rtt_s, link.mbps)
            for preset in PRESETS:
                wanted = requests(texts, preset, DRAFT_LENGTH, max_tokens, seed)
                done = run_loop(one_after_another(suite, wanted))
                rows.append(_row(preset, done, prefills_s, link, seed))
    add_speedups(rows)
    return rows


def _prefills_s(suite: Suite, texts: Sequence[str], seed: int) -> list[float]:
    """Return the seconds that the target takes for each prompt, which is its only pass in an answer
    of one token."""
    done = run_loop(one_after_another(suite, requests(texts, "ar", None, 1, seed)))
    return [summary_of(answer).verify_s for answer in done]


def _row(
    preset: str,
    answers: Sequence[Generated],
    prefills_s: Sequence[float],
    link: SetLink,
    seed: int,
) -> Row:
    drafts = summary_of(answers[0]).rounds > 0
    row = answers_row(preset, DRAFT_LENGTH if drafts else None, answers)
    predicted_s = predicted_tpot_s(answers, prefills_s, link)
    return row | {
        "part": "efficiency",
        "pacing": PACING.to_json(),
        "rtt_s": link.rtt_s,
        "mbps": link.mbps,
        "seed": seed,
        "predicted_tpot_s": predicted_s,
        "efficiency": predicted_s / row["tpot_s"],
    }


def predicted_tpot_s(
    answers: Sequence[Generated], prefills_s: Sequence[float], link: SetLink
) -> float:
    """Return the predicted TPOT over all answers, weighted by their tokens after the first, as the
    measured one is."""
    decoding_s = 0.0
    for answer, prefill_s in zip(answers, prefills_s, strict=True):
        decoding_s += _answer_tpot_s(answer, prefill_s, link) * (len(answer.token_ids) - 1)
    return decoding_s / sum(len(answer.token_ids) - 1 for answer in answers)


def _answer_tpot_s(answer: Generated, prefill_s: float, link: SetLink) -> float:
    summary = summary_of(answer)
    if not summary.rounds:
        return streamed_tpot_s(
            summary.tokens, summary.verify_s, prefill_s, summary.downlink_bytes, link
        )
    sums = RoundSums(
        tokens=summary.tokens,
        rounds=summary.rounds,
        drafted=summary.drafted,
        draft_s=summary.draft_s,
        verify_s=summary.verify_s,
        uplink_bytes=summary.uplink_bytes,
        downlink_bytes=summary.downlink_bytes,
        full_distribution_requests=summary.full_distribution_requests,
    )
    return stop_and_wait_tpot_s(sums, link)
