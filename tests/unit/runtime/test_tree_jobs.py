"""Drafting and judging trees on an engine: one pass a layer, each node under its path's
distribution."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tandem.backends.interface import Engine, ForwardRequest, Session
from tandem.core.probs import SamplingParams, Truncation, probs_from_logits
from tandem.core.randomness import SeededRandom
from tandem.runtime.session_jobs import DraftRequest, VerifyJob
from tandem.runtime.tree_jobs import TreeDraftJob
from tandem.specdec.drafting import probs_to_draft_from
from tandem.specdec.events import Drafted, DraftTask
from tandem.specdec.judge import Judge, Step
from tandem.specdec.ngram_proposer import HitRates, NgramTexts
from tandem.specdec.presets import PRESETS, Preset
from tandem.specdec.proposers import DraftSource, TextDrafts
from tandem.specdec.rules import PayloadRule, Proposal, RejectionRule, TargetProbs, probs_of
from tandem.specdec.text_memory import TextMemory
from tandem.specdec.verify_task import VerifyTask
from tandem.testing.scripted import ScriptedEngine, scripted_probs

V = 12
PROBS = scripted_probs(4, V, order=9, sharpness=4.0)
RULE = RejectionRule(SeededRandom(3))
PRESET = replace(PRESETS["mc-dsd"], truncation=Truncation(top_k=5))
WORK = DraftTask(keep=0, token_ids=(1, 2), position=2, count=3, expansion=(2, 2, 2))


class Counted(ScriptedEngine):
    """Keeps what every pass was fed."""

    def __init__(self) -> None:
        super().__init__(V, PROBS)
        self.fed: list[tuple[int, ...]] = []

    def forward(self, batch: Any, *rest: Any) -> Any:
        self.fed += [request.token_ids for request in batch]
        return super().forward(batch, *rest)


def run(engine: Engine, job: TreeDraftJob) -> tuple[list[Drafted], int]:
    while True:
        (logits,) = engine.forward([job.request()])
        if job.take(logits):
            return job.result()


def drafted(
    session: Session,
    engine: Engine,
    work: DraftTask = WORK,
    sampling: SamplingParams | None = None,
    preset: Preset = PRESET,
) -> list[Drafted]:
    rule = RejectionRule(RULE.rng, preset.with_replacement)
    job = TreeDraftJob(session, DraftRequest(work, sampling or SamplingParams(), rule, preset))
    nodes, kv_length = run(engine, job)
    assert kv_length == session.length
    return nodes


def path_of(nodes: list[Drafted], node: int) -> tuple[int, ...]:
    above = path_of(nodes, nodes[node].parent) if node >= 0 else ()
    return (*above, nodes[node].token_id) if node >= 0 else ()


def test_every_candidate_is_drawn_from_its_own_path_s_distribution() -> None:
    engine = Counted()
    session = engine.open(20, spare=14)
    nodes = drafted(session, engine)
    assert [drafted.parent for drafted in nodes] == [-1, -1, 0, 0, 1, 1, *(2, 2, 3, 3, 4, 4, 5, 5)]
    assert [len(fed) for fed in engine.fed] == [2, 2, 4]
    assert (session.length, session.tree) == (2, (-1, -1, 0, 0, 1, 1))
    for node in nodes:
        logits = np.log(np.asarray(PROBS((1, 2, *path_of(nodes, node.parent)))))
        probs = probs_to_draft_from(probs_from_logits(logits, SamplingParams()), PRESET)
        assert node.draft_probs.tobytes() == probs.tobytes()
        assert probs[node.token_id] > 0
    siblings = {(node.parent, node.token_id) for node in nodes}
    assert len(siblings) == len(nodes)


def test_what_was_accepted_is_never_fed_again() -> None:
    engine = Counted()
    session = engine.open(20, spare=14)
    nodes = drafted(session, engine)
    engine.fed.clear()
    path, leaf, bonus = (1, 5), nodes[12].token_id, 7
    work = replace(WORK, keep=2, token_ids=(leaf, bonus), position=6, path=path)
    again = drafted(session, engine, work)
    assert engine.fed[0] == (leaf, bonus)
    assert session.length == 6
    text = (1, 2, nodes[1].token_id, nodes[5].token_id, leaf, bonus)
    probs = probs_from_logits(np.log(np.asarray(PROBS(text))), SamplingParams())
    assert again[0].draft_probs.tobytes() == probs_to_draft_from(probs, PRESET).tobytes()


def test_a_pass_that_is_repeated_keeps_the_path_once() -> None:
    engine = Counted()
    session = engine.open(20, spare=14)
    nodes = drafted(session, engine)
    task = replace(WORK, keep=2, token_ids=(3,), path=(0,))
    job = TreeDraftJob(session, DraftRequest(task, SamplingParams(), RULE, PRESET))
    first, second = job.request(), job.request()
    assert (first, session.length) == (second, 3)
    engine.forward([first])
    assert session.token_ids == [1, 2, nodes[0].token_id, 3]


def test_a_layer_that_a_failed_pass_fed_is_not_fed_twice() -> None:
    """An engine that runs a batch as several passes may feed this session's part, and then fail."""
    engine = Counted()
    session = engine.open(20, spare=20)
    job = TreeDraftJob(session, DraftRequest(WORK, SamplingParams(), RULE, PRESET))
    done = False
    while not done:
        engine.forward([job.request()])
        (logits,) = engine.forward([job.request()])
        done = job.take(logits)
    nodes, kv_length = job.result()
    assert (kv_length, session.length, session.tree) == (2, 2, (-1, -1, 0, 0, 1, 1))
    undisturbed = drafted(engine.open(20, spare=14), engine)
    assert [node.token_id for node in nodes] == [node.token_id for node in undisturbed]


