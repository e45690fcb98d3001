"""Questions and passages where a model tells them apart: by prefixes, as E5 does ("query: ",
"passage: "), or by an encoder for each, as DPR does."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tandem.core.errors import InvalidArgument
from tandem.index.model_folder import ModelFolder, read_json
from tandem.index.records import Vectors

if TYPE_CHECKING:
    from tandem.index.embedding import Embedder

_QUESTION_PROMPTS = ("query",)
_PASSAGE_PROMPTS = ("document", "passage")
"""Names in the `prompts` of config_sentence_transformers.json, the first that there is."""


@dataclass(frozen=True, slots=True)
class TextRoles:
    """What sets questions apart. `question_model`: as an embedding is named; empty: the model of
    the passages. Prefixes are put before every text; None: the prompts in the model's own folder,
    if it has any."""

    question_model: str = ""
    question_prefix: str | None = None
    passage_prefix: str | None = None

    def joined(self, passages: Embedder, questions: Embedder, folder: ModelFolder) -> Embedder:
        """Return the embedder of both; `folder` is that of the passages. Raises
        InvalidArgument("question_embedding")."""
        question_prefix = self.question_prefix
        if question_prefix is None:
            question_prefix = _prompt(folder, _QUESTION_PROMPTS)
        passage_prefix = self.passage_prefix
        if passage_prefix is None:
            passage_prefix = _prompt(folder, _PASSAGE_PROMPTS)
        if questions is passages and not question_prefix and not passage_prefix:
            return passages
        if questions.dimension != passages.dimension:
            sizes = f"{questions.dimension} numbers a vector, passages have {passages.dimension}"
            raise InvalidArgument("question_embedding", f"{questions.name} gives {sizes}")
        return RoleEmbedder(passages, questions, question_prefix, passage_prefix)


SAME_ROLES = TextRoles()


class RoleEmbedder:
    """An `Embedder` of passages that embeds questions otherwise. Texts that are neither
    (`embed_tokens`) are embedded as they are, by the passages' model."""

    def __init__(
        self, passages: Embedder, questions: Embedder, question_prefix: str, passage_prefix: str
    ) -> None:
        self._passages = passages
        self._questions = questions
        self._question_prefix = question_prefix
        self._passage_prefix = passage_prefix
        self.name = passages.name
        if questions is not passages:
            self.name += f" with {questions.name}"
        if passage_prefix:  # questions are not stored, so their prefix may change
            self.name += f" after {hashlib.sha256(passage_prefix.encode()).hexdigest()[:8]}"
        self.dimension = passages.dimension
        self.max_tokens = passages.max_tokens
        self.vocabulary_size = passages.vocabulary_size
        self.unknown_id = passages.unknown_id
        self.marks = passages.marks

    def embed(self, texts: Sequence[str]) -> Vectors:
        return self._passages.embed([self._passage_prefix + text for text in texts])

    def embed_questions(self, texts: Sequence[str]) -> Vectors:
        return self._questions.embed([self._question_prefix + text for text in texts])

    def count_tokens(self, pieces: Sequence[str]) -> Sequence[int]:
        return self._passages.count_tokens(pieces)

    def token_ids(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        return self._passages.token_ids(texts)

    def embed_tokens(self, token_ids: Sequence[Sequence[int]]) -> Vectors:
        return self._passages.embed_tokens(token_ids)


def _prompt(folder: ModelFolder, names: Sequence[str]) -> str:
    """Return the first of these prompts that the model's folder has, else nothing."""
    path = folder.path / "config_sentence_transformers.json"
    prompts = read_json(path).get("prompts") if path.exists() else None
    texts = [prompts.get(name) for name in names] if isinstance(prompts, dict) else []
    return next((text for text in texts if isinstance(text, str)), "")
