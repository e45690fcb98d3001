"""Drafts without a model: tokens that a grammar alone decides, and those that texts propose, which
the caller predicted or the memory has. Invariant: such a draft's distribution is one-hot on it,
which for a grammar's token any model's processed distribution would be."""

from __future__ import annotations

from dataclasses import replace

from tandem.core.processors import RowsAfter
from tandem.specdec.events import NO_PROBS, Drafted, DraftTask
from tandem.specdec.text_drafts import NO_TEXTS, TextDrafts


def forced_drafts(
    task: DraftTask,
    rows: RowsAfter | None,
    drafted: tuple[int, ...] = (),
    *,
    most: int,
    by_token: bool,
    texts: TextDrafts = NO_TEXTS,
) -> list[Drafted]:
    """Return at most `most` drafts of `task` that must follow the `drafted` ones, or that `texts`
    propose after them, up to one that ends it. `by_token`: nobody asks for their distributions. Of
    a tree this is a single branch, of what texts propose alone: else trees grow layer by
    layer."""
    drafts = list[Drafted]()
    while len(drafts) < most and task.ends.isdisjoint(drafted[-1:]):
        draft = None if task.expansion else _forced(rows, drafted, by_token)
        draft = draft or _from_texts(texts, rows, drafted, by_token)
        if draft is None:
            break
        if task.expansion:
            draft = replace(draft, parent=len(drafts) - 1)
        drafts.append(draft)
        if draft.ends_chunk:
            break
        drafted += (draft.token_id,)
        texts = texts.after((draft.token_id,), confirmed=False)
    return drafts


def _forced(rows: RowsAfter | None, drafted: tuple[int, ...], by_token: bool) -> Drafted | None:
    if rows is None or (token_id := rows.forced(drafted)) is None:
        return None
    return Drafted(token_id, NO_PROBS if by_token else rows.certain(token_id))


def _from_texts(
    texts: TextDrafts,
    rows: RowsAfter | None,
    drafted: tuple[int, ...],
    by_token: bool,
) -> Drafted | None:
    if (proposed := texts.proposed) is None:
        return None
    token_id = proposed.token_id
    if rows is not None and not rows.allows(token_id, drafted):
        return None  # it would be rejected, and the grammar has nothing to say after it
    return Drafted(
        token_id,
        NO_PROBS if by_token else proposed.probs,
        ends_chunk=proposed.is_last,
        predicted=not proposed.remembered,
        remembered=proposed.remembered,
    )
