"""Judging apart from the logits finds what the judge finds beside them."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from tandem.core.distribution import LogitsDistribution
from tandem.core.errors import InvalidArgument
from tandem.core.probs import SamplingParams, probs_from_logits
from tandem.core.randomness import SeededRandom
from tandem.core.sparse_payload import FullPayload, SparsePayload
from tandem.specdec.judge import Judge, RemoteJudge, RemoteReading, Verification, chain_steps
from tandem.specdec.presets import PRESETS
from tandem.specdec.rules import Proposal, Replacement, TargetProbs, acceptance_rule, payload_rule

VOCABULARY = 12
BASE = 7
END = 3
RANDOM = np.random.default_rng(5)
LOGITS = RANDOM.normal(scale=2.0, size=(200, 5, VOCABULARY)).astype(np.float32)
KINDS = ["coupled", "dsd", "dssd", "dssd-full", "picospec-top-k"]


def cases(name: str, sampling: SamplingParams) -> list[tuple[RemoteJudge, Any]]:
    """Chains of up to four drafts over random logits, some after known first distributions."""
    found = []
    for seed, logits in enumerate(LOGITS):
        preset, rng = PRESETS[name].fitted(VOCABULARY), SeededRandom(seed)
        rule = acceptance_rule(preset, seed, rng)
        drafts = int(RANDOM.integers(0, 5))
        known = min(drafts, int(RANDOM.choice((0, 0, 0, 1, 1, 1, 2, 3))))
        proposals = []
        for index in range(drafts):
            probs = probs_from_logits(logits[index] + RANDOM.normal(size=VOCABULARY), sampling)
            token_id = rule.propose(probs, BASE + index)
            if rule.drafter_invariant:
                proposals.append(Proposal((token_id,)))
            elif name == "dsd":
                proposals.append(Proposal((token_id,), draft_probs=probs))
            else:
                proposals.append(Proposal((token_id,), draft_prob=float(probs[token_id])))
        rows = [LogitsDistribution(row, sampling) for row in logits[:known]]
        judge = Judge(
            BASE,
            chain_steps(proposals),
            rule,
            payload_rule(preset, rule, rng),
            frozenset({END}),
            BASE + int(RANDOM.integers(1, 9)),
            tuple(rule.prepare(row, BASE + index) for index, row in enumerate(rows)),
            bonus=bool(RANDOM.random() < 0.7) or not drafts,
        )
        found.append((RemoteJudge(judge, sampling, VOCABULARY), logits[known:]))
    return found


def same(one: TargetProbs | Replacement | None, other: TargetProbs | Replacement | None) -> bool:
    match one, other:
        case FullPayload(), FullPayload():
            return np.array_equal(one.target_probs, other.target_probs)
        case SparsePayload(), SparsePayload():
            parts = ("ids", "probs", "tail_mass", "tail_ids", "tail_probs")
            return all(np.array_equal(getattr(one, n), getattr(other, n)) for n in parts)
        case np.ndarray(), np.ndarray():
            return np.array_equal(one, other)
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", KINDS)
def test_the_judgement_is_the_one_beside_the_logits(name: str, temperature: float) -> None:
    sampling = SamplingParams(temperature=temperature)
    refused, accepted, after_known = 0, 0, 0
    for remote, logits in cases(name, sampling):
        rows = [LogitsDistribution(row, sampling) for row in logits]
        wanted = remote.judge.judge(rows.__getitem__)
        found = remote.whole(pickle.loads(pickle.dumps(remote.reader))(logits))
        assert (found.path, found.token_ids) == (wanted.path, wanted.token_ids)
        assert same(found.next_target, wanted.next_target)
        assert same(found.replacement, wanted.replacement)
        assert len(found.targets) == len(wanted.targets)
        refused += found.replacement is not None
        accepted += bool(found.path)
        after_known += len(found.path) > len(remote.judge.known) > 0
    assert min(refused, accepted, after_known) > 5


@pytest.mark.parametrize(
    ("name", "temperature", "rows"), [("coupled", 1.0, 0), ("dsd", 0.0, 0), ("dssd", 1.0, 1)]
)
def test_no_row_crosses_that_nobody_draws_from(name: str, temperature: float, rows: int) -> None:
    """There go token ids and probabilities of drafts; back come ids and at most one row."""
    for remote, logits in cases(name, SamplingParams(temperature=temperature)):
        reader = remote.reader
        assert not reader.judge.known
        steps = reader.judge.steps.values()
        assert all(step.proposal.draft_probs is None for step in steps)
        reading: RemoteReading = reader(logits)
        arrays = [reading.next] if isinstance(reading.next, np.ndarray) else []
        assert len(arrays) <= rows


def test_a_rule_s_error_is_the_reader_s() -> None:
    remote, logits = cases("dssd", SamplingParams())[0]
    with pytest.raises(InvalidArgument, match="logits"):
        remote.reader(np.full_like(logits, np.nan))


def test_a_text_that_ends_asks_for_nothing_more() -> None:
    preset, rng = PRESETS["coupled"], SeededRandom(1)
    rule = acceptance_rule(preset, 1, rng)
    judge = Judge(
        BASE, chain_steps([Proposal((END,)), Proposal((4,))]), rule,
        payload_rule(preset, rule, rng), frozenset({END}), known=(END,),
    )  # fmt: skip
    found = RemoteJudge(judge, SamplingParams(), VOCABULARY).whole(RemoteReading((4,), 5, False))
    assert found == Verification((0,), (END,), (END,))
