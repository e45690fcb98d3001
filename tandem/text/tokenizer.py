"""Text to token ids and back, with a Hugging Face tokenizer. Invariant: what a `Detokenizer` has
returned is never taken back, and together it is the text of all ids pushed."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, cast

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from tandem.core.errors import InvalidArgument
from tandem.core.reading import reading
from tandem.core.tokens import check_token_ids
from tandem.text.chat_rendering import (
    NO_VARIABLES,
    OF_VALUES,
    ChatRendering,
    not_rendered,
    tells_date,
)
from tandem.text.families import ModelFamily, family_of
from tandem.text.past_reasoning import reasoning_field
from tandem.text.token_strings import TokenBytes, read_vocabulary
from tandem.text.vocabulary import Vocabulary, hash_vocabulary

_FILLING = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<|fim▁begin|>", "<|fim▁hole|>", "<|fim▁end|>"),
)
"""Tokens before a text, before what is to follow, and before what comes between them: Qwen and
others, StarCoder, DeepSeek."""
_PROMPT_END = 64
"""Tokens of a prompt's end that may tell how its answer begins: whether it opens the thinking,
whose marks have ten at most, and whether there is any text before it."""
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # what a decoder writes for half a character


class TextTokenizer:
    """A tokenizer with its chat template and its end-of-text ids."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        eos_token_ids: frozenset[int] = frozenset(),
        logits: int | None = None,
    ) -> None:
        """Wrap a tokenizer. `eos_token_ids` are the model's, in addition to the tokenizer's own;
        `logits` is how many the model's configuration speaks of. `model_size` tokens are known to
        both."""
        self._tokenizer = tokenizer
        vocabulary = tokenizer.get_vocab()
        self.vocabulary_size = max(vocabulary.values()) + 1
        self.model_size = min(self.vocabulary_size, logits or self.vocabulary_size)
        self.vocabulary_hash = hash_vocabulary(vocabulary, self.model_size)
        eos_token_id = tokenizer.eos_token_id
        further = frozenset[int]() if eos_token_id is None else frozenset((eos_token_id,))
        self.eos_token_ids = eos_token_ids | further

    def encode(self, text: str) -> list[int]:
        """Encode a prompt, with the beginning-of-text token if the model is used to one."""
        return self._encoded(text)

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        images: int = 0,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> list[int]:
        """Encode a conversation, up to where the assistant's answer begins.

        Each message has a `role` and a `content`; control tokens written out in a content are text.
        The last turn of the user begins with `images` images, as the template writes them.
        `variables` are the template's (`tandem.text.chat_rendering`). Raises
        InvalidArgument("messages") when the model has no chat template or it refuses them.
        """
        return self.chat_with_tools(messages, (), images, variables)

    @property
    def template_knows_tools(self) -> bool:
        return "tools" in str(self._tokenizer.chat_template)

    @property
    def template_tells_date(self) -> bool:
        return tells_date(str(self._tokenizer.chat_template))

    @cached_property
    def reasoning_field(self) -> str:
        """The field of a message in which the chat template looks for what was thought."""
        return reasoning_field(str(self._tokenizer.chat_template or ""))

    @cached_property
    def family(self) -> ModelFamily:
        """The model's family, by its chat template."""
        return family_of(str(self._tokenizer.chat_template or ""))

    def prompt_end(self, token_ids: Sequence[int]) -> str:
        """Return the text of the last tokens of a prompt, special tokens included."""
        options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        return cast(str, self._tokenizer.decode(list(token_ids[-_PROMPT_END:]), **options))

    def mark_ids(self, text: str) -> list[int]:
        """Encode text inside a text; special tokens written out in it become special tokens."""
        return self._encoded(text, add_special_tokens=False)

    def chat_with_tools(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any],
        images: int = 0,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> list[int]:
        """Encode as `chat` does; `tools` and the messages that call them are as in OpenAI's API."""
        if not self._tokenizer.chat_template:
            raise InvalidArgument("messages", "this model has no chat template; send a prompt")
        for index, message in enumerate(messages):
            if not all(isinstance(message.get(field), str) for field in ("role", "content")):
                raise InvalidArgument("messages", f"[{index}] needs a role and a content")
        rendering = ChatRendering.of(variables)
        with reading("the model's tokenizer", "messages", "cannot encode them"):
            return self._rendered(_with_images(messages, images), list(tools) or None, rendering)

    def _rendered(
        self, messages: list[dict[str, Any]], tools: list[Any] | None, rendering: ChatRendering
    ) -> list[int]:
        try:
            ids = self._tokenizer.apply_chat_template(
                messages,
                tools=tools,
                add_generation_prompt=rendering.add_generation_prompt,
                continue_final_message=rendering.continue_final_message,
                sanitize_control_tokens=True,
                return_dict=False,
                **rendering.variables,
            )
        except TemplateError as error:
            raise InvalidArgument("messages", f"refused by the chat template: {error}") from error
        except OF_VALUES as error:
            raise not_rendered(rendering, error) from error
        return cast(list[int], ids)

    def encode_piece(self, text: str) -> list[int]:
        """Encode text inside a text; control tokens written out in it are text."""
        return self._encoded(text, add_special_tokens=False, split_special_tokens=True)

    def _encoded(self, text: str, **options: bool) -> list[int]:
        # Lists as long as the text, which hold the interpreter's lock and are no use to anybody.
        options |= {"return_attention_mask": False, "return_token_type_ids": False}
        with reading("the model's tokenizer", "prompt", "cannot encode this"):
            return cast(list[int], self._tokenizer.encode(text, **options))

    def fill_in(self, prompt: str, suffix: str) -> list[int]:
        """Return the ids after which the text between `prompt` and `suffix` follows. Raises
        InvalidArgument("suffix") if the model has no tokens for it."""
        for marks in _FILLING:
            mark_ids = [cast("int | None", self._tokenizer.convert_tokens_to_ids(m)) for m in marks]
            ids = [each for each in mark_ids if each is not None]
            # What is not known may be told as the token for the unknown.
            if self._tokenizer.convert_ids_to_tokens(ids) == [*marks]:
                break
        else:
            raise InvalidArgument("suffix", "this model does not support filling in the middle")
        before, after, between = ids
        texts = self.encode_piece(prompt), self.encode_piece(suffix)
        begin = self.encode("a")[:1] if self.starts_with_bos else []
        return [*begin, before, *texts[0], after, *texts[1], between]

    @property
    def starts_with_bos(self) -> bool:
        """True if a prompt begins with the beginning-of-text token."""
        bos = self._tokenizer.bos_token_id
        return bos is not None and self.encode("a")[:1] == [bos]

    def vocabulary(self) -> Vocabulary:
        """Return what each token spells. Raises InvalidArgument("tokenizer") where that cannot be
        told."""
        return read_vocabulary(self._tokenizer, self.model_size)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to a text; none for a control token."""
        return self._token_bytes.of(token_id)

    @cached_property
    def _token_bytes(self) -> TokenBytes:
        return TokenBytes(self._tokenizer)

    def decode(self, token_ids: Iterable[int]) -> str:
        """Decode ids to text, without special tokens."""
        return self._decode(list(token_ids))

    @cached_property
    def _decode(self) -> Callable[[list[int]], str]:
        """Decode ids as `decode` does. A text is decoded token by token, so that of transformers'
        own tokenizers the library behind them is asked, which their `decode` adds nothing to."""
        decode: Callable[..., Any] = self._tokenizer.decode
        options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        if _adds_nothing(type(self._tokenizer)):
            decode = self._tokenizer.backend_tokenizer.decode
            options = {"skip_special_tokens": True}
        return partial(decode, **options)

    def detokenizer(self, after: Sequence[int] = ()) -> "Detokenizer":
        """Begin a text, or go on with that of `after`."""
        return Detokenizer(self, after=self._context(after))

    def marked_detokenizer(self, after: Sequence[int] = ()) -> "Detokenizer":
        """Return a detokenizer like `detokenizer`, but with the family's marks as text, even where
        they are special tokens."""
        return Detokenizer(self, self._special_marks, after=self._context(after))

    def special_detokenizer(
        self, ends: Collection[int] = (), after: Sequence[int] = ()
    ) -> "Detokenizer":
        """Return a detokenizer like `detokenizer`, but with all special tokens as text; one of
        `ends` only if another token follows it."""
        return Detokenizer(self, self._special_tokens, ends, after=self._context(after))

    def _context(self, token_ids: Sequence[int]) -> Sequence[int]:
        """Return the last tokens of a text, as many as tell what the next one adds to it: up to one
        that has text, but without half a character, which nothing completes."""
        tail = [each for each in token_ids[-_PROMPT_END:] if each not in self._special_tokens]
        while tail and self.decode(tail[-1:]).endswith(_INCOMPLETE):
            tail = tail[:-1]
        starts = range(len(tail) - 1, -1, -1)
        return tail[next((start for start in starts if self.decode(tail[start:])), 0) :]

    @cached_property
    def _special_tokens(self) -> dict[int, str]:
        return {
            token_id: token.content
            for token_id, token in self._tokenizer.added_tokens_decoder.items()
            if token.special
        }

    @cached_property
    def _special_marks(self) -> dict[int, str]:
        marks = self.family.marks
        return {
            token_id: content
            for token_id, content in self._special_tokens.items()
            if any(content in mark for mark in marks)
        }


def _adds_nothing(kind: type[PreTrainedTokenizerBase]) -> bool:
    """Return whether decoding with tokenizers of this class is that of the library behind them."""
    return (
        issubclass(kind, PreTrainedTokenizerFast)
        and kind.decode is PreTrainedTokenizerBase.decode
        and kind._decode is PreTrainedTokenizerFast._decode
    )


class Detokenizer:
    """Turns a stream of token ids into a stream of text.

    A token's text depends on the one before it (spaces) and may be part of a character, so each
    step decodes the last settled tokens with the new one and returns the difference. One token at a
    time: some decoders write invalid bytes otherwise when more of them are decoded at once.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        shown: Mapping[int, str] | None = None,
        ends: Collection[int] = (),
        after: Sequence[int] = (),
    ) -> None:
        """Begin a text, or go on with that of the tokens `after`. `shown`: special tokens that are
        text here, with what they spell; one of `ends` only if another token follows it."""
        self._tokenizer = tokenizer
        self._shown = shown or {}
        self._ends = frozenset(ends)
        self._end = ""  # spelt by the last token, if that may be the end
        self._ids = [*after]  # settled tokens kept for context, then unsettled ones
        self._settled = len(self._ids)

    def push(self, token_ids: Sequence[int]) -> str:
        """Take more ids, and return the text that they complete; half a character waits for its
        other half. Raises InvalidArgument("token_ids") for an id outside the vocabulary."""
        check_token_ids(token_ids, self._tokenizer.vocabulary_size, "token_ids")
        pieces = []
        for token in token_ids:
            pieces.append(self._end)
            self._end = ""
            if (mark := self._shown.get(token)) is not None:
                pieces.append(self._settle(complete=True))
                self._ids = []
                self._settled = 0
                if token in self._ends:
                    self._end = mark
                else:
                    pieces.append(mark)
                continue
            self._ids.append(token)
            pieces.append(self._settle(complete=False))
        return "".join(pieces)

    def preview(self, token_id: int) -> str:
        fork = Detokenizer(self._tokenizer, self._shown, self._ends)
        fork._end = self._end
        fork._ids = [*self._ids]
        fork._settled = self._settled
        return fork.push((token_id,))

    def finish(self) -> str:
        """Return what is left at the end of the text; half a character becomes U+FFFD."""
        return self._settle(complete=True)

    def _settle(self, complete: bool) -> str:
        before = self._tokenizer.decode(self._ids[: self._settled])
        text = self._tokenizer.decode(self._ids)
        if len(text) <= len(before) or (text.endswith(_INCOMPLETE) and not complete):
            return ""
        self._ids = self._ids[self._settled :]
        self._settled = len(self._ids)
        return text[len(before) :]


def _with_images(messages: Sequence[Mapping[str, Any]], images: int) -> list[dict[str, Any]]:
    """Return the messages as templates want them: text, or a list of parts where there are
    images."""
    copies: list[dict[str, Any]] = [dict(message) for message in messages]
    for message in reversed(copies):
        if images and message["role"] == "user":
            text = {"type": "text", "text": message["content"]}
            message["content"] = [*({"type": "image"} for _ in range(images)), text]
            break
    return copies
