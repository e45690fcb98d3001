"""POST /v1/responses, the part of OpenAI's API that needs no memory of earlier answers: its body is
turned into a chat's, and the chat's answer into items and events.

Invariants: those of `schema` and `answer_schema` for bodies and answers; the items that a stream's
events make up are those of the whole answer."""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from tandem.gateway.body_parsing import Strict
from tandem.gateway.constraints import JsonObjectFormat, JsonSchema, TextFormat
from tandem.gateway.errors import validation_error
from tandem.gateway.event_stream import OPENAI_STREAM, StreamForm
from tandem.gateway.messages import Lenient
from tandem.gateway.parallel_choices import ChoiceDelta
from tandem.gateway.reasoning import ReasoningOptions, ReasoningReader
from tandem.gateway.schema import (
    ChatCompletionRequest,
    Count,
    ReasoningEffort,
    Seed,
    TandemOptions,
)
from tandem.gateway.tool_calls import (
    MAX_TOOLS,
    STRICT,
    CallPiece,
    ToolCallReader,
    ToolName,
)
from tandem.generation.figures import answer_figures
from tandem.specdec.messages import GenerationParams
from tandem.text.families import CallFormat

RESPONSE_NAMES: Mapping[str, str] = {
    "prompt": "input",
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text",
    "reasoning_effort": "reasoning",
    "chat_template_kwargs": "reasoning",
}
"""Names of chat parameters as the Responses API calls them."""

Ignored = Annotated[Any, Field(description="Ignored.")]


class InputText(Lenient):
    type: Literal["input_text", "output_text"]
    text: str
    annotations: Ignored = None
    logprobs: Ignored = None


class InputMessage(Lenient):
    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[InputText], Field(fail_fast=True)]
    id: Ignored = None
    status: Ignored = None
    phase: Ignored = None


class FunctionCallItem(Strict):
    """A tool call, in a response or passed back as input."""

    type: Literal["function_call"]
    call_id: str
    name: ToolName
    arguments: str = Field(description="Arguments as JSON.")
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class FunctionOutput(Lenient):
    type: Literal["function_call_output"]
    call_id: str
    output: str | Annotated[list[InputText], Field(fail_fast=True)]
    id: Ignored = None
    status: Ignored = None


class ReasoningText(Strict):
    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(Strict):
    """The model's thinking, in a response. As input it belongs to the answer that follows it, for
    chat templates that keep it."""

    type: Literal["reasoning"]
    id: str | None = None
    summary: list[Any] = Field(description="Always empty in responses.")
    content: list[ReasoningText] | None = None
    encrypted_content: Ignored = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class ResponseSchemaFormat(Strict):
    type: Literal["json_schema"]
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    json_schema: JsonSchema = Field(alias="schema")
    description: str | None = None
    strict: bool | None = Field(
        default=None, description="Ignored: answers always match the schema."
    )


class TextSettings(Strict):
    format: Annotated[
        TextFormat | JsonObjectFormat | ResponseSchemaFormat | None, Field(discriminator="type")
    ] = None
    verbosity: Ignored = None


class ResponseTool(Strict):
    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(
        default=None, description="JSON schema of the arguments."
    )
    strict: bool | None = Field(default=None, description=STRICT)


class NamedResponseTool(Strict):
    type: Literal["function"]
    name: ToolName


class ReasoningSettings(Strict):
    effort: ReasoningEffort | None = Field(
        default=None,
        description="How long the model reasons: the variable `reasoning_effort` of its chat"
        " template. A template that does not know it ignores it.",
    )
    summary: Ignored = None
    generate_summary: Ignored = None


