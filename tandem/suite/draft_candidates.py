"""Which models of this machine can draft for a target.

Only tokenizers and configurations are read, no weights. Whether drafts pay depends on the texts,
too: `tandem doctor` computes with both models, and the answers of `auto` tell what was gained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.core.errors import InvalidArgument
from tandem.suite.local_models import LocalModel

LARGEST_SHARE = 0.5
"""Of the target's weights. A larger draft takes about as long as the target's own pass."""


@dataclass(frozen=True, slots=True)
class DraftCandidate:
    """A model beside a target.

    `shared`: share of the smaller vocabulary that both tokenizers have; 1 if they are the same.
    `size_ratio`: of the weights on disk. `why_not`: what keeps it from drafting; empty if nothing
    does.
    """

    model: LocalModel
    size_ratio: float
    shared: float = 0.0
    why_not: str = ""

    @property
    def fits(self) -> bool:
        """Whether it can draft, and is smaller enough to be worth it."""
        return not self.why_not


def draft_candidates(target: LocalModel, models: Sequence[LocalModel]) -> list[DraftCandidate]:
    """Return the models that are not the target, those that fit first: the same tokenizer before
    another one, then by size.

    Raises InvalidArgument if the target has no tokenizer that can be compared.
    """
    from tandem.backends.cross_vocabulary.pairing import load_target_tokenizer, translate

    tokenizer = load_target_tokenizer(str(target.source))
    candidates = []
    for model in models:
        if model.source.resolve() == target.source.resolve():
            continue
        ratio = model.size_bytes / max(1, target.size_bytes)
        if ratio > LARGEST_SHARE:
            why = f"larger than {LARGEST_SHARE:.0%} of the target, so its drafts come too late"
            candidates.append(DraftCandidate(model, ratio, why_not=why))
            continue
        try:
            other = load_target_tokenizer(str(model.source))
            same = other.vocabulary_hash == tokenizer.vocabulary_hash
            shared = 1.0 if same else translate(other, tokenizer).intersection.share
        except InvalidArgument as error:
            candidates.append(DraftCandidate(model, ratio, why_not=error.why))
            continue
        candidates.append(DraftCandidate(model, ratio, shared, _too_short(model, target)))
    return sorted(
        candidates,
        key=lambda one: (not one.fits, -one.shared, one.size_ratio, one.model.name),
    )


def _too_short(draft: LocalModel, target: LocalModel) -> str:
    length, needed = draft.context_length, target.context_length
    if length is None or needed is None or length >= needed:
        return ""
    return f"reads {length} tokens, the target {needed}: longer texts would be refused"