def test_a_token_that_ends_the_text_is_not_expanded() -> None:
    engine = Counted()
    first = drafted(engine.open(20, spare=14), engine)[0].token_id
    nodes = drafted(engine.open(20, spare=14), engine, replace(WORK, ends=frozenset({first})))
    assert all(nodes[node.parent].token_id != first for node in nodes if node.parent >= 0)
    assert len(nodes) < 14


@pytest.mark.parametrize("top_k", [0, 2])
def test_greedy_candidates_are_the_likeliest(top_k: int) -> None:
    """The first branch is what the model would decode, and its siblings come next."""
    engine = Counted()
    sampling = SamplingParams(temperature=0.0, top_k=top_k)
    preset = replace(PRESET, truncation=Truncation(top_k=3))
    nodes = drafted(engine.open(20, spare=14), engine, sampling=sampling, preset=preset)
    for parent in range(-1, 6):
        probs = np.asarray(PROBS((1, 2, *path_of(nodes, parent))))
        found = {node.token_id for node in nodes if node.parent == parent}
        assert found == set(np.argsort(-probs)[:2].tolist())


class TakesOne(RejectionRule):
    """Accepts the candidate that comes `index`-th, or the last one before."""

    index = 0

    def accepted(self, target: TargetProbs, proposal: Proposal, position: int) -> int | None:
        return min(self.index, len(proposal.token_ids) - 1)


class TakesSecond(TakesOne):
    index = 1


