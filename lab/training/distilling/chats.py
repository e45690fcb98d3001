"""Prompts as the target reads them: token ids, most of them within its chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lab.training.distilling.prompts import Prompt

_MARK = "\x00"


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """What a chat template writes around a user's words; None for a model that has none."""

    tokenizer: Any
    before: str
    after: str
    known: int
    """Tokens that begin every chat, and teach nothing."""

    @classmethod
    def of(cls, tokenizer: Any) -> ChatFrame | None:
        if not getattr(tokenizer, "chat_template", None):
            return None
        turn = [{"role": "user", "content": _MARK}]
        text: str = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        before, _, after = text.partition(_MARK)
        known = len(tokenizer.encode(before, add_special_tokens=False))
        return cls(tokenizer, before, after, max(1, known))

    def around(self, words: str) -> str:
        """Return the words as a user's turn, up to where the answer begins."""
        return f"{self.before}{words}{self.after}"

    def beginning(self) -> tuple[int, ...]:
        """Return the token ids before a user's first words."""
        return tuple(self.tokenizer.encode(self.before, add_special_tokens=False))


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """Token ids, of which the first `known` are the same in all prompts of the kind."""

    token_ids: tuple[int, ...]
    known: int


def encode(
    prompts: Sequence[Prompt], tokenizer: Any, frame: ChatFrame | None, answers: Sequence[str] = ()
) -> list[EncodedPrompt]:
    """Encode many at once, which a tokenizer does on all cores. `answers` follow the prompts, if
    there are any. Without a chat template every prompt is text that goes on."""
    if not prompts:
        return []
    texts = [
        frame.around(prompt.text) if prompt.chat and frame is not None else prompt.text
        for prompt in prompts
    ]
    if answers:
        texts = [text + answer for text, answer in zip(texts, answers, strict=True)]
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return [
        EncodedPrompt(tuple(one), frame.known if prompt.chat and frame is not None else 1)
        for one, prompt in zip(ids, prompts, strict=True)
    ]
