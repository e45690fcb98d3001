"""The tokenizer that a GGUF file carries. Invariant: ids are those of the model's Hugging Face
tokenizer, and so is the vocabulary's hash: a GGUF draft pairs with a safetensors target."""

import codecs
import ctypes
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tandem.backends.llamacpp.native import LlamaModel
from tandem.core.errors import InvalidArgument
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
from tandem.text.vocabulary import Vocabulary, fallback_byte, hash_vocabulary

_UNKNOWN = 1
_UNUSED = 2
_CONTROL = 8
_USER_DEFINED = 16
_BYTE = 32
_SENTENCEPIECE = 1  # llama.cpp's number of the kind
_PADDING = re.compile(r"\[PAD\d+\]")
"""What converters call ids that the tokenizer does not have and the model has logits for."""
_PIECE_BYTES = 512
_OPEN, _CLOSE = "\ue0f0", "\ue0f1"  # private use; around control tokens that a content spells
_CONTINUED = "\ue0f2 "  # private use; where the last message ends that an answer continues
_NONE = -1
_PROMPT_END = 64
"""Tokens of a prompt's end that may tell how its answer begins: whether it opens the thinking, and
whether there is any text before it."""


class GgufTokenizer:
    """Text to ids and back, by llama.cpp itself; conversations by the template in the file."""

    def __init__(self, model: LlamaModel) -> None:
        self._model = model
        self._library = model.library
        self._pointer = model.vocabulary
        count = int(self._library.llama_vocab_n_tokens(self._pointer))
        self._kinds = [
            int(self._library.llama_vocab_get_attr(self._pointer, i)) for i in range(count)
        ]
        self._names = {
            token: self._library.llama_vocab_get_text(self._pointer, token).decode(
                "utf-8", "replace"
            )
            for token in range(count)
        }
        for token in range(count):
            if self._kinds[token] & _UNUSED and _PADDING.fullmatch(self._names[token]):
                del self._names[token]
        if not self._names:
            raise InvalidArgument("model", "the file has no vocabulary")
        self.vocabulary_size = self.model_size = max(self._names) + 1
        ids = {name: token for token, name in self._names.items()}
        self.vocabulary_hash = hash_vocabulary(ids, self.model_size)
        self.eos_token_ids = frozenset(
            token for token in self._names if self._library.llama_vocab_is_eog(self._pointer, token)
        )
        self._control = {self._names[t] for t in self._names if self._kinds[t] & _CONTROL}
        self._spelt_control = re.compile("|".join(map(re.escape, sorted(self._control)[::-1])))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a prompt, with the beginning-of-text token where the model is used to
        one."""
        return self._tokenize(text, special=True, control=True)

    def encode_piece(self, text: str) -> list[int]:
        """Return the ids of text inside a text; control tokens spelt out in it are text."""
        return self._tokenize(text, special=False, control=False)

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        images: int = 0,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> list[int]:
        """Return the ids of a conversation, up to where the assistant's answer begins; control
        tokens spelt out in a content are text. Raises InvalidArgument("messages") when the file has
        no chat template or it refuses them."""
        if self._template is None:
            raise InvalidArgument("messages", "this model has no chat template; send a prompt")
        for index, message in enumerate(messages):
            if not all(isinstance(message.get(field), str) for field in ("role", "content")):
                raise InvalidArgument("messages", f"[{index}] needs a role and a content")
        marked = [
            {name: text if name == "role" else self._mark(text) for name, text in one.items()}
            for one in messages
        ]
        text = self._rendered(self._template, marked, ChatRendering.of(variables))
        parts = re.split(f"{_OPEN}([^{_CLOSE}]*){_CLOSE}", text)  # every second is a content's
        kinds = ((part, index % 2 == 0) for index, part in enumerate(parts) if part)
        return [i for part, ours in kinds for i in self._tokenize(part, False, control=ours)]

    @property
    def template_tells_date(self) -> bool:
        return tells_date(self._model.chat_template or "")

    @cached_property
    def reasoning_field(self) -> str:
        """The field of a message in which the chat template looks for what was thought."""
        return reasoning_field(self._model.chat_template or "")

    @cached_property
    def family(self) -> ModelFamily:
        """The model's family, by its chat template."""
        return family_of(self._model.chat_template or "")

    def prompt_end(self, token_ids: Sequence[int]) -> str:
        """Return the text of the last tokens of a prompt, special tokens included."""
        ends = [self.piece(t) or self._names.get(t, "").encode() for t in token_ids[-_PROMPT_END:]]
        return b"".join(ends).decode("utf-8", "replace")

    def mark_ids(self, text: str) -> list[int]:
        """Return the ids of text inside a text; a special token spelt out in it becomes that
        token."""
        return self._tokenize(text, special=False, control=True)

    def _rendered(
        self, template: Template, messages: list[dict[str, str]], rendering: ChatRendering
    ) -> str:
        if rendering.continue_final_message:
            messages[-1]["content"] += _CONTINUED
        variables = {name: self._marked(value) for name, value in rendering.variables.items()}
        begins = rendering.add_generation_prompt
        try:
            text = template.render(messages=messages, add_generation_prompt=begins, **variables)
        except TemplateError as error:
            raise InvalidArgument("messages", f"refused by the chat template: {error}") from error
        except OF_VALUES as error:
            raise not_rendered(rendering, error) from error
        if not rendering.continue_final_message:
            return text
        before, mark, after = text.rpartition(_CONTINUED.strip())
        if not mark:
            raise not_rendered(rendering, ValueError("the last message is left out"))
        # A template that trims the message would have trimmed what ends it now.
        return before if after.startswith(" ") else before.rstrip()

    @property
    def starts_with_bos(self) -> bool:
        """True if a prompt begins with the beginning-of-text token."""
        bos = int(self._library.llama_vocab_bos(self._pointer))
        return bos != _NONE and self.encode("a")[:1] == [bos]

    def vocabulary(self) -> Vocabulary:
        """Return what each token spells."""
        pieces = {}
        byte_ids = set()
        specials = {}
        for token, name in self._names.items():
            if self._kinds[token] & (_CONTROL | _UNKNOWN):
                specials[token] = name
                continue
            byte = fallback_byte(name) if self._kinds[token] & _BYTE else None
            if byte is not None:
                byte_ids.add(token)
            plain = self._kinds[token] & _USER_DEFINED
            pieces[token] = byte or (name.encode() if plain else self.piece(token))
        ends = (
            self._library.llama_vocab_bos(self._pointer),
            self._library.llama_vocab_eos(self._pointer),
        )
        bos, eos = (int(token) if token != _NONE else None for token in ends)
        unknown = next((t for t in specials if self._kinds[t] & _UNKNOWN), None)
        ids = frozenset(byte_ids)
        return Vocabulary(
            size=self.model_size,
            pieces=pieces,
            byte_ids=ids,
            specials=specials,
            bos=bos,
            eos=eos,
            unknown=unknown,
        )

    def decode(self, token_ids: Iterable[int]) -> str:
        """Return the text of ids, without special tokens."""
        text = self.detokenizer()
        return text.push(list(token_ids)) + text.finish()

    def detokenizer(self, after: Sequence[int] = ()) -> "GgufText":
        """Begin a text, or go on with that of `after`."""
        return GgufText(self, after=after)

    def marked_detokenizer(self, after: Sequence[int] = ()) -> "GgufText":
        """Return what `detokenizer` returns, except that the family's marks are text, even where
        they are control tokens."""
        marks = self.family.marks
        shown = {
            token: name.encode()
            for token, name in self._names.items()
            if name in self._control and any(name in mark for mark in marks)
        }
        return GgufText(self, shown, after=after)

    def special_detokenizer(
        self, ends: Collection[int] = (), after: Sequence[int] = ()
    ) -> "GgufText":
        """Return what `detokenizer` returns, except that all control tokens are text; one of `ends`
        only if another token follows it."""
        shown = {t: name.encode() for t, name in self._names.items() if name in self._control}
        return GgufText(self, shown, ends, after)

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token adds to a text; none for a control token."""
        buffer = ctypes.create_string_buffer(_PIECE_BYTES)
        size = self._library.llama_token_to_piece(
            self._pointer, token, buffer, _PIECE_BYTES, 0, False
        )
        if size < 0:
            buffer = ctypes.create_string_buffer(-size)
            size = self._library.llama_token_to_piece(self._pointer, token, buffer, -size, 0, False)
        return buffer.raw[:size]

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to a text; none for a control token."""
        return self.piece(token_id)

    @cached_property
    def drops_first_space(self) -> bool:
        """True if encoding puts a space before every text, which decoding takes away."""
        kind = int(self._library.llama_vocab_type(self._pointer))
        return kind == _SENTENCEPIECE and self._said("add_space_prefix") != "false"

    @cached_property
    def _template(self) -> Template | None:
        source = self._model.chat_template
        if source is None:
            return None
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        ends = {
            "bos_token": self._library.llama_vocab_bos,
            "eos_token": self._library.llama_vocab_eos,
        }
        names = {name: self._names.get(int(of(self._pointer)), "") for name, of in ends.items()}
        environment.globals.update(names, raise_exception=_raise, strftime_now=_now)
        try:
            return environment.from_string(source)
        except TemplateError as error:
            raise InvalidArgument("messages", f"the chat template is broken: {error}") from error

    def _said(self, key: str) -> str | None:
        return self._model.text(f"tokenizer.ggml.{key}")

    def _marked(self, value: object) -> object:
        """Return a JSON value with marks around the control tokens that its texts spell out."""
        if isinstance(value, str):
            return self._mark(value)
        if isinstance(value, list):
            return [self._marked(each) for each in value]
        if isinstance(value, dict):
            return {name: self._marked(each) for name, each in value.items()}
        return value

    def _mark(self, content: str) -> str:
        for mark in (_OPEN, _CLOSE, _CONTINUED.strip()):
            content = content.replace(mark, "")
        if not self._control:
            return content
        return self._spelt_control.sub(lambda match: _OPEN + match[0] + _CLOSE, content)

    def _tokenize(self, text: str, special: bool, control: bool) -> list[int]:
        """Return the ids of a text. `special`: with the tokens before and after every text.
        `control`: those spelt out in the text are meant."""
        spelt = text.encode("utf-8", "replace")
        room = len(spelt) + 8
        ids = (ctypes.c_int32 * room)()
        count = self._library.llama_tokenize(
            self._pointer, spelt, len(spelt), ids, room, special, control
        )
        if count < 0:
            raise InvalidArgument("prompt", f"cannot be tokenized: {-count} tokens")
        return ids[:count]