@pytest.mark.parametrize(
    ("rule", "path", "judged"),
    [(TakesOne, (0, 2), [(), (4,), (4, 6)]), (TakesSecond, (1,), [(), (5,)])],
)
def test_a_tree_is_judged_by_one_pass_over_all_its_nodes(
    rule: type[RejectionRule], path: tuple[int, ...], judged: list[tuple[int, ...]]
) -> None:
    """By the distributions after the last committed token and after the nodes of its path."""
    engine = Counted()
    session = engine.open(20, spare=14)
    engine.forward([ForwardRequest(session, (1, 2), 0)])
    takes = rule(SeededRandom(3))
    steps = {-1: Step((0, 1), Proposal((4, 5))), 0: Step((2,), Proposal((6,)))}
    judge = Judge(3, steps, takes, PayloadRule(takes, SeededRandom(0)))
    tree = VerifyTask(2, (3, 4, 5, 6), 4, 3, judge, parents=(-1, 0, 0, 1))
    job = VerifyJob(session, tree, SamplingParams())
    (logits,) = engine.forward([job.request()])
    job.take(logits)
    assert tree.contexts((1, 2)) == [(1, 2, 3), (1, 2, 3, 4), (1, 2, 3, 5), (1, 2, 3, 4, 6)]
    verification = job.result()
    assert verification.path == path
    for probs, after in zip(verification.targets, judged, strict=True):
        np.testing.assert_allclose(probs_of(probs), np.asarray(PROBS((1, 2, 3, *after))), rtol=1e-5)


def test_of_a_judged_tree_the_path_is_kept() -> None:
    engine = Counted()
    session = engine.open(20, spare=14)
    engine.forward([ForwardRequest(session, (1, 2), 0)])
    engine.forward([ForwardRequest(session, (3, 4, 5, 6), 4, (-1, 0, 0, 1))])
    judge = Judge(6, {}, RULE, PayloadRule(RULE, SeededRandom(0)))
    after = VerifyJob(session, VerifyTask(2, (7,), 1, 0, judge, path=(0, 1, 3)), SamplingParams())
    engine.forward([after.request()])
    assert session.token_ids == [1, 2, 3, 4, 6, 7]


def remembering(*texts: tuple[int, ...]) -> TextDrafts:
    """What a memory proposes after (7, 1, 2) that was always right."""
    memory, hit_rates = TextMemory(quota=1000), HitRates()
    for text in texts:
        memory.learn(text, ())
        for length in (3, 5, 8):
            for _ in range(100):
                hit_rates.add(length, 1.0, True)
    source = NgramTexts((7, 1, 2), V, memory.index, hit_rates)
    return TextDrafts((source.begin(),), V)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_remembered_is_a_branch_of_the_tree(temperature: float) -> None:
    """Beside the draft model's candidates, from a distribution that has both."""
    said = (7, 1, 2, 11, 10, 9, 8)
    engine = Counted()
    sampling = SamplingParams(temperature=temperature)
    found = 0
    for seed in range(20):
        rule = RejectionRule(SeededRandom(seed))
        request = DraftRequest(WORK, sampling, rule, PRESET, texts=remembering(said))
        nodes, _ = run(engine, TreeDraftJob(engine.open(20, spare=14), request))
        assert len(nodes) == 14, "the model has its candidates"
        paths = {path_of(nodes, node) for node in range(len(nodes))}
        found += (11, 10, 9) in paths
        assert all(node.draft_probs[node.token_id] > 0 for node in nodes)
        assert not any(node.source is DraftSource.MEMORY for node in nodes)
    assert found >= (20 if temperature == 0 else 8)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_earlier_texts_go_on_differently_the_tree_has_a_branch_of_each(
    temperature: float,
) -> None:
    """Of which none alone is sure enough for a chain."""
    texts = remembering((7, 1, 2, 11, 10), (7, 1, 2, 3, 4))
    assert texts.proposed is None
    engine = Counted()
    sampling = SamplingParams(temperature=temperature)
    both = 0
    for seed in range(20):
        rule = RejectionRule(SeededRandom(seed))
        request = DraftRequest(WORK, sampling, rule, PRESET, texts=texts)
        nodes, _ = run(engine, TreeDraftJob(engine.open(20, spare=14), request))
        paths = {path_of(nodes, node) for node in range(len(nodes))}
        both += {(11, 10), (3, 4)} <= paths
    assert both >= (20 if temperature == 0 else 3)
