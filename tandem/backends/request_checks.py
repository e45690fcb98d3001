"""Checks that every back end makes: of a request before anything changes, of a model once it is
loaded; and the growth of token trees."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from tandem.backends.interface import Engine, ForwardRequest, Session
from tandem.core.errors import InvalidArgument
from tandem.core.tokens import check_token_ids
from tandem.core.tree import check_parents, depths

Kind = TypeVar("Kind")


def own_session(session: Session, kind: type[Kind], open_sessions: Collection[object]) -> Kind:
    """Return a session of this `kind`. Raises InvalidArgument("session") unless it is among the
    engine's `open_sessions`."""
    if not isinstance(session, kind) or session not in open_sessions:
        raise InvalidArgument("session", "is closed, or belongs to another engine")
    return session


def check_capacity(capacity: int, context_length: int, length: int = 0) -> None:
    """Raise InvalidArgument("capacity") unless max(1, length) <= capacity <= context_length."""
    if not max(1, length) <= capacity <= context_length:
        why = f"{capacity} is outside {max(1, length)}..{context_length}"
        raise InvalidArgument("capacity", why)


def check_length(length: int, most: int) -> None:
    """Raise InvalidArgument("length") unless 0 <= length <= most."""
    if not 0 <= length <= most:
        raise InvalidArgument("length", f"{length} is outside 0..{most}")


def check_batch(batch: Sequence[ForwardRequest], engine: Engine) -> None:
    """Raise InvalidArgument for the first request that the engine could not serve; one that an
    engine around this one has `checked` is not checked again."""
    seen: set[int] = set()
    for request in batch:
        if request.checked:
            continue
        if id(request.session) in seen:
            raise InvalidArgument("batch", "a session appears twice")
        seen.add(id(request.session))
        _check_request(request, engine)


def _check_request(request: ForwardRequest, engine: Engine) -> None:
    count = len(request.token_ids)
    session = request.session
    if count == 0:
        raise InvalidArgument("token_ids", "no tokens to feed")
    check_token_ids(request.token_ids, engine.vocabulary_size, "token_ids")
    if request.parents is not None and not engine.capabilities.trees:
        raise InvalidArgument("parents", "this back end does not support token trees")
    if request.extends_tree and (request.parents is None or session.tree is None):
        raise InvalidArgument("extends_tree", "no tree is pending in this session")
    pending = session.tree or () if request.extends_tree else ()
    if request.parents is not None:
        check_parents(request.parents, count, len(pending))
    _check_room(request, pending)
    if not 0 <= request.logits_to_keep <= count:
        raise InvalidArgument("logits_to_keep", f"{request.logits_to_keep} is outside 0..{count}")
    if request.hidden is not None:
        _check_hidden(request, engine)
    exits = len(engine.exit_depths)
    if any(not 0 <= index < exits for index in request.exits):
        raise InvalidArgument("exits", f"{request.exits}; the model has {exits}")


def _check_hidden(request: ForwardRequest, engine: Engine) -> None:
    if not engine.capabilities.splits or request.parents is not None:
        raise InvalidArgument("hidden", "this back end does not begin a pass after a layer")
    if not 0 < request.first_layer < engine.layer_count:
        why = f"{request.first_layer} is outside 1..{engine.layer_count - 1}"
        raise InvalidArgument("first_layer", why)
    assert request.hidden is not None
    wanted = (len(request.token_ids), engine.hidden_size)
    if request.hidden.shape != wanted:
        raise InvalidArgument("hidden", f"shape {request.hidden.shape}, not {wanted}")


def _check_room(request: ForwardRequest, pending: tuple[int, ...]) -> None:
    """Check that committed tokens and the longest branch fit the capacity, and that all nodes fit
    the slots. Raises InvalidArgument("token_ids")."""
    count = len(request.token_ids)
    session = request.session
    deepest = count
    nodes = count
    if request.parents is not None:
        deepest = max(depths((*pending, *request.parents))) + 1
        nodes += len(pending)
    if session.length + deepest > session.capacity or session.length + nodes > session.slots:
        why = f"{count} tokens after {session.length} exceed the capacity of {session.capacity}"
        raise InvalidArgument("token_ids", why)


def grown(tree: ForwardRequest, more: ForwardRequest) -> ForwardRequest:
    """Return the pending tree and the nodes that join it as one tree."""
    token_ids = (*tree.token_ids, *more.token_ids)
    parents = (*(tree.parents or ()), *(more.parents or ()))
    return replace(more, token_ids=token_ids, parents=parents, extends_tree=False)


def check_sessions(engine: Engine, within: float) -> None:
    """Raise InvalidArgument("model") unless a sequence fed in steps, beside another, gives the
    logits it gives when fed at once: what a layer that keeps a state of its own would break.
    `within` bounds the relative difference."""
    tokens = tuple(step * 7 % engine.vocabulary_size for step in range(1, 5))
    capacity = min(engine.context_length, len(tokens))
    whole, steps, other = (engine.open(capacity) for _ in range(3))
    try:
        (want,) = engine.forward([ForwardRequest(whole, tokens, 2)])
        engine.forward([ForwardRequest(steps, tokens[:2], 0)])
        _, got = engine.forward(
            [ForwardRequest(other, tokens[1:3], 0), ForwardRequest(steps, tokens[2:], 2)]
        )
    finally:
        for session in (whole, steps, other):
            session.close()
    open_to = np.isfinite(want) | np.isfinite(got)  # a draft's head may leave tokens out
    want = want[open_to]
    got = got[open_to]
    if not np.linalg.norm(want - got) <= within * np.linalg.norm(want - want.mean()):
        why = f"{engine.model_name}: logits depend on how a sequence is split over passes"
        raise InvalidArgument("model", why)