class GgufText:
    """A stream of ids as a stream of text; half a character waits for its other half."""

    def __init__(
        self,
        tokenizer: GgufTokenizer,
        shown: Mapping[int, bytes] | None = None,
        ends: Collection[int] = (),
        after: Sequence[int] = (),
    ) -> None:
        """Begin an empty text, or go on with that of the tokens `after`. `shown`: the control
        tokens that are text here, with what each spells; one of `ends` is text only if another
        token follows it."""
        self._tokenizer = tokenizer
        self._shown = shown or {}
        self._ends = frozenset(ends) & self._shown.keys()
        self._end = b""  # spelt by the last token, if that may be the end
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")
        goes_on = any(tokenizer.piece(token) for token in reversed(after[-_PROMPT_END:]))
        self._first = tokenizer.drops_first_space and not goes_on

    def push(self, token_ids: Sequence[int]) -> str:
        """Return the text that these tokens complete. Raises InvalidArgument("token_ids") for an id
        outside the vocabulary."""
        check_token_ids(token_ids, self._tokenizer.vocabulary_size, "token_ids")
        spelt = b""
        for token in token_ids:
            piece = self._shown.get(token) or self._tokenizer.piece(token)
            spelt += self._end
            self._end = piece if token in self._ends else b""
            spelt += b"" if token in self._ends else piece
        if self._first and spelt:
            self._first = False
            spelt = spelt.removeprefix(b" ")
        return self._bytes.decode(spelt)

    def preview(self, token_id: int) -> str:
        twin = GgufText(self._tokenizer, self._shown, self._ends)
        twin._end = self._end
        twin._bytes.setstate(self._bytes.getstate())
        twin._first = self._first
        return twin.push((token_id,))

    def finish(self) -> str:
        """Return what is left at the end of the text; half a character becomes U+FFFD."""
        return self._bytes.decode(b"", final=True)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(layout: str) -> str:
    return datetime.now().strftime(layout)
