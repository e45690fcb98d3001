"""Makes a draft engine speak its target's vocabulary, where the two have different tokenizers."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tandem.backends.cross_vocabulary.engine import TranslatedEngine
from tandem.backends.interface import Engine, ForwardRequest
from tandem.backends.model_source import is_gguf
from tandem.core.errors import InvalidArgument
from tandem.core.probs import SamplingParams, batch_probs_from_logits
from tandem.text import ComparableTokenizer, Tokenizer
from tandem.text.translation import Translation
from tandem.text.vocabulary import Intersection, intersect

FIELD = "target_tokenizer"


@dataclass(frozen=True, slots=True)
class Loss:
    """Cost of different tokenizers: means over a sample text of each distribution's mass outside of
    the shared tokens. Restricting the draft lowers the acceptance by at most `draft_mass`;
    acceptance is at most 1 - `target_mass`."""

    shared: Intersection
    draft_mass: float
    target_mass: float


def fit_draft(engine: Engine, draft: Tokenizer | None, target: Tokenizer | None) -> Engine:
    """Return `engine` itself where both tokenizers are one, else a translation into the target's
    ids. Raises InvalidArgument("target_tokenizer") when the two have too little in common, or
    cannot be compared."""
    draft = _comparable(draft)
    target = _comparable(target)
    if draft.vocabulary_hash == target.vocabulary_hash:
        return engine
    return TranslatedEngine(
        engine,
        translate(draft, target),
        vocabulary_hash=target.vocabulary_hash,
        eos_token_ids=frozenset(t for t in target.eos_token_ids if t < target.model_size),
    )


def load_target_tokenizer(source: str) -> ComparableTokenizer:
    """Return the tokenizer in a folder (no weights needed beside it), in a GGUF file, or of a hub
    model as NAME@COMMIT. Raises InvalidArgument("target_tokenizer")."""
    name, at, revision = source.rpartition("@")
    try:
        if is_gguf(source):
            from tandem.backends import llamacpp

            return llamacpp.load_tokenizer(source)
        from tandem.backends.model_description import load_tokenizer

        if at and not Path(source).exists():
            return load_tokenizer(name, revision)
        return load_tokenizer(source)
    except InvalidArgument as error:
        raise InvalidArgument(FIELD, error.why) from error


def translate(draft: Tokenizer | None, target: Tokenizer | None) -> Translation:
    draft = _comparable(draft)
    target = _comparable(target)
    try:
        ours = draft.vocabulary()
        theirs = target.vocabulary()
    except InvalidArgument as error:
        raise InvalidArgument(FIELD, error.why) from error
    shared = intersect(ours, theirs)
    shared.check(FIELD)
    return Translation(
        draft=ours,
        target=theirs,
        intersection=shared,
        encode=draft.encode_piece,
        starts_with_bos=draft.starts_with_bos,
    )


def _comparable(tokenizer: Tokenizer | None) -> ComparableTokenizer:
    if not isinstance(tokenizer, ComparableTokenizer):
        raise InvalidArgument(FIELD, "a model has no tokenizer whose tokens can be compared")
    return tokenizer


def measure_loss(
    draft: Engine, target: Engine, translation: Translation, token_ids: Sequence[int]
) -> Loss:
    """Run both models over a text of target tokens, and measure the probability that each gives to
    tokens that the two do not share. Raises InvalidArgument if the text exceeds a model's
    context."""
    first, *later = token_ids
    spelt = [translation.first(first), *map(translation.draft_ids, later)]
    ends = [end - 1 for end in accumulate(map(len, spelt))]
    draft_distributions = _distributions(draft, [token for ids in spelt for token in ids])[ends]
    target_distributions = _distributions(target, token_ids)
    shared = translation.intersection
    return Loss(
        shared,
        float(np.mean([shared.draft_mass_outside(probs) for probs in draft_distributions])),
        float(np.mean([shared.target_mass_outside(probs) for probs in target_distributions])),
    )


def _distributions(engine: Engine, token_ids: Sequence[int]) -> NDArray[np.float32]:
    """Return the untruncated distribution [tokens, V] after each token."""
    session = engine.open(len(token_ids))
    try:
        (logits,) = engine.forward([ForwardRequest(session, tuple(token_ids), len(token_ids))])
        return batch_probs_from_logits(logits, SamplingParams())
    finally:
        session.close()
