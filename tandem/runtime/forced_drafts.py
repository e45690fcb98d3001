"""Drafts without a model: tokens that a grammar alone decides. Invariant: such a token is what any
model would draft there, since its processed distribution is one-hot on it."""

from __future__ import annotations

from tandem.core.processors import RowsAfter
from tandem.specdec.events import NO_PROBS, Drafted, DraftTask


def forced_drafts(
    task: DraftTask,
    rows: RowsAfter | None,
    drafted: tuple[int, ...] = (),
    *,
    most: int,
    by_token: bool,
) -> list[Drafted]:
    """Return at most `most` drafts of `task` that must follow the `drafted` ones, up to one that
    ends it. `by_token`: nobody asks for their distributions."""
    forced = list[Drafted]()
    if task.expansion:  # trees grow layer by layer
        return forced
    while rows is not None and len(forced) < most and task.ends.isdisjoint(drafted[-1:]):
        if (token_id := rows.forced(drafted)) is None:
            break
        forced.append(Drafted(token_id, NO_PROBS if by_token else rows.certain(token_id)))
        drafted += (token_id,)
    return forced
