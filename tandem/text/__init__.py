"""Tokenizers, vocabularies, and text that grows token by token. Here: what a tokenizer is, for code
that knows no tokenizer library."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from tandem.text.chat_rendering import NO_VARIABLES
from tandem.text.families import ModelFamily
from tandem.text.vocabulary import Vocabulary


class IncrementalText(Protocol):
    """Turns a stream of token ids into a stream of text; what it returned is never taken back."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Take more ids, and return the text that they complete."""

    def preview(self, token_id: int) -> str:
        """Return what `push` of the id would return; take nothing."""

    def finish(self) -> str:
        """Return the text that is left at the end."""


class Tokenizer(Protocol):
    """Text to token ids and back."""

    def encode(self, text: str) -> list[int]: ...

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        images: int = 0,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> list[int]:
        """Encode a conversation, up to where the answer begins. The user's last turn begins with
        `images` images, one placeholder each. `variables` are the chat template's
        (`tandem.text.chat_rendering`)."""

    def detokenizer(self, after: Sequence[int] = ()) -> IncrementalText:
        """Begin a text, or go on with that of `after`: some tokenizers put a space before every
        text, which is none of the text's where it begins, and is where it goes on."""


@runtime_checkable
class SpellingTokenizer(Protocol):
    """A tokenizer that knows the bytes of single tokens."""

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to a text; none for a control token, nor where that
        cannot be told."""


@runtime_checkable
class SpecialTokenizer(Protocol):
    """A tokenizer that can spell special tokens."""

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    def special_detokenizer(
        self, ends: Collection[int] = (), after: Sequence[int] = ()
    ) -> IncrementalText:
        """Return a detokenizer like `detokenizer`, but with all special tokens as text; one of
        `ends` only if another token follows it."""


@runtime_checkable
class ToolTokenizer(Protocol):
    """A tokenizer whose chat template may know tools."""

    @property
    def template_knows_tools(self) -> bool: ...

    def chat_with_tools(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any],
        images: int = 0,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> list[int]:
        """Encode as `chat` does; messages may call tools and answer calls."""


@runtime_checkable
class ReasoningTokenizer(Protocol):
    """A tokenizer that knows whether its chat template keeps what was thought in earlier turns."""

    @property
    def reasoning_field(self) -> str:
        """The field of a message that has it (`tandem.text.past_reasoning`); empty: none."""


@runtime_checkable
class FamilyTokenizer(Protocol):
    """A tokenizer that knows the family of its model (`tandem.text.families`)."""

    @property
    def family(self) -> ModelFamily: ...

    def prompt_end(self, token_ids: Sequence[int]) -> str:
        """Return the end of a prompt's text, special tokens included."""

    def mark_ids(self, text: str) -> list[int]:
        """Encode text inside a text; special tokens written out in it become special tokens."""

    def marked_detokenizer(self, after: Sequence[int] = ()) -> IncrementalText:
        """Return a detokenizer like `detokenizer`, but with the family's marks as text, even where
        they are special tokens."""


@runtime_checkable
class FillingTokenizer(Protocol):
    """A tokenizer that may know how its model is asked for text before a given end."""

    def fill_in(self, prompt: str, suffix: str) -> list[int]:
        """Return the ids after which the text between `prompt` and `suffix` follows. Raises
        InvalidArgument("suffix") if the model has no tokens for it."""


@runtime_checkable
class ComparableTokenizer(Tokenizer, Protocol):
    """A tokenizer whose tokens can be compared with another's."""

    vocabulary_hash: str
    model_size: int
    """Tokens that the model has logits for."""
    eos_token_ids: frozenset[int]

    def encode_piece(self, text: str) -> list[int]:
        """Encode text inside a text; control tokens written out in it are text."""

    @property
    def starts_with_bos(self) -> bool:
        """True if a prompt begins with the beginning-of-text token."""

    def vocabulary(self) -> Vocabulary:
        """Return what each token spells. Raises InvalidArgument("tokenizer") where that cannot be
        told."""


@runtime_checkable
class ConversationTokenizer(Tokenizer, Protocol):
    """A tokenizer that can put text into the beginning of a conversation."""

    @property
    def template_tells_date(self) -> bool:
        """True if the chat template writes the date of today into a conversation."""

    def encode_piece(self, text: str) -> list[int]:
        """Encode text inside a text; control tokens written out in it are text."""
