"""POST /v1/responses, the part of OpenAI's API that needs no memory of earlier answers: its body is
turned into a chat's, and the chat's answer into items and events. Invariant: the items that a
stream's events make up are those of the whole answer."""

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag

from tandem.gateway.base_models import (
    Absent,
    Answer,
    Body,
    Lenient,
    Zero,
    absent,
    kind_of,
    one_of,
    refused_unless,
)
from tandem.gateway.choice_reader import CallPiece, ChoiceReader, ReasoningOptions, Thought
from tandem.gateway.constraints import JsonObjectFormat, JsonSchema, TextFormat
from tandem.gateway.errors import RESPONSES_PATH, ApiError, invalid, unsupported
from tandem.gateway.event_stream import StreamForm
from tandem.gateway.messages import Content
from tandem.gateway.openai_answer import ChoiceExtension, extension_of
from tandem.gateway.parallel_choices import ChoiceDelta
from tandem.gateway.schema import (
    ChatCompletionRequest,
    Count,
    ReasoningEffort,
    Seed,
    TandemOptions,
    Verbosity,
    chat_from,
    check_only_of_chats,
)
from tandem.gateway.tool_grammar import MAX_TOOLS, STRICT, ToolName
from tandem.generation.request import GenerationRequest
from tandem.text.families import CallFormat

_LONGEST_NAME = 64
"""Of a function with its namespace, as of any function."""

Status = Literal["in_progress", "completed", "incomplete"]


class InputMessage(Lenient):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content


class InputCall(Lenient):
    type: Literal["function_call"]
    call_id: str
    name: ToolName
    namespace: ToolName | None = None
    arguments: str = Field(description="Arguments as JSON.")


class InputCallOutput(Lenient):
    type: Literal["function_call_output"]
    call_id: str
    output: Content


class InputThought(Lenient):
    type: Literal["reasoning_text", "summary_text", "output_text", "text"]
    text: str


class InputReasoning(Lenient):
    """What was thought before the answer that follows, for chat templates that keep it."""

    type: Literal["reasoning"]
    content: Annotated[list[InputThought], Field(fail_fast=True)] | None = None


InputItem = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[InputCall, Tag("function_call")]
    | Annotated[InputCallOutput, Tag("function_call_output")]
    | Annotated[InputReasoning, Tag("reasoning")],
    Discriminator(lambda item: str(kind_of(item) or "message")),
]


class ResponseSchemaFormat(Lenient):
    """Answers always match the schema, also where it is not `strict`."""

    type: Literal["json_schema"]
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    json_schema: JsonSchema = Field(alias="schema")


class TextSettings(Lenient):
    format: Annotated[
        TextFormat | JsonObjectFormat | ResponseSchemaFormat | None, Field(discriminator="type")
    ] = None
    verbosity: Verbosity | None = Field(
        default=None,
        description="How long the answer is: the variable `verbosity` of the chat template.",
    )


class ResponseFunction(Lenient):
    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(
        default=None, description="JSON schema of the arguments."
    )
    strict: bool | None = Field(default=None, description=STRICT)


class HostedTool(Lenient):
    """A tool of another kind, which this server cannot offer to the model."""

    type: Annotated[str, Field(json_schema_extra={"not": {"enum": ["function", "namespace"]}})]


class NamespaceTool(Lenient):
    """Functions of one source, as Codex sends those of an MCP server. The model knows each by the
    names of both, joined by `__`; calls have `namespace` and `name`."""

    type: Literal["namespace"]
    name: ToolName
    description: str | None = Field(default=None, description="Ignored.")
    tools: Annotated[
        list[
            Annotated[
                Annotated[ResponseFunction, Tag("function")] | Annotated[HostedTool, Tag("hosted")],
                Discriminator(lambda tool: "function" if kind_of(tool) == "function" else "hosted"),
            ]
        ],
        Field(max_length=MAX_TOOLS, fail_fast=True),
    ]


ResponseTool = Annotated[
    Annotated[ResponseFunction, Tag("function")]
    | Annotated[NamespaceTool, Tag("namespace")]
    | Annotated[HostedTool, Tag("hosted")],
    Discriminator(
        lambda tool: kind if (kind := kind_of(tool)) in ("function", "namespace") else "hosted"
    ),
]


