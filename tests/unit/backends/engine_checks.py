"""What every architecture must satisfy on every device: equality with the eager reference.

Each check raises AssertionError; `within` is the largest allowed difference of a logit.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from tandem.backends.interface import ForwardCancelled, ForwardRequest
from tandem.backends.torch.kv_cache import KvSession
from tandem.core.tree import ancestors
from tests.unit.backends.reference_models import CONTEXT, Pair, tokens

#       0   1   2   3   4   5   6   7   8
TREE = (-1, 0, 0, 1, 1, 2, -1, 6, 4)


def check_prefill(pair: Pair, within: float) -> None:
    """A sequence in one pass, longer than one attention piece and than any window."""
    sequence = tokens(300, seed=1)
    with Opened(pair) as session:
        (logits,) = pair.engine.forward([ForwardRequest(session, tuple(sequence), len(sequence))])
    close(logits, pair.logits(sequence), within)


def check_steps(pair: Pair, within: float) -> None:
    """The same sequence token by token after a short prefill, past the window."""
    sequence = tokens(40, seed=2)
    with Opened(pair) as session:
        pair.feed(session, sequence[:5])
        steps = [pair.engine.forward([ForwardRequest(session, (t,), 1)])[0] for t in sequence[5:]]
    close(np.concatenate(steps), pair.logits(sequence)[5:], within)


def check_ragged_batch(pair: Pair, within: float) -> None:
    """Five sessions of different lengths, feeding and wanting different numbers of tokens."""
    fed, counts, wanted = (0, 3, 17, 30, 9), (20, 1, 4, 2, 1), (5, 1, 4, 0, 1)
    sequences = [tokens(f + c, seed=10 + f) for f, c in zip(fed, counts, strict=True)]
    sessions = [pair.engine.open(CONTEXT) for _ in fed]
    for session, sequence, length in zip(sessions, sequences, fed, strict=True):
        if length:
            pair.feed(session, sequence[:length])
    answers = pair.engine.forward(
        [
            ForwardRequest(session, tuple(sequence[length:]), want)
            for session, sequence, length, want in zip(
                sessions, sequences, fed, wanted, strict=True
            )
        ]
    )
    for logits, sequence, want in zip(answers, sequences, wanted, strict=True):
        close(logits, pair.logits(sequence)[len(sequence) - want :], within)
    for session, sequence in zip(sessions, sequences, strict=True):
        assert session.length == len(sequence)
        session.close()


def check_tree(pair: Pair, within: float) -> None:
    """Every node of a tree against the reference on its own path, beside another session."""
    context, nodes, other = tokens(16, seed=3), tokens(len(TREE), seed=4), tokens(6, seed=5)
    with Opened(pair) as session, Opened(pair) as neighbour:
        pair.feed(session, context)
        beside, logits = pair.engine.forward(
            [
                ForwardRequest(neighbour, tuple(other), 6),
                ForwardRequest(session, tuple(nodes), len(nodes), TREE),
            ]
        )
        assert session.length == len(context)
    close(beside, pair.logits(other), within)
    for node, marks in enumerate(ancestors(TREE)):
        path = [token for token, seen in zip(nodes, marks, strict=True) if seen]
        close(logits[node], pair.logits(context + path)[-1], within)


def check_keep_path(pair: Pair, within: float) -> None:
    """After a tree, a kept path is committed as if it had been fed alone."""
    context, nodes, more = tokens(14, seed=6), tokens(len(TREE), seed=7), tokens(3, seed=8)
    for path in ((), (0, 1), (0, 2, 5), (6,), (0, 1, 4, 8)):
        with Opened(pair) as session:
            pair.feed(session, context)
            pair.engine.forward([ForwardRequest(session, tuple(nodes), 1, TREE)])
            session.keep_path(path)
            kept = context + [nodes[node] for node in path]
            assert session.length == len(kept)
            (logits,) = pair.engine.forward([ForwardRequest(session, tuple(more), 3)])
        close(logits, pair.logits(kept + more)[-3:], within)


def check_rollback(pair: Pair, within: float) -> None:
    """Forgotten tokens leave no trace."""
    sequence, other = tokens(30, seed=9), tokens(6, seed=10)
    with Opened(pair) as session:
        pair.feed(session, sequence)
        session.rollback(19)
        (logits,) = pair.engine.forward([ForwardRequest(session, tuple(other), 6)])
        close(logits, pair.logits(sequence[:19] + other)[19:], within)
        session.rollback(0)
        (logits,) = pair.engine.forward([ForwardRequest(session, tuple(other), 6)])
    close(logits, pair.logits(other), within)


def check_fork(pair: Pair, within: float) -> None:
    """A fork of a fork, chains and a tree in one pass; each goes on from the shared prefix."""
    prefix, one, two, three = (tokens(n, seed=20 + n) for n in (24, 3, 5, 4))
    with Opened(pair) as parent:
        pair.feed(parent, prefix)
        child = pair.engine.fork(parent, 20, CONTEXT)
        pair.feed(child, one)
        grandchild = pair.engine.fork(child, 22, CONTEXT)
        answers = pair.engine.forward(
            [
                ForwardRequest(parent, tuple(two), 5),
                ForwardRequest(child, tuple(two[:1]), 1),
                ForwardRequest(grandchild, tuple(three), 4, (-1, 0, 0, 2)),
            ]
        )
        close(answers[0], pair.logits(prefix + two)[-5:], within)
        close(answers[1], pair.logits(prefix[:20] + one + two[:1])[-1:], within)
        start = prefix[:20] + one[:2]
        close(answers[2][1], pair.logits(start + three[:2])[-1], within)
        close(answers[2][3], pair.logits([*start, three[0], three[2], three[3]])[-1], within)
        grandchild.close()
        child.close()


def check_cancellation(pair: Pair, within: float) -> None:
    """Given up after any number of layers: lengths as before, and the next pass is right."""
    sequence, draft, other = tokens(12, seed=11), tokens(4, seed=12), tokens(4, seed=13)
    for layers in range(3):
        answers = [False] * layers + [True]
        with Opened(pair) as session:
            pair.feed(session, sequence)
            try:
                pair.engine.forward(
                    [ForwardRequest(session, tuple(draft), 4)], partial(answers.pop, 0)
                )
            except ForwardCancelled:
                assert session.length == len(sequence)
            else:
                raise AssertionError("the pass was not cancelled")
            (logits,) = pair.engine.forward([ForwardRequest(session, tuple(other), 4)])
        close(logits, pair.logits(sequence + other)[-4:], within)


CHECKS = [
    check_prefill,
    check_steps,
    check_ragged_batch,
    check_tree,
    check_keep_path,
    check_rollback,
    check_fork,
    check_cancellation,
]


class Opened:
    """A session of the pair's engine for the length of a `with` block."""

    def __init__(self, pair: Pair) -> None:
        self._session = pair.engine.open(CONTEXT)

    def __enter__(self) -> KvSession:
        return self._session

    def __exit__(self, *_: object) -> None:
        self._session.close()


def close(
    found: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
    wanted: np.ndarray[tuple[int, ...], np.dtype[np.float32]] | Sequence[float],
    within: float,
) -> None:
    assert found.shape == np.shape(wanted)
    if found.size:
        assert float(np.abs(found - wanted).max()) <= within
