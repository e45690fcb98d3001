"""The early verdicts of a pass by a model's exits."""

from collections.abc import Sequence

import numpy as np
import pytest

from tandem.backends.torch.engine import HuggingFaceEngine
from tandem.core.probs import SamplingParams
from tandem.core.randomness import SeededRandom
from tandem.core.sparse_payload import SparsePayload
from tandem.runtime.session_jobs import VerifyJob
from tandem.specdec.choices import RejectionPayload
from tandem.specdec.judge import Judge, chain_steps
from tandem.specdec.messages import Frame
from tandem.specdec.rounds.exits import EarlyJudge
from tandem.specdec.rounds.messages import EarlyVerdict
from tandem.specdec.rules import (
    GumbelCouplingRule,
    PayloadRule,
    Proposal,
    RejectionRule,
)
from tandem.specdec.verify_task import VerifyTask
from tests.unit.backends.reference_models import CONTEXT, tokens
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
        return coupling, PayloadRule(coupling, rng)
    rule = RejectionRule(rng)
    return rule, PayloadRule(rule, rng, RejectionPayload.LOSSLESS_SPARSE, top=8, tail_draws=2)


def early_verdicts(
    engine: HuggingFaceEngine,
    drafts: Sequence[int],
    sampling: SamplingParams,
    *,
    seed: int,
    coupled: bool = False,
    ends: frozenset[int] = frozenset(),
) -> list[EarlyVerdict]:
    rule, payloads = rules(seed, coupled)
    source = np.random.default_rng(seed)
    proposals = [Proposal((token,), draft_prob=float(source.uniform(0, 0.01))) for token in drafts]
    judge = Judge(len(PROMPT), chain_steps(proposals), rule, payloads, ends)
    frame = Frame(1, len(PROMPT), 7)
    work = VerifyTask(
        keep=0,
        token_ids=(*PROMPT, *drafts),
        logits_to_keep=len(drafts) + 1,
        drafts=len(drafts),
        judge=judge,
        early=EarlyJudge(frame, (0, 1), judge, TEMPERATURES),
    )
    said: list[EarlyVerdict] = []
    session = engine.open(CONTEXT)
    job = VerifyJob(session, work, sampling, on_early=said.append)
    engine.forward([job.request()])
    session.close()
    return said


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


@pytest.fixture(scope="module")
def engine() -> HuggingFaceEngine:
    return engine_of(reference("llama"), fast_path=True, trained=True)


@pytest.mark.parametrize("sampling", [WARM, GREEDY, SamplingParams(top_p=0.9)])
def test_what_an_exit_says_itself_stands(
    engine: HuggingFaceEngine, sampling: SamplingParams
) -> None:
    """Under the shared noise a draft stands where it is the token that the exit would draw."""
    for seed in range(6):
        drafts = tokens(DRAFTS, seed=40 + seed)
        before = early_verdicts(engine, drafts, sampling, seed=seed, coupled=True)
        assert [verdict.exit_index for verdict in before] == [0, 1]
        assert isinstance(before[1].outcome, int)
        drafts[before[1].accepted] = before[1].outcome
        after = early_verdicts(engine, drafts, sampling, seed=seed, coupled=True)
        assert after[1].accepted > before[1].accepted


def test_a_draft_that_ends_the_text_leaves_nothing_to_say(engine: HuggingFaceEngine) -> None:
    drafts = tokens(DRAFTS, seed=41)
    free = early_verdicts(engine, drafts, WARM, seed=2)
    accepted = free[0].accepted
    assert accepted > 0
    ends = frozenset({drafts[accepted - 1]})
    said = early_verdicts(engine, drafts, WARM, seed=2, ends=ends)
    assert free[0].exit_index not in {verdict.exit_index for verdict in said}