class NamedResponseTool(Lenient):
    type: Literal["function"]
    name: ToolName


class ReasoningSettings(Lenient):
    effort: ReasoningEffort | None = Field(
        default=None,
        description="How long the model reasons: the variable `reasoning_effort` of its chat"
        " template. A template that does not know it ignores it.",
    )
    summary: Literal["auto", "concise", "detailed"] | None = Field(
        default=None, description="The thinking is returned as it is, never as a summary."
    )
    mode: Annotated[None, refused_unless("send effort", "standard")] = None
    context: Annotated[
        None, one_of("the chat template says which thinking is kept; send auto", "auto")
    ] = None


def _without_logprobs(include: list[str]) -> list[str]:
    if "message.output_text.logprobs" in include:
        raise ValueError("'message.output_text.logprobs' is not supported; ask for a chat")
    return include


class ResponsesRequest(Body):
    """Body of POST /v1/responses."""

    model_config = ConfigDict(extra="allow")

    model: str
    input: str | Annotated[list[InputItem], Field(min_length=1, fail_fast=True)]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    stream: bool | None = None
    text: TextSettings | None = None
    tools: Annotated[list[ResponseTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = (
        Field(
            default=None,
            description="Functions, also in namespaces. Tools of other kinds are not offered to the"
            " model, so they are refused where `tool_choice` is not `auto` and there is no"
            " function.",
        )
    )
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
    background: bool | None = Field(
        default=None,
        description="Return at once and go on without the caller: GET /v1/responses/{id} returns"
        " the response, or its events, for two minutes after somebody last read them. Cannot be"
        " combined with `store` set to false.",
    )
    metadata: dict[str, str] | None = Field(default=None, description="Returned unchanged.")
    safety_identifier: str | None = Field(default=None, description="Returned unchanged.")
    prompt_cache_key: str | None = Field(default=None, description="Returned unchanged.")
    include: Annotated[list[str], AfterValidator(_without_logprobs)] | None = Field(
        default=None, description="Ignored but for log-probabilities, which only chats have."
    )
    top_logprobs: Annotated[None, refused_unless("ask /v1/chat/completions", 0)] = None
    moderation: Annotated[None, refused_unless("this server does not judge texts")] = None
    previous_response_id: Annotated[
        None, refused_unless("responses are not stored; send the whole input")
    ] = None
    conversation: Annotated[
        None, refused_unless("conversations are not stored; send the whole input")
    ] = None
    prompt: Annotated[None, refused_unless("prompts are not stored; send the input")] = None
    context_management: Annotated[
        None, refused_unless("nothing is summarised here; send truncation")
    ] = None


class OutputText(Answer):
    type: Literal["output_text"] = "output_text"
    text: str = ""
    annotations: list[Any] = Field(default_factory=list)
    logprobs: list[Any] = Field(default_factory=list)


class OutputMessage(Answer):
    type: Literal["message"] = "message"
    id: str
    role: Literal["assistant"] = "assistant"
    status: Status = "in_progress"
    content: list[OutputText]


class OutputCall(Answer):
    type: Literal["function_call"] = "function_call"
    id: str
    call_id: str
    name: str
    namespace: str | None = absent("Of the function, where it was sent in one.")
    arguments: str = Field(default="", description="Arguments as JSON.")
    status: Status = "in_progress"


class ReasoningText(Answer):
    type: Literal["reasoning_text"] = "reasoning_text"
    text: str = ""


class OutputReasoning(Answer):
    """The model's thinking."""

    type: Literal["reasoning"] = "reasoning"
    id: str
    summary: list[Any] = Field(default_factory=list, description="Always empty.")
    status: Status = "in_progress"
    content: list[ReasoningText]


OutputItem = OutputMessage | OutputCall | OutputReasoning


class IncompleteReason(Answer):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseFailure(Answer):
    code: str
    message: str


class InputDetails(Answer):
    cached_tokens: int


class OutputDetails(Answer):
    reasoning_tokens: int


class ResponseUsage(Answer):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class AnsweredReasoning(Answer):
    effort: str | None = None
    summary: str | None = None


class ResponseObject(Answer):
    """Response object. `tandem` is the same as in the choice of a chat completion."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    model: str
    status: Status | Literal["queued", "failed", "cancelled"]
    background: bool
    error: ResponseFailure | None = None
    incomplete_details: IncompleteReason | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None = None
    metadata: dict[str, str]
    output: list[OutputItem]
    parallel_tool_calls: bool
    presence_penalty: float
    frequency_penalty: float
    previous_response_id: None = None
    prompt_cache_key: str | None
    reasoning: AnsweredReasoning
    safety_identifier: str | None
    service_tier: Literal["default"] = "default"
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: Zero = 0
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None = None
    tandem: ChoiceExtension | None = None


class ResponseEvent(Answer):
    """Event of a streamed response: about the response, an output item, or a content part."""

    type: str
    sequence_number: int
    response: ResponseObject | None = Absent
    output_index: int | None = Absent
    item: OutputItem | None = Absent
    item_id: str | None = Absent
    content_index: int | None = Absent
    part: OutputText | ReasoningText | None = Absent
    delta: str | None = Absent
    text: str | None = Absent
    logprobs: list[Any] | None = Absent
    name: str | None = Absent
    arguments: str | None = Absent


class Deleted(Answer):
    id: str
    object: Literal["response", "stream"]
    deleted: Literal[True] = True


def as_chat(asked: ResponsesRequest) -> ChatCompletionRequest:
    """Return the chat that asks for the same. Raises ApiError for what a chat cannot ask."""
    check_only_of_chats(asked)
    functions = _functions(asked.tools or ())
    choice = asked.tool_choice
    for place, tool in enumerate(asked.tools or ()):
        if isinstance(tool, HostedTool) and not functions and choice not in (None, "auto", "none"):
            raise unsupported(f"tools.{place}.type", f"send functions instead of '{tool.type}'")
    named = (
        {"type": "function", "function": {"name": choice.name}}
        if isinstance(choice, NamedResponseTool)
        else choice
    )
    return chat_from(
        model=asked.model,
        messages=_merged(_messages(asked)),
        max_tokens=asked.max_output_tokens,
        temperature=asked.temperature,
        top_p=asked.top_p,
        seed=asked.seed,
        truncate="oldest" if asked.truncation == "auto" else None,
        parallel_tool_calls=asked.parallel_tool_calls,
        store=asked.store,
        tools=[
            {"type": "function", "function": tool.model_dump(exclude={"type"}) | {"name": name}}
            for name, (_, tool) in functions.items()
        ],
        tool_choice=named,
        response_format=_format(asked),
        reasoning_effort=None if asked.reasoning is None else asked.reasoning.effort,
        verbosity=None if asked.text is None else asked.text.verbosity,
        tandem=asked.tandem,
    )


def _functions(
    tools: Sequence[ResponseFunction | NamespaceTool | HostedTool],
) -> dict[str, tuple[str | None, ResponseFunction]]:
    """Return each function and its namespace by the name that the model knows. Raises ApiError for
    two of one name."""
    found: dict[str, tuple[str | None, ResponseFunction]] = {}
    for tool in tools:
        namespace = tool.name if isinstance(tool, NamespaceTool) else None
        for each in tool.tools if isinstance(tool, NamespaceTool) else (tool,):
            if isinstance(each, ResponseFunction):
                name = _flat_name(namespace, each.name)
                if len(name) > _LONGEST_NAME:
                    words = f"tools: {name} is longer than {_LONGEST_NAME} characters"
                    raise invalid("tools", words)
                if name in found:
                    raise invalid("tools", f"tools: two tools have the same name, {name}")
                found[name] = (namespace, each)
    return found


def _flat_name(namespace: str | None, name: str) -> str:
    if namespace is None:
        return name
    return namespace + name if namespace.endswith("__") else f"{namespace}__{name}"


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
            case InputReasoning():
                thoughts = "".join(part.text for part in item.content or ())
            case InputMessage():
                yield {"role": item.role, "content": item.content, **thought}
            case InputCall():
                name = _flat_name(item.namespace, item.name)
                function = {"name": name, "arguments": item.arguments}
                call = {"id": item.call_id, "type": "function", "function": function}
                yield {"role": "assistant", "tool_calls": [call], **thought}
            case InputCallOutput():
                yield {"role": "tool", "tool_call_id": item.call_id, "content": item.output}


class ResponseWriter:
    """Writes the one answer to `asked`."""

    stream_form = StreamForm(path=RESPONSES_PATH, last=b"data: [DONE]\n\n")

    def __init__(
        self, asked: ResponsesRequest, request: GenerationRequest, calls: CallFormat | None
    ) -> None:
        """Create the writer. `request`: what the answer is generated by. `calls`: how the model
        writes tool calls; None if it is offered no tools."""
        self._number = uuid.uuid4().hex
        self.id = f"resp_{self._number}"
        self._asked = asked
        self._params = request.params
        self._created = int(time.time())
        self._reader = ChoiceReader(ReasoningOptions(), calls)
        functions = _functions(asked.tools or ())
        self._names = {name: (space, tool.name) for name, (space, tool) in functions.items()}
        self._items: list[OutputItem] = []
        self._is_open = False
        self._told = 0
        self._last: ChoiceDelta | None = None

    def whole(self, deltas: Sequence[ChoiceDelta]) -> ResponseObject:
        """Return the whole answer, from its last piece."""
        (last,) = deltas
        for _ in self._pieces(last.answer.text, last):
            pass
        return self.response()

    def events(self, delta: ChoiceDelta) -> Iterator[ResponseEvent]:
        """Yield what a piece of the answer adds to a stream."""
        if not self._told:
            yield self._event("response.created", response=self.response())
            yield self._event("response.in_progress", response=self.response())
        yield from self._pieces(delta.text, delta)
        if delta.ended:
            response = self.response()
            yield self._event(f"response.{response.status}", response=response)

    def response(self, failure: ApiError | None = None, cancelled: bool = False) -> ResponseObject:
        """Return the response as it is now. `failure`: what ended it early; `cancelled`: that was
        its caller."""
        asked = self._asked
        dumped = asked.model_dump(mode="json", by_alias=True, exclude_none=True)
        ended = self._last
        is_cut = cancelled or failure is not None
        status: Status | Literal["queued", "failed", "cancelled"]
        if cancelled:
            status, failure = "cancelled", None
        elif failure is not None:
            status = "failed"
        elif ended is not None:
            status = self._end_status(ended)
        else:
            status = "queued" if asked.background and not self._told else "in_progress"
        reasoning = dumped.get("reasoning", {})
        return ResponseObject(
            id=self.id,
            created_at=self._created,
            completed_at=int(time.time()) if status == "completed" else None,
            model=asked.model,
            status=status,
            background=asked.background is True,
            error=None
            if failure is None
            else ResponseFailure(code=failure.code or "server_error", message=failure.message),
            incomplete_details=IncompleteReason() if status == "incomplete" else None,
            instructions=asked.instructions,
            max_output_tokens=asked.max_output_tokens,
            metadata=asked.metadata or {},
            output=[_broken_off(item) for item in self._items] if is_cut else list(self._items),
            parallel_tool_calls=asked.parallel_tool_calls is not False,
            presence_penalty=self._params.processors.presence_penalty,
            frequency_penalty=self._params.processors.frequency_penalty,
            prompt_cache_key=asked.prompt_cache_key,
            reasoning=AnsweredReasoning(
                effort=reasoning.get("effort"), summary=reasoning.get("summary")
            ),
            safety_identifier=asked.safety_identifier,
            store=asked.store is not False,
            temperature=self._params.sampling.temperature,
            text={"format": {"type": "text"}} | dumped.get("text", {}),
            tool_choice=dumped.get("tool_choice", "auto"),
            tools=[
                _without_hosted(tool)
                for tool in asked.tools or ()
                if not isinstance(tool, HostedTool)
            ],
            top_p=self._params.sampling.top_p,
            truncation=asked.truncation or "disabled",
            usage=None if ended is None else _usage(ended),
            tandem=None
            if ended is None
            else ChoiceExtension(**extension_of(ended.answer, self._params.seed)),
        )

    def _pieces(self, text: str, delta: ChoiceDelta) -> Iterator[ResponseEvent]:
        for piece in self._reader.push(delta.answer, text, delta.ended):
            match piece:
                case Thought():
                    yield from self._begin(OutputReasoning)
                    yield from self._add("reasoning_text", piece.text)
                case CallPiece(name=str() as name):
                    yield from self._begin(OutputCall, name=name)
                case CallPiece():
                    yield from self._add("function_call_arguments", piece.arguments)
                case str():
                    yield from self._begin(OutputMessage)
                    yield from self._add("output_text", piece)
        if delta.ended:
            if not self._items:
                yield from self._begin(OutputMessage)
            self._last = delta
            yield from self._end(self._end_status(delta))

    def _begin(self, kind: type[OutputItem], name: str = "") -> Iterator[ResponseEvent]:
        """Begin an item, unless one of this kind is open that goes on."""
        if self._is_open and isinstance(self._items[-1], kind) and not name:
            return
        yield from self._end("completed")
        place = len(self._items)
        item: OutputItem
        if kind is OutputMessage:
            item = OutputMessage(id=f"msg_{self._number}_{place}", content=[OutputText()])
        elif kind is OutputReasoning:
            item = OutputReasoning(id=f"rs_{self._number}_{place}", content=[ReasoningText()])
        else:
            call = f"call_{self._number[:16]}_{place}"
            namespace, called = self._names.get(name, (None, name))
            item = OutputCall(
                id=f"fc_{self._number}_{place}", call_id=call, name=called, namespace=namespace
            )
        self._items.append(item)
        self._is_open = True
        empty = item if isinstance(item, OutputCall) else item.model_copy(update={"content": []})
        yield self._event("response.output_item.added", item=empty, output_index=place)
        if not isinstance(item, OutputCall):
            part = item.content[0]
            yield self._event("response.content_part.added", part=part, **self._place())

    def _add(self, kind: str, text: str) -> Iterator[ResponseEvent]:
        item = self._items[-1]
        if isinstance(item, OutputCall):
            self._items[-1] = item.model_copy(update={"arguments": item.arguments + text})
        else:
            part = item.content[0]
            joined = part.model_copy(update={"text": part.text + text})
            self._items[-1] = item.model_copy(update={"content": [joined]})
        logprobs: Any = [] if kind == "output_text" else None
        yield self._event(f"response.{kind}.delta", delta=text, logprobs=logprobs, **self._place())

    def _end(self, status: Status) -> Iterator[ResponseEvent]:
        if not self._is_open:
            return
        self._is_open = False
        item = self._items[-1].model_copy(update={"status": status})
        self._items[-1] = item
        place = self._place()
        if isinstance(item, OutputCall):
            yield self._event(
                "response.function_call_arguments.done",
                name=item.name,
                arguments=item.arguments,
                **place,
            )
        else:
            part = item.content[0]
            says = isinstance(item, OutputMessage)
            kind = "output_text" if says else "reasoning_text"
            logprobs: Any = [] if says else None
            yield self._event(f"response.{kind}.done", text=part.text, logprobs=logprobs, **place)
            yield self._event("response.content_part.done", part=part, **place)
        yield self._event(
            "response.output_item.done", item=item, output_index=place["output_index"]
        )

    def _place(self) -> dict[str, Any]:
        item = self._items[-1]
        content = {} if isinstance(item, OutputCall) else {"content_index": 0}
        return {"item_id": item.id, "output_index": len(self._items) - 1, **content}

    def _event(self, kind: str, **content: Any) -> ResponseEvent:
        self._told += 1
        return ResponseEvent(type=kind, sequence_number=self._told - 1, **content)

    def _end_status(self, ended: ChoiceDelta) -> Status:
        assert ended.answer.summary is not None
        return "incomplete" if ended.answer.summary.finish_reason == "length" else "completed"


def _without_hosted(tool: ResponseFunction | NamespaceTool) -> dict[str, Any]:
    """Return a tool as the model was offered it."""
    told = tool.model_dump(mode="json")
    if isinstance(tool, NamespaceTool):
        told["tools"] = [each for each in told["tools"] if each["type"] == "function"]
    return told


def _broken_off(item: OutputItem) -> OutputItem:
    """Return an item of an answer that goes on no more."""
    is_open = item.status == "in_progress"
    return item.model_copy(update={"status": "incomplete"}) if is_open else item


def _usage(ended: ChoiceDelta) -> ResponseUsage:
    summary = ended.answer.summary
    assert summary is not None
    return ResponseUsage(
        input_tokens=summary.prompt_tokens,
        input_tokens_details=InputDetails(cached_tokens=summary.cached_tokens),
        output_tokens=summary.tokens,
        output_tokens_details=OutputDetails(reasoning_tokens=summary.reasoning_tokens),
        total_tokens=summary.prompt_tokens + summary.tokens,
    )
