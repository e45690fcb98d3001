"""Drafting and judging trees on an engine: one pass a layer, each node under its path's law."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tandem.core.chance import SeededChance
from tandem.core.laws import Sampling, law_from_logits
from tandem.core.truncation import Truncation
from tandem.engine.base import Engine, Segment, Session
from tandem.engine.scripted import ScriptedEngine, scripted_law
from tandem.engine.session_jobs import VerifyJob
from tandem.engine.tree_jobs import TreeDraftJob
from tandem.policy.draft_laws import law_to_draft_from
from tandem.policy.presets import PRESETS, Preset
from tandem.protocol.outputs import Drafted, DraftWork
from tandem.protocol.rules import RejectionRule
from tandem.protocol.verify_work import VerifyWork

V = 12
LAW = scripted_law(4, V, order=9, sharpness=4.0)
RULE = RejectionRule(SeededChance(3))
PRESET = replace(PRESETS["mc-dsd"], truncation=Truncation(top_k=5))
WORK = DraftWork(keep=0, token_ids=(1, 2), position=2, count=3, expansion=(2, 2, 2))


class Counted(ScriptedEngine):
    """Keeps what every pass was fed."""

    def __init__(self) -> None:
        super().__init__(V, LAW)
        self.fed: list[tuple[int, ...]] = []

    def forward(self, batch: Any, *rest: Any) -> Any:
        self.fed += [segment.token_ids for segment in batch]
        return super().forward(batch, *rest)


def run(engine: Engine, job: TreeDraftJob) -> tuple[list[Drafted], int]:
    while True:
        (logits,) = engine.forward([job.segment()])
        if job.take(logits):
            return job.result()


def drafted(
    session: Session,
    engine: Engine,
    work: DraftWork = WORK,
    sampling: Sampling | None = None,
    preset: Preset = PRESET,
) -> list[Drafted]:
    rule = RejectionRule(RULE.chance, preset.with_replacement)
    job = TreeDraftJob(session, work, sampling or Sampling(), rule, preset)
    nodes, kv_length = run(engine, job)
    assert kv_length == session.length
    return nodes


def path_of(nodes: list[Drafted], node: int) -> tuple[int, ...]:
    above = path_of(nodes, nodes[node].parent) if node >= 0 else ()
    return (*above, nodes[node].token_id) if node >= 0 else ()


def test_every_candidate_is_drawn_from_its_own_path_s_law() -> None:
    engine = Counted()
    session = engine.open(20, spare=14)
    nodes = drafted(session, engine)
    assert [drafted.parent for drafted in nodes] == [-1, -1, 0, 0, 1, 1, *(2, 2, 3, 3, 4, 4, 5, 5)]
    assert [len(fed) for fed in engine.fed] == [2, 2, 4]
    assert (session.length, session.tree) == (2, (-1, -1, 0, 0, 1, 1))
    for node in nodes:
        logits = np.log(np.asarray(LAW((1, 2, *path_of(nodes, node.parent)))))
        law = law_to_draft_from(law_from_logits(logits, Sampling()), PRESET)
        assert node.draft_probs.tobytes() == law.tobytes()
        assert law[node.token_id] > 0
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
    law = law_from_logits(np.log(np.asarray(LAW(text))), Sampling())
    assert again[0].draft_probs.tobytes() == law_to_draft_from(law, PRESET).tobytes()


def test_a_pass_that_is_repeated_keeps_the_path_once() -> None:
    engine = Counted()
    session = engine.open(20, spare=14)
    nodes = drafted(session, engine)
    job = TreeDraftJob(
        session, replace(WORK, keep=2, token_ids=(3,), path=(0,)), Sampling(), RULE, PRESET
    )
    first, second = job.segment(), job.segment()
    assert (first, session.length) == (second, 3)
    engine.forward([first])
    assert session.token_ids == (1, 2, nodes[0].token_id, 3)


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
    sampling = Sampling(temperature=0.0, top_k=top_k)
    preset = replace(PRESET, truncation=Truncation(top_k=3))
    nodes = drafted(engine.open(20, spare=14), engine, sampling=sampling, preset=preset)
    for parent in range(-1, 6):
        law = np.asarray(LAW((1, 2, *path_of(nodes, parent))))
        found = {node.token_id for node in nodes if node.parent == parent}
        assert found == set(np.argsort(-law)[:2].tolist())


def test_greedy_with_replacement_repeats_the_likeliest() -> None:
    engine = Counted()
    preset = replace(PRESET, with_replacement=True)
    nodes = drafted(engine.open(20, spare=14), engine, sampling=Sampling(0.0), preset=preset)
    assert len({node.token_id for node in nodes if node.parent == -1}) == 1
    assert len(nodes) == 14


def test_a_tree_is_judged_by_one_pass_over_all_its_nodes() -> None:
    """The laws after the last committed token and after each node; then the path is kept."""
    engine = Counted()
    session = engine.open(20, spare=14)
    engine.forward([Segment(session, (1, 2), 0)])
    tree = VerifyWork(2, (3, 4, 5, 6), 4, 3, parents=(-1, 0, 0, 1))
    job = VerifyJob(session, tree, Sampling(), RULE)
    (logits,) = engine.forward([job.segment()])
    job.take(logits)
    assert tree.positions == [3, 4, 4, 5]
    contexts = [(1, 2, 3), (1, 2, 3, 4), (1, 2, 3, 5), (1, 2, 3, 4, 6)]
    assert tree.contexts((1, 2)) == contexts
    for law, context in zip(job.result(), contexts, strict=True):
        np.testing.assert_allclose(law, np.asarray(LAW(context)), rtol=1e-5)
    after = VerifyJob(session, VerifyWork(2, (7,), 1, 0, path=(0, 1, 3)), Sampling(), RULE)
    engine.forward([after.segment()])
    assert session.token_ids == (1, 2, 3, 4, 6, 7)
