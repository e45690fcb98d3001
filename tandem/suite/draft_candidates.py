"""Which models can draft for a target: those of this machine, and known ones that are not here.

Of models that are here only tokenizers and configurations are read, no weights; vocabularies are
compared by what their tokens spell, so that padding makes no difference. A tokenizer is loaded, for
about a second, only where file sizes leave it open whether two are the same. Whether drafts pay
depends on the texts, too: `tandem doctor` computes with both models, and the answers of `auto` tell
what was gained.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tandem.backends.model_files import (
    CONFIG,
    MOST_FILE_BYTES,
    TOKENIZER,
    open_file,
    read_json,
)
from tandem.core.errors import InvalidArgument
from tandem.suite.gguf_header import gguf_header
from tandem.suite.known_models import LARGEST_SHARE, KnownModel, known_model
from tandem.suite.local_models import LocalModel
from tandem.text import ComparableTokenizer

LIKE_SIZES = 0.98
"""Vocabularies that differ by more are not one with different padding."""
_ANOTHER = "another tokenizer; what translating its drafts would cost, 'tandem doctor' measures"
_TOO_LARGE = f"larger than {LARGEST_SHARE:.0%} of the target, so its drafts come too late"


@dataclass(frozen=True, slots=True)
class DraftCandidate:
    """A model of this machine beside a target.

    `shared`: share of the smaller vocabulary that both tokenizers have; 1 if they are the same.
    `size_ratio`: of the weights on disk. `why_not`: what keeps it from drafting; empty if nothing
    does. `note`: what else is to be known of it."""

    model: LocalModel
    size_ratio: float
    shared: float = 0.0
    why_not: str = ""
    note: str = ""

    @property
    def fits(self) -> bool:
        """Whether it can draft, and is smaller enough to be worth it."""
        return not self.why_not


def draft_candidates(target: LocalModel, models: Sequence[LocalModel]) -> list[DraftCandidate]:
    """Return the models that are not the target, those that fit first: the same tokenizer before
    another one, then by size. Raises InvalidArgument if the target has no tokenizer that can be
    compared."""
    vocabulary = _Vocabulary(target)
    others = {model.source.resolve(): model for model in reversed(models)}
    others.pop(target.source.resolve(), None)
    candidates = [_candidate(target, model, vocabulary) for model in others.values()]
    return sorted(
        candidates,
        key=lambda one: (not one.fits, -one.shared, one.size_ratio, one.model.name),
    )


def _candidate(target: LocalModel, model: LocalModel, of_target: _Vocabulary) -> DraftCandidate:
    ratio = model.size_bytes / max(1, target.size_bytes)
    if ratio > LARGEST_SHARE:
        return DraftCandidate(model, ratio, why_not=_TOO_LARGE)
    shared, why_not = of_target.shared_with(_Vocabulary(model))
    if why_not:
        return DraftCandidate(model, ratio, shared, why_not=why_not)
    return DraftCandidate(model, ratio, shared, note=_shorter_context(model, target))


class _Vocabulary:
    """The tokens of a model, read as far as a comparison needs it."""

    def __init__(self, model: LocalModel) -> None:
        self._source = model.source
        self._is_gguf = model.kind == "gguf"

    def shared_with(self, other: _Vocabulary) -> tuple[float, str]:
        """Return which share of the smaller vocabulary both have, and what keeps `other` from
        drafting for this one: nothing, or a reason. Raises InvalidArgument for this one alone."""
        if self._stored and self._stored == other._stored:
            return 1.0, ""
        sizes = [size for size in (self._size, other._size) if size]
        if len(sizes) == 2 and min(sizes) < LIKE_SIZES * max(sizes):
            return 0.0, _ANOTHER
        from tandem.backends.cross_vocabulary.pairing import translate

        ours = self._tokenizer
        try:
            theirs = other._tokenizer
            if theirs.vocabulary_hash == ours.vocabulary_hash:
                return 1.0, ""
            return translate(theirs, ours).intersection.share, ""
        except InvalidArgument as error:
            return 0.0, error.why

    @cached_property
    def _tokenizer(self) -> ComparableTokenizer:
        from tandem.backends.cross_vocabulary.pairing import load_target_tokenizer

        return load_target_tokenizer(str(self._source))

    @cached_property
    def _stored(self) -> bytes:
        """The vocabulary as the model's file has it; equal bytes are equal tokens."""
        try:
            if not self._is_gguf:
                with open_file(self._source / TOKENIZER) as file:
                    return file.read(MOST_FILE_BYTES)
            with gguf_header(self._source) as header:
                return header.tokens
        except (OSError, ValueError, struct.error):
            return b""

    @cached_property
    def _size(self) -> int | None:
        """The number of tokens, with padding; None where it is not told."""
        try:
            if self._is_gguf:
                with gguf_header(self._source) as header:
                    return header.token_count
            config = read_json(self._source / CONFIG)
        except (OSError, ValueError, struct.error):
            return None
        size = config.get("vocab_size") if isinstance(config, dict) else None
        return size if isinstance(size, int) else None


def candidates_by_name(target: KnownModel, models: Sequence[LocalModel]) -> list[DraftCandidate]:
    """Return the models of this machine that the table has as drafts of a target that is not here,
    the smallest first."""
    drafts = target.drafts()
    here = [(model, known_model(model.name)) for model in models]
    candidates = [
        DraftCandidate(model, target.ratio_of(known), shared=1.0)
        for model, known in here
        if known is not None and known in drafts
    ]
    return sorted(candidates, key=lambda one: (one.size_ratio, one.model.name))


def drafts_elsewhere(target: KnownModel, models: Sequence[LocalModel]) -> list[KnownModel]:
    """Return the known drafts of a target that are not on this machine, the smallest first."""
    here = [known_model(model.name) for model in models]
    return [draft for draft in target.drafts() if draft not in here]


def _shorter_context(draft: LocalModel, target: LocalModel) -> str:
    length = draft.context_length
    longest = target.context_length
    if length is None or longest is None or length >= longest:
        return ""
    return f"reads {length} tokens at once, the target {longest}: of longer texts it reads the end"
