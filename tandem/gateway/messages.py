"""Messages of a chat as clients send them, answers that they send back included: what this server
answered, what another server did, and what a framework adds for itself.

Invariant: a field or a content part that is unknown here is ignored, as it is made for somebody
else; one that is known, and would change the answer if it were read, is read or refused with words
for what to send instead."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from tandem.gateway.base_models import Lenient, one_of, refused_unless


def first_text(*values: object) -> str:
    """Return the first that is a text and says something. Other servers have objects under the same
    names, which say nothing here."""
    return next((value for value in values if isinstance(value, str) and value), "")


class TextPart(Lenient):
    type: Literal["text", "input_text", "output_text"]
    text: str


Detail = Annotated[
    None, one_of("images are read as the model's own settings say", "auto", "high", "original")
]
"""How closely an image is to be looked at."""


class ImageAddress(Lenient):
    url: str
    detail: Detail = None


class ImagePart(Lenient):
    type: Literal["image_url", "input_image"]
    image_url: ImageAddress | str
    detail: Detail = None

    @property
    def url(self) -> str:
        return self.image_url if isinstance(self.image_url, str) else self.image_url.url


class RefusalPart(Lenient):
    """What an earlier answer said, where it would not answer."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


class ReasoningPart(Lenient):
    """What an earlier answer thought, in the field that is called like the type, or in `text`."""

    type: Literal["thinking", "redacted_thinking", "reasoning"]
    thinking: Any = Field(default=None, description="Text of a part of the type `thinking`.")
    reasoning: Any = Field(default=None, description="Text of a part of the type `reasoning`.")
    text: Any = None

    @property
    def said(self) -> str:
        return first_text(self.thinking, self.reasoning, self.text)


_INSTEAD_OF_PARTS: Mapping[str, str] = {
    "tool_use": "send `tool_calls` beside `content`",
    "tool_result": "send a message with the role `tool` and the `tool_call_id`",
    "image": "send an `image_url` part with a data URL",
    "input_audio": "send a transcript as a `text` part",
    "audio": "send a transcript as a `text` part",
    "file": "send its text as a `text` part",
    "input_file": "send its text as a `text` part",
    "document": "send its text as a `text` part",
    "video_url": "send single pictures as `image_url` parts",
}
"""Types of content parts that other servers know."""


def _known_parts(content: object) -> object:
    """Refuse a part of another type in words; the models of the parts check the rest."""
    for index, part in enumerate(content if isinstance(content, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind in _INSTEAD_OF_PARTS:
            instead = _INSTEAD_OF_PARTS[kind]
            raise ValueError(f"part {index}: the type {kind!r} is not supported; {instead}")
    return content


Part = Annotated[TextPart | ImagePart | RefusalPart | ReasoningPart, Field(discriminator="type")]
Content = Annotated[
    str | Annotated[list[Part], Field(fail_fast=True)], BeforeValidator(_known_parts)
]


def _arguments(arguments: object) -> object:
    """Return the arguments as JSON, as they are in answers. Some clients send nothing at all for a
    call without arguments."""
    if arguments is None or arguments == "":
        return "{}"
    return json.dumps(arguments) if isinstance(arguments, dict) else arguments


class PastFunction(Lenient):
    name: str
    arguments: Annotated[
        str,
        BeforeValidator(_arguments, json_schema_input_type=str | dict[str, Any] | None),
    ] = Field(default="{}", description="Arguments as JSON, or as an object.")


class PastToolCall(Lenient):
    """A tool call in a message of the assistant."""

    id: str
    type: Literal["function"] = "function"
    function: PastFunction


def _role(role: object) -> object:
    if role == "function":
        raise ValueError(
            "'function' is not supported; send the role `tool` and the `tool_call_id` of the call"
        )
    return role


Role = Annotated[
    Literal["system", "developer", "user", "assistant", "document", "tool"], BeforeValidator(_role)
]


class Message(Lenient):
    """A message. A `name` is ignored: chat templates write none."""

    role: Role
    content: Content | None = Field(
        default=None,
        validate_default=False,
        description="Text of the message. Required unless `role` is `assistant`.",
    )
    reasoning_content: Any = Field(
        default=None,
        description="What the assistant thought before it said `content`: a text, for chat"
        " templates that keep it.",
    )
    reasoning: Any = Field(default=None, description="Another name of `reasoning_content`.")
    tool_calls: Annotated[list[PastToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = Field(
        default=None,
        description="Id of the tool call that this message answers. Required if `role` is `tool`.",
    )
    refusal: Annotated[None, refused_unless("send its text as `content`")] = None
    audio: Annotated[None, refused_unless("send its transcript as `content`")] = None
    function_call: Annotated[None, refused_unless("send the call as an entry of `tool_calls`")] = (
        None
    )
    images: Annotated[
        None,
        refused_unless("send `image_url` parts in `content`"),
    ] = None

    @property
    def parts(self) -> Sequence[Part]:
        """The content, where it is not a single text."""
        return self.content if isinstance(self.content, list) else ()

    @property
    def thoughts(self) -> str:
        """What an assistant thought before it said the content."""
        parts = [part.said for part in self.parts if isinstance(part, ReasoningPart)]
        return first_text(self.reasoning_content, self.reasoning, "".join(parts))

    prefix: Annotated[
        None,
        refused_unless("set `continue_final_message` to true beside `messages`"),
    ] = None
