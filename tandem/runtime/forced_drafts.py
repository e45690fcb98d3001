"""Drafts without a model: tokens that a grammar alone decides, and those of a text that the caller
predicted. Invariant: such a draft's distribution is one-hot on it, which for a grammar's token any
model's processed distribution would be."""

from __future__ import annotations

from tandem.core.processors import RowsAfter
from tandem.specdec.events import NO_PROBS, Drafted, DraftTask
from tandem.specdec.predicted_text import Alignment


def forced_drafts(
    task: DraftTask,
    rows: RowsAfter | None,
    drafted: tuple[int, ...] = (),
    *,
    most: int,
    by_token: bool,
    alignment: Alignment | None = None,
) -> list[Drafted]:
    """Return at most `most` drafts of `task` that must follow the `drafted` ones, or are predicted
    to, up to one that ends it. `by_token`: nobody asks for their distributions. `alignment`: where
    in the caller's prediction the text is after the `drafted` ones; None without a prediction."""
    drafts = list[Drafted]()
    if task.expansion:  # trees grow layer by layer
        return drafts
    while len(drafts) < most and task.ends.isdisjoint(drafted[-1:]):
        draft = _forced(rows, drafted, by_token) or _predicted(alignment, rows, drafted, by_token)
        if draft is None:
            break
        drafts.append(draft)
        if draft.ends_chunk:
            break
        drafted += (draft.token_id,)
        if alignment is not None:
            alignment = alignment.after((draft.token_id,), confirmed=False)
    return drafts


def _forced(rows: RowsAfter | None, drafted: tuple[int, ...], by_token: bool) -> Drafted | None:
    if rows is None or (token_id := rows.forced(drafted)) is None:
        return None
    return Drafted(token_id, NO_PROBS if by_token else rows.certain(token_id))


def _predicted(
    alignment: Alignment | None, rows: RowsAfter | None, drafted: tuple[int, ...], by_token: bool
) -> Drafted | None:
    if alignment is None or (token_id := alignment.proposed) is None:
        return None
    if rows is not None and not rows.allows(token_id, drafted):
        return None  # it would be rejected, and the grammar has nothing to say after it
    probs = NO_PROBS if by_token else alignment.text.certain(token_id)
    return Drafted(token_id, probs, ends_chunk=alignment.is_last, predicted=True)
