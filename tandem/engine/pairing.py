"""Makes a draft engine speak its target's vocabulary, where the two have different tokenizers.

Must not import grpc.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tandem.core.errors import InvalidArgument
from tandem.core.laws import Sampling, laws_from_logits
from tandem.core.translation import Translation
from tandem.core.vocabulary import Intersection, intersect
from tandem.engine.base import Engine, Segment
from tandem.engine.load import load_tokenizer
from tandem.engine.tokenizer import TextTokenizer
from tandem.engine.translated import TranslatedEngine

FIELD = "target_tokenizer"


@dataclass(frozen=True, slots=True)
class Loss:
    """What different tokenizers cost, as means over the positions of a sample text.

    `draft_mass` is the draft law's mass outside of what is shared: restricting the law to it lowers
    the acceptance by at most that. `target_mass` is the target law's: acceptance is at most
    1 - target_mass.
    """

    shared: Intersection
    draft_mass: float
    target_mass: float


def fit_draft(engine: Engine, draft: TextTokenizer, target: TextTokenizer) -> Engine:
    """`engine` itself where both tokenizers are one, else a translation into the target's ids.

    Raises InvalidArgument("target_tokenizer") when the two have too little in common.
    """
    if draft.vocabulary_hash == target.vocabulary_hash:
        return engine
    return TranslatedEngine(
        engine,
        translate(draft, target),
        vocabulary_hash=target.vocabulary_hash,
        eos_token_ids=frozenset(t for t in target.eos_token_ids if t < target.model_size),
    )


def load_target_tokenizer(source: str) -> TextTokenizer:
    """The tokenizer in a folder (no weights needed beside it), or of a hub model as NAME@COMMIT.

    Raises InvalidArgument("target_tokenizer").
    """
    name, at, revision = source.rpartition("@")
    try:
        if at and not Path(source).exists():
            return load_tokenizer(name, revision)
        return load_tokenizer(source)
    except InvalidArgument as error:
        raise InvalidArgument(FIELD, error.why) from error


def translate(draft: TextTokenizer, target: TextTokenizer) -> Translation:
    """Raises InvalidArgument("target_tokenizer") when the two have too little in common."""
    try:
        ours, theirs = draft.vocabulary(), target.vocabulary()
    except InvalidArgument as error:
        raise InvalidArgument(FIELD, error.why) from error
    shared = intersect(ours, theirs)
    shared.check(FIELD)
    return Translation(ours, theirs, shared, draft.encode_piece, draft.starts_with_bos)


def measure_loss(
    draft: Engine, target: Engine, translation: Translation, token_ids: Sequence[int]
) -> Loss:
    """Both models over a text of target tokens. Raises InvalidArgument if it exceeds a context."""
    first, *later = token_ids
    spelt = [translation.first(first), *map(translation.draft_ids, later)]
    ends = [end - 1 for end in accumulate(map(len, spelt))]
    draft_laws = _laws(draft, [token for ids in spelt for token in ids])[ends]
    target_laws = _laws(target, token_ids)
    shared = translation.intersection
    return Loss(
        shared,
        float(np.mean([shared.draft_mass_outside(law) for law in draft_laws])),
        float(np.mean([shared.target_mass_outside(law) for law in target_laws])),
    )


def _laws(engine: Engine, token_ids: Sequence[int]) -> NDArray[np.float32]:
    """The untruncated law [tokens, V] after each token."""
    session = engine.open(len(token_ids))
    try:
        (logits,) = engine.forward([Segment(session, tuple(token_ids), len(token_ids))])
        return laws_from_logits(logits, Sampling())
    finally:
        session.close()
