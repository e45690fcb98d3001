"""The tokenizer that goes with a scripted engine: one id per character, one word per id.

For tests and simulation. Must not import torch or transformers.
"""

from collections.abc import Mapping, Sequence


class ScriptedTokenizer:
    """Ids are code points modulo the vocabulary; the text of id 7 is "<7>"."""

    def __init__(self, vocabulary_size: int) -> None:
        self._vocabulary_size = vocabulary_size

    def encode(self, text: str) -> list[int]:
        return [ord(character) % self._vocabulary_size for character in text]

    def chat(self, messages: Sequence[Mapping[str, str]], images: int = 0) -> list[int]:
        return self.encode("".join(message["content"] for message in messages))

    def detokenizer(self) -> "ScriptedText":
        return ScriptedText()


class ScriptedText:
    """Every id is a whole word at once."""

    def push(self, token_ids: Sequence[int]) -> str:
        return "".join(f"<{token_id}>" for token_id in token_ids)

    def preview(self, token_id: int) -> str:
        return self.push((token_id,))

    def finish(self) -> str:
        return ""
