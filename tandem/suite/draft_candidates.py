"""Which models of this machine can draft for a target.

Only tokenizers and configurations are read, no weights. Whether drafts pay depends on the texts,
too: `tandem doctor` computes with both models, and the answers of `auto` tell what was gained.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tandem.core.errors import InvalidArgument
from tandem.suite.local_models import LocalModel

LARGEST_SHARE = 0.5
"""Of the target's weights. A larger draft takes about as long as the target's own pass."""


@dataclass(frozen=True, slots=True)
class DraftCandidate:
    """A model beside a target.

    `shared`: share of the smaller vocabulary that both tokenizers have; 1 if they are the same.
    `size_ratio`: of the weights on disk. `why_not`: what keeps it from drafting; empty if nothing
    does. `context`: its longest text in tokens, where its configuration tells.
    """

    model: LocalModel
    size_ratio: float
    shared: float = 0.0
    why_not: str = ""
    context: int | None = None

    @property
    def fits(self) -> bool:
        """Whether it can draft, and is smaller enough to be worth it."""
        return not self.why_not


def draft_candidates(
    target: Path, target_bytes: int, models: Sequence[LocalModel]
) -> list[DraftCandidate]:
    """Return the models that are not the target, those that fit first: the same tokenizer before
    another one, then by size.

    Args:
        target: folder or GGUF file.
        target_bytes: size of its weights.
        models: what may draft, as `local_models` lists it.

    Raises InvalidArgument if the target has no tokenizer that can be compared.
    """
    from tandem.backends.cross_vocabulary.pairing import load_target_tokenizer, translate

    tokenizer = load_target_tokenizer(str(target))
    context = context_length(target)
    candidates = []
    for model in models:
        if model.source.resolve() == target.resolve():
            continue
        ratio = model.size_bytes / max(1, target_bytes)
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
        length = context_length(model.source)
        why = ""
        if length is not None and context is not None and length < context:
            why = f"reads {length} tokens, the target {context}: longer texts would be refused"
        candidates.append(DraftCandidate(model, ratio, shared, why, length))
    return sorted(
        candidates, key=lambda each: (not each.fits, -each.shared, each.size_ratio, each.model.name)
    )


def context_length(source: Path) -> int | None:
    """Return the longest text of a model in a folder, in tokens; None where nothing tells it."""
    if not source.is_dir():
        return None
    try:
        config = json.loads((source / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    length = config.get("max_position_embeddings") if isinstance(config, dict) else None
    return length if isinstance(length, int) else None
