"""Drafts without a model: tokens that a grammar alone decides, and those that texts propose, which
the caller predicted or the memory has. Invariant: such a draft's distribution is one-hot on it,
which for a grammar's token any model's processed distribution would be."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tandem.core.probs import Array
from tandem.core.processors import RowsAfter
from tandem.specdec.events import NO_PROBS, Drafted, DraftTask
from tandem.specdec.proposers import NO_TEXTS, DraftSource, Proposed, TextDrafts


@dataclass(frozen=True, slots=True)
class GrammarProposer:
    """A `Proposer` of the tokens that a grammar forces after those of `drafted`."""

    rows: RowsAfter
    drafted: tuple[int, ...]

    def propose(self) -> tuple[Proposed, ...]:
        """Return the token that alone may follow; none where several may."""
        token_id = self.rows.forced(self.drafted)
        return () if token_id is None else (Proposed(token_id, DraftSource.GRAMMAR),)

    def after(self, token_id: int) -> GrammarProposer:
        """Return what is forced once a draft follows."""
        return GrammarProposer(self.rows, (*self.drafted, token_id))

    commit = after


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
    if rows is not None and not task.expansion:
        grammar = GrammarProposer(rows, drafted)
        texts = replace(texts, proposers=(grammar, *texts.proposers))
    drafts = list[Drafted]()
    while len(drafts) < most and task.ends.isdisjoint(drafted[-1:]):
        proposed = texts.proposed
        if proposed is None or not (rows is None or rows.allows(proposed.token_id, drafted)):
            break  # it would be rejected, and the grammar has nothing to say after it
        draft = Drafted(
            proposed.token_id,
            NO_PROBS if by_token else _certain_of(proposed, rows, texts),
            parent=len(drafts) - 1 if task.expansion else -1,
            ends_chunk=proposed.is_last,
            source=proposed.source,
        )
        drafts.append(draft)
        if draft.ends_chunk:
            break
        drafted += (draft.token_id,)
        texts = texts.after(draft.token_id)
    return drafts


def _certain_of(proposed: Proposed, rows: RowsAfter | None, texts: TextDrafts) -> Array:
    """Return the distribution [V] that is certain of a token."""
    if proposed.source.is_text or rows is None:
        return texts.probs(proposed.token_id)
    return rows.certain(proposed.token_id)
