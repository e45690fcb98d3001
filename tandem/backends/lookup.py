"""A draft model without weights: what followed the longest repeated end of the text follows again
(prompt lookup). Invariant: its distribution after a context is a function of that context alone, so
it is judged like any other draft model's, and every rule stays exact."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tandem.backends.context_engine import ContextEngine
from tandem.backends.model_source import LoadedModel, ModelChoice, find_source, is_gguf
from tandem.core.errors import InvalidArgument
from tandem.core.text_lookup import SURE_MATCH, find_follower
from tandem.text import ComparableTokenizer

GUESS_WEIGHT = 0.4
"""Of the follower of one repeated token; three others share the rest."""
_GUESSES = 4
_CONTEXT_LENGTH = 2**17


def load(choice: ModelChoice) -> LoadedModel:
    """Load an engine for the factory: drafts by lookup, in the vocabulary of the model that
    `source` names; of that only the tokenizer and the configuration are read. Raises
    InvalidArgument ("engine") for anything but drafts."""
    if not choice.drafts:
        raise InvalidArgument("engine", "'lookup' drafts; choose another engine for the target")
    tokenizer = _tokenizer(choice)
    size = tokenizer.model_size
    engine = LookupEngine(
        size,
        vocabulary_hash=tokenizer.vocabulary_hash,
        eos_token_ids=frozenset(token for token in tokenizer.eos_token_ids if token < size),
    )
    return LoadedModel(engine, tokenizer, lambda: f"lookup:{tokenizer.vocabulary_hash}")


def _tokenizer(choice: ModelChoice) -> ComparableTokenizer:
    """Return the tokenizer of a folder, of a hub model or of a GGUF file. Raises
    InvalidArgument."""
    if is_gguf(choice.source):
        from tandem.backends.cross_vocabulary.pairing import load_target_tokenizer

        return load_target_tokenizer(choice.source)
    find_source(choice.source, choice.revision)  # refused without waiting for torch
    from tandem.backends.torch.loading import load_tokenizer

    return load_tokenizer(choice.source, choice.revision)


class LookupEngine(ContextEngine):
    """Sessions keep the token ids; logits after a context are the logarithm of `lookup_probs`."""

    def __init__(
        self,
        vocabulary_size: int,
        *,
        vocabulary_hash: str,
        eos_token_ids: frozenset[int] = frozenset(),
        context_length: int = _CONTEXT_LENGTH,
    ) -> None:
        super().__init__(
            vocabulary_size,
            lambda context: lookup_probs(context, vocabulary_size),
            context_length=context_length,
            eos_token_ids=eos_token_ids,
            model_name="lookup",
            vocabulary_hash=vocabulary_hash,
            kv_bytes_per_token=np.dtype(np.int64).itemsize,
        )


def lookup_probs(context: Sequence[int], vocabulary_size: int) -> NDArray[np.float32]:
    """Return the distribution [vocabulary_size] after `context`: one-hot where at least
    `SURE_MATCH` tokens at its end stood in it before; else spread over a few guesses, so that a
    preset's `confidence_threshold` can tell the difference."""
    probs = np.zeros(vocabulary_size, dtype=np.float32)
    follower, matched = find_follower(context)
    if follower is not None and matched >= SURE_MATCH:
        probs[follower] = 1.0
        return probs
    guesses = _guesses(follower, context, vocabulary_size)
    probs[guesses] = (1.0 - GUESS_WEIGHT) / max(1, len(guesses) - 1)
    probs[guesses[0]] = GUESS_WEIGHT if len(guesses) > 1 else 1.0
    return probs


def _guesses(follower: int | None, context: Sequence[int], vocabulary_size: int) -> list[int]:
    """Return a few different ids, the likeliest first: the follower, what came last, then any."""
    likely = [] if follower is None else [follower]
    any_ids = range(min(_GUESSES, vocabulary_size))
    return list(dict.fromkeys([*likely, *reversed(context[-_GUESSES:]), *any_ids]))[:_GUESSES]
