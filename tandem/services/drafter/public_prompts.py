"""System prompts that an operator declares public, so that their keys and values are kept once for
all tenants. Invariant: a token counts as public only if the declared prompt alone, with the chat
template around it, says what it is and what all tokens before it are; where a caller's words begin,
or could have changed a token, nothing is public any more."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path

from tandem.core.errors import InvalidArgument
from tandem.core.prompt import Turn
from tandem.net.reloaded import BadFile, read_file
from tandem.text import Tokenizer
from tandem.text.tool_prompt import conversation_ids

MOST_PROMPTS = 64
_PROBES = ("0", "A")
"""Two beginnings of what a user says: tokens that are the same with both depend on neither."""


class PublicPrompts:
    """Those of one drafter, as the token ids that prompts with them begin with."""

    def __init__(self, rendered: Iterable[Sequence[int]] = ()) -> None:
        self._rendered = tuple(tuple(ids) for ids in rendered)

    def tokens_in(self, prompt_ids: Sequence[int]) -> int:
        """Return how many of the first tokens of a prompt are of a public one."""
        return max((_common(ids, prompt_ids) for ids in self._rendered), default=0)


def read_public_prompts(path: Path) -> list[str]:
    """Read the texts of a file, a JSON list of strings. Raises BadFile."""
    try:
        texts = json.loads(read_file(path))
    except (ValueError, RecursionError):
        raise BadFile(path, "must be a JSON list of texts") from None
    if not isinstance(texts, list) or not all(isinstance(each, str) and each for each in texts):
        raise BadFile(path, "must be a JSON list of texts, none of them empty")
    if len(texts) > MOST_PROMPTS:
        raise BadFile(path, f"has {len(texts)} texts; at most {MOST_PROMPTS}")
    return texts


def rendered_by(tokenizer: Tokenizer, texts: Iterable[str]) -> PublicPrompts:
    """Tokenize texts as the system's turn of a conversation. Raises InvalidArgument if the model's
    chat template takes none."""

    def ids_of(text: str, words: str) -> list[int]:
        return conversation_ids(tokenizer, (Turn("system", text), Turn("user", words)))

    return PublicPrompts(_shared([ids_of(text, words) for words in _PROBES]) for text in texts)


def _shared(ids: Sequence[Sequence[int]]) -> Sequence[int]:
    first, second = ids
    return first[: _common(first, second)]


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    return sum(1 for _ in same)


def load_public_prompts(path: Path, tokenizer: Tokenizer) -> PublicPrompts:
    """Load public prompts from a file, for this model. Raises BadFile."""
    try:
        return rendered_by(tokenizer, read_public_prompts(path))
    except InvalidArgument as error:
        raise BadFile(path, f"cannot be a system's turn: {error.why}") from None
