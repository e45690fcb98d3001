"""Where logits lie on a device, the row of an exit that its verdict needs is found there. The
verdicts are those that whole logits give."""

from collections.abc import Sequence

import numpy as np
import pytest

from tandem.backends.interface import ForwardRequest
from tandem.backends.torch.engine import HuggingFaceEngine
from tandem.core.probs import SamplingParams
from tandem.core.randomness import SeededRandom
from tandem.core.sparse_payload import SparsePayload
from tandem.runtime.session_jobs import VerifyJob
from tandem.specdec.cloud import VerifyTask
from tandem.specdec.judge import EarlyJudge, Judge, chain_steps
from tandem.specdec.messages import EarlyVerdict, Frame
from tandem.specdec.rules import (
    GumbelCouplingRule,
    LosslessSparsePayload,
    PayloadRule,
    Proposal,
    RejectionRule,
    TargetProbs,
    TokenPayload,
)
from tests.unit.backends.reference_models import CONTEXT, VOCABULARY, tokens
from tests.unit.backends.test_exits import engine_of, reference

PROMPT = tuple(tokens(9, seed=3))
DRAFTS = 4
WARM = SamplingParams()
GREEDY = SamplingParams(temperature=0.0)
TEMPERATURES = (0.7, 1.6)


def rules(seed: int, coupled: bool) -> tuple[RejectionRule | GumbelCouplingRule, PayloadRule]:
    rng = SeededRandom(seed)
    if coupled:
        coupling = GumbelCouplingRule(seed)
        return coupling, TokenPayload(coupling, rng)
    rule = RejectionRule(rng)
    return rule, LosslessSparsePayload(rule, rng, top=8, tail_draws=2)


def early_verdicts(
    engine: HuggingFaceEngine,
    drafts: Sequence[int],
    sampling: SamplingParams,
    *,
    seed: int,
    coupled: bool = False,
    ends: frozenset[int] = frozenset(),
    frontier: bool = False,
) -> tuple[list[EarlyVerdict], ForwardRequest]:
    rule, payloads = rules(seed, coupled)
    source = np.random.default_rng(seed)
    proposals = [Proposal((token,), draft_prob=float(source.uniform(0, 0.01))) for token in drafts]
    known: tuple[TargetProbs, ...] = ()
    if frontier:
        known = (rule.prepare(np.full(VOCABULARY, 1 / VOCABULARY, dtype=np.float32), len(PROMPT)),)
    judge = Judge(len(PROMPT), chain_steps(proposals), rule, payloads, ends, known=known)
    frame = Frame(1, 0, len(PROMPT), 7)
    work = VerifyTask(
        keep=0,
        token_ids=(*PROMPT, *drafts),
        logits_to_keep=len(drafts) + 1 - frontier,
        drafts=len(drafts),
        judge=judge,
        early=EarlyJudge(frame, (0, 1), judge, TEMPERATURES),
    )
    said: list[EarlyVerdict] = []
    session = engine.open(CONTEXT)
    job = VerifyJob(session, work, sampling, on_early=said.append)
    request = job.request()
    engine.forward([request])
    session.close()
    return said, request


@pytest.fixture(scope="module")
def engines() -> tuple[HuggingFaceEngine, HuggingFaceEngine]:
    """One that copies whole logits, and one that chooses rows where they are."""
    model = reference("llama")
    whole, rows = (engine_of(model, fast_path=True, trained=True) for _ in range(2))
    for engine, selects in ((whole, False), (rows, True)):
        assert engine.early_exits is not None
        engine.early_exits.selects_rows = selects
    return whole, rows


def assert_same(one: EarlyVerdict, other: EarlyVerdict) -> None:
    assert (one.exit_index, one.accepted, one.rejected) == (
        other.exit_index,
        other.accepted,
        other.rejected,
    )
    assert one.confidence == pytest.approx(other.confidence, abs=1e-5)
    if isinstance(one.outcome, SparsePayload):
        assert isinstance(other.outcome, SparsePayload)
        assert one.outcome.ids.tolist() == other.outcome.ids.tolist()
        assert np.allclose(one.outcome.probs, other.outcome.probs, atol=1e-6)
        assert one.outcome.tail_ids.tolist() == other.outcome.tail_ids.tolist()
    else:
        assert one.outcome == other.outcome


@pytest.mark.parametrize(
    ("sampling", "coupled", "chosen"),
    [
        (WARM, False, True),
        (SamplingParams(temperature=0.6), False, True),
        (GREEDY, False, True),
        (GREEDY, True, True),
        (WARM, True, False),  # the noise of all tokens decides it
        (SamplingParams(top_p=0.9), False, False),
        (SamplingParams(top_k=5), False, False),
    ],
)
def test_the_verdicts_are_those_of_whole_logits(
    engines: tuple[HuggingFaceEngine, HuggingFaceEngine],
    sampling: SamplingParams,
    coupled: bool,
    chosen: bool,
) -> None:
    accepted = set[int]()
    for seed in range(6):
        drafts = tokens(DRAFTS, seed=40 + seed)
        if coupled or (sampling.greedy and seed % 2):  # what the exit says itself stands
            said, _ = early_verdicts(engines[0], drafts, sampling, seed=seed, coupled=True)
            assert isinstance(said[1].outcome, int)
            drafts[0] = said[1].outcome
        whole, rows = (
            early_verdicts(engine, drafts, sampling, seed=seed, coupled=coupled)
            for engine in engines
        )
        assert (rows[1].exit_check is not None) == chosen
        assert len(whole[0]) == len(rows[0]) == 2
        for one, other in zip(whole[0], rows[0], strict=True):
            assert_same(one, other)
        accepted |= {verdict.accepted for verdict in whole[0]}
    assert len(accepted) > 1


def test_one_row_is_copied(
    engines: tuple[HuggingFaceEngine, HuggingFaceEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VerifyJob, "_judge_early", None)
    said, _ = early_verdicts(engines[1], tokens(DRAFTS, seed=40), WARM, seed=1)
    assert len(said) == 2


def test_a_draft_that_ends_the_text_leaves_nothing_to_say(
    engines: tuple[HuggingFaceEngine, HuggingFaceEngine],
) -> None:
    drafts = tokens(DRAFTS, seed=41)
    for engine in engines:
        free, _ = early_verdicts(engine, drafts, WARM, seed=2)
        accepted = free[0].accepted
        assert accepted > 0
        ends = frozenset({drafts[accepted - 1]})
        said, _ = early_verdicts(engine, drafts, WARM, seed=2, ends=ends)
        assert free[0].exit_index not in {verdict.exit_index for verdict in said}


def test_what_was_known_before_needs_no_row(
    engines: tuple[HuggingFaceEngine, HuggingFaceEngine],
) -> None:
    whole, rows = (
        early_verdicts(engine, tokens(DRAFTS, seed=42), WARM, seed=3, frontier=True)[0]
        for engine in engines
    )
    assert len(whole) == len(rows) == 2
    for one, other in zip(whole, rows, strict=True):
        assert_same(one, other)