class ResponsesRequest(Strict):
    """Body of POST /v1/responses. The server stores nothing."""

    model: str
    input: (
        str
        | Annotated[
            list[InputMessage | FunctionCallItem | FunctionOutput | ReasoningItem],
            Field(min_length=1),
        ]
    )
    instructions: str | None = None
    max_output_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    stream: bool | None = None
    text: TextSettings | None = None
    tools: Annotated[list[ResponseTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedResponseTool | None = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["auto", "disabled"] | None = Field(
        default=None,
        description="`auto`: drop the oldest turns if the input is longer than the context."
        " `disabled` (default): refuse it.",
    )
    reasoning: ReasoningSettings | None = None
    seed: Seed | None = Field(
        default=None, description="Seed of the sampling. Not part of OpenAI's API."
    )
    tandem: TandemOptions = TandemOptions()
    store: bool | None = Field(
        default=None,
        description="`false`: drafter and cloud do not remember the text, and do not draft it from"
        " earlier ones, like `tandem.no_memory`. The prefix cache keeps the prompt as it keeps"
        " any.",
    )
    metadata: Ignored = None
    user: Ignored = None
    include: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    previous_response_id: None = Field(
        default=None, description="Not supported: responses are not stored. Must be null."
    )


class OutputText(Strict):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class OutputMessage(Strict):
    type: Literal["message"]
    id: str
    role: Literal["assistant"]
    status: Literal["in_progress", "completed", "incomplete"]
    content: list[OutputText]


class IncompleteReason(Strict):
    reason: Literal["max_output_tokens"]


class InputDetails(Strict):
    cached_tokens: int


class OutputDetails(Strict):
    reasoning_tokens: int


class ResponseUsage(Strict):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseObject(Strict):
    """Response object. `tandem` is the same as in the choice of a chat completion."""

    id: str
    object: Literal["response"]
    created_at: int
    model: str
    status: Literal["in_progress", "completed", "incomplete"]
    error: None
    incomplete_details: IncompleteReason | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    output: list[OutputMessage | FunctionCallItem | ReasoningItem]
    parallel_tool_calls: bool
    previous_response_id: None
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[Any]
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None
    tandem: dict[str, Any] | None


class ResponseEvent(Strict):
    """Event of a streamed response: about the response, an output item, or a content part."""

    type: str
    sequence_number: int
    response: ResponseObject | None = None
    output_index: int | None = None
    item: OutputMessage | FunctionCallItem | ReasoningItem | None = None
    item_id: str | None = None
    content_index: int | None = None
    part: OutputText | ReasoningText | None = None
    delta: str | None = None
    text: str | None = None
    logprobs: list[Any] | None = None
    name: str | None = None
    arguments: str | None = None


def as_chat(asked: ResponsesRequest) -> ChatCompletionRequest:
    """Return the chat that asks for the same. Raises ApiError for what a chat cannot ask."""
    body: dict[str, Any] = {
        "model": asked.model,
        "messages": _merged(_messages(asked)),
        "max_tokens": asked.max_output_tokens,
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "seed": asked.seed,
        "truncate": "oldest" if asked.truncation == "auto" else None,
        "parallel_tool_calls": asked.parallel_tool_calls,
        "store": asked.store,
        "tools": [
            {"type": "function", "function": tool.model_dump(exclude={"type"})}
            for tool in asked.tools or ()
        ],
        "tool_choice": asked.tool_choice
        if isinstance(asked.tool_choice, str | None)
        else {"type": "function", "function": {"name": asked.tool_choice.name}},
        "response_format": _format(asked),
        "reasoning_effort": None if asked.reasoning is None else asked.reasoning.effort,
        "tandem": asked.tandem,
    }
    given = {name: value for name, value in body.items() if value is not None}
    try:
        return ChatCompletionRequest.model_validate(given)
    except ValidationError as error:
        raise validation_error(error) from None


def _format(asked: ResponsesRequest) -> dict[str, Any] | None:
    chosen = None if asked.text is None else asked.text.format
    if chosen is None:
        return None
    if isinstance(chosen, ResponseSchemaFormat):
        named = {"name": chosen.name, "schema": chosen.json_schema}
        return {"type": "json_schema", "json_schema": named}
    return {"type": chosen.type}


def _merged(messages: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge consecutive messages with tool calls: the calls of one answer are one message."""
    merged: list[dict[str, Any]] = []
    for message in messages:
        if "tool_calls" in message and merged and "tool_calls" in merged[-1]:
            merged[-1]["tool_calls"] += message["tool_calls"]
        else:
            merged.append(message)
    return merged


def _messages(asked: ResponsesRequest) -> Iterator[dict[str, Any]]:
    if asked.instructions:
        yield {"role": "system", "content": asked.instructions}
    if isinstance(asked.input, str):
        yield {"role": "user", "content": asked.input}
        return
    thoughts = ""
    for item in asked.input:
        thought = {"reasoning_content": thoughts} if thoughts else {}
        thoughts = ""
        match item:
            case ReasoningItem():
                thoughts = "".join(part.text for part in item.content or ())
            case InputMessage():
                yield {"role": item.role, "content": _text(item.content), **thought}
            case FunctionCallItem():
                yield {"role": "assistant", "tool_calls": [_call(item)], **thought}
            case FunctionOutput():
                yield {"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)}


def _text(parts: str | list[InputText]) -> str:
    return parts if isinstance(parts, str) else "".join(part.text for part in parts)


def _call(item: FunctionCallItem) -> dict[str, Any]:
    function = {"name": item.name, "arguments": item.arguments}
    return {"id": item.call_id, "type": "function", "function": function}


class ResponseWriter:
    """Writes the one answer to `asked`."""

    stream_form: StreamForm = OPENAI_STREAM

    def __init__(
        self, asked: ResponsesRequest, params: GenerationParams, calls: CallFormat | None
    ) -> None:
        """Create the writer. `params`: what the answer is generated with. `calls`: how the model
        writes tool calls; None if it is offered no tools."""
        self._asked = asked
        self._params = params
        self._id = uuid.uuid4().hex
        self._created = int(time.time())
        self._reader = ToolCallReader(calls) if calls is not None else None
        self._reasoning: ReasoningReader | None = None
        self._items: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        self._number = 0

    def whole(self, deltas: Sequence[ChoiceDelta]) -> dict[str, Any]:
        """Return the whole answer, from its last piece."""
        (last,) = deltas
        for _ in self._pieces(last.answer.text, last):
            pass
        return self._response(last)

    def events(self, delta: ChoiceDelta) -> Iterator[dict[str, Any]]:
        """Yield what a piece of the answer adds to a stream."""
        if not self._number:
            yield self._event("response.created", response=self._response(None))
            yield self._event("response.in_progress", response=self._response(None))
        yield from self._pieces(delta.text, delta)
        if delta.ended:
            response = self._response(delta)
            yield self._event(f"response.{response['status']}", response=response)

    def closing(self) -> Iterator[dict[str, Any]]:
        """Yield nothing: no event follows the last one."""
        return iter(())

    def _pieces(self, text: str, delta: ChoiceDelta) -> Iterator[dict[str, Any]]:
        if self._reasoning is None:
            self._reasoning = ReasoningReader(delta.answer, ReasoningOptions())
        for part in self._reasoning.push(text, delta.ended):
            if part.thinks:
                if self._open is None or self._open["type"] != "reasoning":
                    yield from self._begin(self._thought())
                yield from self._add("reasoning_text", part.text)
            else:
                yield from self._answer(self._calls_in(part.text))
        if delta.ended:
            yield from self._answer(self._reader.finish() if self._reader is not None else [])
            if not self._items:
                yield from self._begin(self._message())
            yield from self._end("incomplete" if _was_cut(delta) else "completed")

    def _calls_in(self, text: str) -> Sequence[str | CallPiece]:
        return [text] if self._reader is None else self._reader.push(text)

    def _answer(self, pieces: Sequence[str | CallPiece]) -> Iterator[dict[str, Any]]:
        for piece in pieces:
            if isinstance(piece, CallPiece) and piece.name is not None:
                yield from self._begin(self._call(piece.name))
            elif isinstance(piece, CallPiece):
                yield from self._add("function_call_arguments", piece.arguments)
            else:
                if self._open is None or self._open["type"] != "message":
                    yield from self._begin(self._message())
                yield from self._add("output_text", piece)

    def _begin(self, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from self._end("completed")
        self._items.append(item)
        self._open = item
        yield self._event(
            "response.output_item.added",
            item={**item, "content": []} if "content" in item else dict(item),
            **self._place(),
        )
        if "content" in item:
            part = dict(item["content"][0])
            yield self._event("response.content_part.added", part=part, **self._place_of_text())

    def _add(self, kind: str, text: str) -> Iterator[dict[str, Any]]:
        assert self._open is not None, "an item was begun"
        if kind in ("output_text", "reasoning_text"):
            self._open["content"][0]["text"] += text
            logprobs: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
            place = self._place_of_text() | logprobs
        else:
            self._open["arguments"] += text
            place = {"item_id": self._open["id"], **self._place()}
        yield self._event(f"response.{kind}.delta", delta=text, **place)

    def _end(self, status: str) -> Iterator[dict[str, Any]]:
        if (item := self._open) is None:
            return
        item["status"] = status
        if item["type"] == "message":
            part = dict(item["content"][0])
            place = self._place_of_text()
            yield self._event("response.output_text.done", text=part["text"], logprobs=[], **place)
            yield self._event("response.content_part.done", part=part, **place)
        elif item["type"] == "reasoning":
            part = dict(item["content"][0])
            place = self._place_of_text()
            yield self._event("response.reasoning_text.done", text=part["text"], **place)
            yield self._event("response.content_part.done", part=part, **place)
        else:
            yield self._event(
                "response.function_call_arguments.done",
                **{"item_id": item["id"], "name": item["name"], "arguments": item["arguments"]},
                **self._place(),
            )
        yield self._event("response.output_item.done", item=dict(item), **self._place())
        self._open = None

    def _place(self) -> dict[str, Any]:
        return {"output_index": len(self._items) - 1}

    def _place_of_text(self) -> dict[str, Any]:
        assert self._open is not None, "an item with text is open"
        return {"item_id": self._open["id"], "content_index": 0, **self._place()}

    def _message(self) -> dict[str, Any]:
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        number = f"msg_{self._id}_{len(self._items)}"
        message = {"type": "message", "id": number, "role": "assistant", "status": "in_progress"}
        return {**message, "content": [part]}

    def _thought(self) -> dict[str, Any]:
        number = f"rs_{self._id}_{len(self._items)}"
        part = {"type": "reasoning_text", "text": ""}
        reasoning = {"type": "reasoning", "id": number, "summary": [], "status": "in_progress"}
        return {**reasoning, "content": [part]}

    def _call(self, name: str) -> dict[str, Any]:
        place = len(self._items)
        numbers = {"id": f"fc_{self._id}_{place}", "call_id": f"call_{self._id[:16]}_{place}"}
        call = {"type": "function_call", **numbers, "name": name, "arguments": ""}
        return {**call, "status": "in_progress"}

    def _event(self, kind: str, **content: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **content}

    def _response(self, ended: ChoiceDelta | None) -> dict[str, Any]:
        asked = self._asked
        cut = ended is not None and _was_cut(ended)
        dumped = asked.model_dump(mode="json", by_alias=True, exclude_none=True)
        status = "in_progress" if ended is None else "incomplete" if cut else "completed"
        return {
            "id": f"resp_{self._id}",
            "object": "response",
            "created_at": self._created,
            "model": asked.model,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": {},
            "output": [dict(item) for item in self._items] if ended is not None else [],
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": None,
            "temperature": self._params.sampling.temperature,
            "text": dumped.get("text") or {"format": {"type": "text"}},
            "tool_choice": dumped.get("tool_choice", "auto"),
            "tools": dumped.get("tools", []),
            "top_p": self._params.sampling.top_p,
            "truncation": asked.truncation or "disabled",
            "usage": None if ended is None else _usage(ended),
            "tandem": None if ended is None else self._figures(ended),
        }

    def _figures(self, ended: ChoiceDelta) -> dict[str, Any]:
        answer = ended.answer
        return {"seed": self._params.seed, "session": answer.session, **answer_figures(answer)}


def _was_cut(ended: ChoiceDelta) -> bool:
    assert ended.answer.summary is not None
    return ended.answer.summary.finish_reason == "length"


def _usage(ended: ChoiceDelta) -> dict[str, Any]:
    summary = ended.answer.summary
    assert summary is not None
    return {
        "input_tokens": summary.prompt_tokens,
        "input_tokens_details": {"cached_tokens": summary.cached_tokens},
        "output_tokens": summary.tokens,
        "output_tokens_details": {"reasoning_tokens": summary.reasoning_tokens},
        "total_tokens": summary.prompt_tokens + summary.tokens,
    }
