"""POST /v1/messages, Anthropic's API, as far as it says what a chat says: its body is turned into
OpenAI's chat, and the chat's answer into blocks and events. Invariant: the blocks that a stream's
events make up are those of the whole answer."""

import json
import uuid
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag

from tandem.gateway.base_models import (
    UINT32,
    Absent,
    Answer,
    Body,
    Lenient,
    Zero,
    kind_of,
    refused_unless,
)
from tandem.gateway.choice_reader import (
    CallPiece,
    ChoiceReader,
    Parts,
    ReasoningOptions,
    Thought,
)
from tandem.gateway.constraints import JsonSchema
from tandem.gateway.errors import MESSAGES_PATH, unsupported
from tandem.gateway.event_stream import StreamForm, server_sent
from tandem.gateway.messages import ImagePart, TextPart
from tandem.gateway.parallel_choices import ChoiceDelta
from tandem.gateway.schema import (
    ChatCompletionRequest,
    Count,
    ReasoningEffort,
    Seed,
    Stops,
    TandemOptions,
    chat_from,
    check_only_of_chats,
)
from tandem.gateway.tool_grammar import MAX_TOOLS, STRICT, ToolName
from tandem.text.families import CallFormat

StopReason = Literal["end_turn", "max_tokens", "tool_use", "stop_sequence"]


class ImageSource(Lenient):
    type: Literal["base64"]
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: str


class ImageBlock(Lenient):
    type: Literal["image"]
    source: ImageSource
    transformations: Annotated[None, refused_unless("send the image as it is to be seen")] = None


class TextSource(Lenient):
    type: Literal["text"]
    data: str


class Citations(Lenient):
    enabled: Annotated[None, refused_unless("answers do not say where texts are from")] = None


class DocumentBlock(Lenient):
    """A document that is a text. Its title and context stand before it."""

    type: Literal["document"]
    source: TextSource
    title: str | None = None
    context: str | None = None
    citations: Citations | None = None


class ToolUseBlock(Lenient):
    """A tool call of an earlier answer."""

    type: Literal["tool_use"]
    id: str
    name: ToolName
    input: dict[str, Any]


ResultBlock = Annotated[TextPart | ImageBlock | DocumentBlock, Field(discriminator="type")]


class ToolResultBlock(Lenient):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Annotated[list[ResultBlock], Field(fail_fast=True)] | None = None
    is_error: bool | None = Field(
        default=None, description="True: `Error: ` stands before the result in the prompt."
    )


class ThinkingBlock(Lenient):
    """What a model thought before an earlier answer, for chat templates that keep it."""

    type: Literal["thinking"]
    thinking: str


class UnreadBlock(Lenient):
    """What only the server that wrote it can read."""

    type: Literal["redacted_thinking"]


InputBlock = Annotated[
    TextPart
    | ImageBlock
    | DocumentBlock
    | ToolUseBlock
    | ToolResultBlock
    | ThinkingBlock
    | UnreadBlock,
    Field(discriminator="type"),
]


class InputTurn(Lenient):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Annotated[list[InputBlock], Field(fail_fast=True)]


class MessageFunction(Lenient):
    type: Literal["custom"] | None = None
    name: ToolName
    input_schema: dict[str, Any] = Field(description="JSON schema of the input.")
    input_examples: list[dict[str, Any]] | None = Field(
        default=None, description="The keyword `examples` of the schema."
    )
    description: str | None = None
    strict: bool | None = Field(default=None, description=STRICT)
    allowed_callers: list[str] | None = Field(
        default=None, description="Without `direct`, the model is not offered the function."
    )


class ServerTool(Lenient):
    """A tool of a kind whose schema only Anthropic's models know."""

    type: Annotated[str, Field(json_schema_extra={"not": {"const": "custom"}})]


InputTool = Annotated[
    Annotated[MessageFunction, Tag("function")] | Annotated[ServerTool, Tag("server")],
    Discriminator(lambda tool: "function" if kind_of(tool) in (None, "custom") else "server"),
]


class MessageToolChoice(Lenient):
    type: Literal["auto", "any", "tool", "none"]
    name: ToolName | None = Field(default=None, description="Only with the type `tool`.")
    disable_parallel_tool_use: bool | None = None


class Thinking(Lenient):
    """Whether the model thinks before it answers, and whether its thinking is returned: as it is,
    also where a summary is wanted."""

    type: Literal["disabled", "enabled", "adaptive"] = Field(
        description="`adaptive`: the chat template decides."
    )
    budget_tokens: Count | None = Field(
        default=None, description="Maximum tokens of thinking, with the type `enabled`."
    )
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(Lenient):
    type: Literal["json_schema"]
    json_schema: JsonSchema = Field(alias="schema")


class OutputConfig(Lenient):
    effort: ReasoningEffort | None = Field(
        default=None,
        description="How long the model thinks: the variable `reasoning_effort` of its chat"
        " template. A template that does not know it ignores it.",
    )
    format: OutputFormat | None = None
    task_budget: Annotated[None, refused_unless("send max_tokens")] = None


class MessagesPrompt(Body):
    """What becomes the prompt."""

    model_config = ConfigDict(extra="allow")

    model: str
    messages: Annotated[list[InputTurn], Field(min_length=1, fail_fast=True)]
    system: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None
    tools: Annotated[list[InputTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = Field(
        default=None,
        description="Functions. Anthropic's tools are not offered to the model, so they are refused"
        " where `tool_choice` is not `auto` and there is no function.",
    )
    tool_choice: MessageToolChoice | None = None
    thinking: Thinking | None = Field(
        default=None,
        description="Default: the chat template decides whether the model thinks, and the thinking"
        " is not returned.",
    )
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = Field(
        default=None, description="Older name of `output_config.format`."
    )
    mcp_servers: Annotated[None, refused_unless("send the servers' tools in tools")] = None
    container: Annotated[None, refused_unless("no code is run here")] = None
    thread: Annotated[None, refused_unless("conversations are not stored; send all of it")] = None


class CountTokensRequest(MessagesPrompt):
    """Body of POST /v1/messages/count_tokens. The last message must be the user's."""


class TokenCount(Answer):
    """Tokens of the prompt that /v1/messages would make of the same body."""

    input_tokens: int


class MessagesRequest(MessagesPrompt):
    """Body of POST /v1/messages. The last message must be the user's. How fast Anthropic's servers
    answer, `speed`, is no misspelt `seed`."""

    other_names = frozenset({"speed"})

    max_tokens: Count
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=UINT32)] | None = None
    stop_sequences: Stops | None = None
    stream: bool | None = None
    seed: Seed | None = Field(
        default=None, description="Seed of the sampling. Not part of Anthropic's API."
    )
    tandem: TandemOptions = TandemOptions()


class AnswerText(Answer):
    type: Literal["text"] = "text"
    text: str
    citations: None = None


class AnswerThinking(Answer):
    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: Literal[""] = ""


class ToolCaller(Answer):
    type: Literal["direct"] = "direct"


class AnswerToolUse(Answer):
    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]
    caller: ToolCaller = ToolCaller()


AnswerBlock = AnswerText | AnswerThinking | AnswerToolUse


class CacheCreation(Answer):
    ephemeral_5m_input_tokens: Zero = 0
    ephemeral_1h_input_tokens: Zero = 0


class MessageUsage(Answer):
    input_tokens: int = Field(description="Prompt tokens that were not in the prefix cache.")
    cache_creation: CacheCreation = CacheCreation()
    cache_creation_input_tokens: Zero = 0
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: None = None
    server_tool_use: None = None
    service_tier: Literal["standard"] = "standard"
    inference_geo: None = None


class MessageObject(Answer):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerBlock]
    stop_reason: StopReason | None = None
    stop_sequence: str | None = Field(
        default=None, description="The stop sequence that ended the answer."
    )
    stop_details: None = None
    container: None = None
    usage: MessageUsage


class BlockDelta(Answer):
    """What is added to a block."""

    type: Literal["text_delta", "thinking_delta", "input_json_delta"]
    text: str | None = Absent
    thinking: str | None = Absent
    partial_json: str | None = Absent


class EndDelta(Answer):
    """What is added to the message at its end."""

    stop_reason: StopReason
    stop_sequence: str | None
    container: None = None


class MessageEvent(Answer):
    """Event of a streamed message."""

    type: Literal[
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "ping",
    ]
    message: MessageObject | None = Absent
    index: int | None = Absent
    content_block: AnswerBlock | None = Absent
    delta: BlockDelta | EndDelta | None = Absent
    usage: MessageUsage | None = Absent


def chat_of_messages(asked: MessagesRequest) -> ChatCompletionRequest:
    """Return the chat that asks for the same. Raises ApiError for what a chat cannot ask."""
    return _chat(
        asked,
        max_tokens=asked.max_tokens,
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=asked.top_k,
        stop=asked.stop_sequences,
        seed=asked.seed,
        tandem=asked.tandem,
    )


def chat_to_count(asked: CountTokensRequest) -> ChatCompletionRequest:
    """Return a chat that has the same prompt. Raises ApiError as `chat_of_messages`."""
    return _chat(asked, max_tokens=1)


def _chat(asked: MessagesPrompt, **more: Any) -> ChatCompletionRequest:
    check_only_of_chats(asked)
    if asked.messages[-1].role == "assistant":
        raise unsupported("messages", "the last message must be the user's")
    functions = [
        tool
        for tool in asked.tools or ()
        if isinstance(tool, MessageFunction) and "direct" in (tool.allowed_callers or ["direct"])
    ]
    choice = asked.tool_choice
    if asked.tools and not functions and choice and choice.type not in ("auto", "none"):
        raise unsupported("tools.0.type", "send functions")
    system = [{"role": "system", "content": asked.system}] if asked.system else []
    config = asked.output_config or OutputConfig()
    wanted = config.format or asked.output_format
    schema = None if wanted is None else {"name": "format", "schema": wanted.json_schema}
    return chat_from(
        model=asked.model,
        messages=[*system, *_messages(asked.messages)],
        tools=[_function(tool) for tool in functions] or None,
        tool_choice=None if choice is None or not functions else _tool_choice(choice),
        parallel_tool_calls=False if choice and choice.disable_parallel_tool_use else None,
        response_format=schema and {"type": "json_schema", "json_schema": schema},
        reasoning_effort=config.effort,
        **_thinking(asked.thinking),
        **more,
    )


def _thinking(thinking: Thinking | None) -> dict[str, Any]:
    """Return the parameters of the chat that say whether to think. Callers that did not ask for
    thinking expect no block of it."""
    if thinking is None or thinking.type == "adaptive":
        shown = thinking is not None and thinking.display != "omitted"
        return {"include_reasoning": shown}
    enabled = thinking.type == "enabled"
    return {
        "chat_template_kwargs": {"enable_thinking": enabled},
        "thinking_token_budget": thinking.budget_tokens if enabled else None,
        "include_reasoning": enabled and thinking.display != "omitted",
    }


def _messages(turns: Sequence[InputTurn]) -> Iterator[dict[str, Any]]:
    for turn in turns:
        if isinstance(turn.content, str):
            yield {"role": turn.role, "content": turn.content}
        else:
            yield from _turn(turn.role, turn.content)


def _turn(role: str, blocks: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yield a message for each tool result in a turn, then the rest of the turn as one message, to
    which the results' images belong."""
    parts: list[TextPart | ImagePart] = []
    calls: list[dict[str, Any]] = []
    thoughts = ""
    for block in blocks:
        match block:
            case ThinkingBlock():
                thoughts += block.thinking
            case ToolUseBlock():
                function = {"name": block.name, "arguments": json.dumps(block.input)}
                calls.append({"id": block.id, "type": "function", "function": function})
            case ToolResultBlock():
                result = list(map(_part, _blocks(block.content or ())))
                parts += [part for part in result if isinstance(part, ImagePart)]
                text = "".join(part.text for part in result if isinstance(part, TextPart))
                if block.is_error:
                    text = f"Error: {text}"
                yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": text}
            case TextPart() | DocumentBlock() | ImageBlock():
                parts.append(_part(block))
    message: dict[str, Any] = {"role": role, "content": parts}
    if thoughts:
        message["reasoning_content"] = thoughts
    if calls:
        yield {**message, "tool_calls": calls}
    elif parts or not blocks:
        yield message


def _blocks(content: str | Sequence[Any]) -> Sequence[Any]:
    return [TextPart(type="text", text=content)] if isinstance(content, str) else content


def _part(block: TextPart | DocumentBlock | ImageBlock) -> TextPart | ImagePart:
    """Return a block as a part of a chat's content."""
    match block:
        case DocumentBlock():
            said = filter(None, (block.title, block.context, block.source.data))
            return TextPart(type="text", text="\n".join(said))
        case ImageBlock():
            url = f"data:{block.source.media_type};base64,{block.source.data}"
            return ImagePart(type="image_url", image_url=url)
    return block


def _function(tool: MessageFunction) -> dict[str, Any]:
    examples = {"examples": tool.input_examples} if tool.input_examples else {}
    parameters = tool.input_schema | examples
    function = {"name": tool.name, "parameters": parameters, "strict": tool.strict}
    described = {} if tool.description is None else {"description": tool.description}
    return {"type": "function", "function": {**function, **described}}


def _tool_choice(choice: MessageToolChoice) -> str | dict[str, Any]:
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return "required" if choice.type == "any" else choice.type


class MessageWriter:
    """Writes the one answer to a request for `model`, as Anthropic's API does. `calls`: how the
    model writes tool calls; None if it is offered no tools."""

    stream_form = StreamForm(path=MESSAGES_PATH, keep_alive=server_sent({"type": "ping"}))

    def __init__(self, model: str, reasoning: ReasoningOptions, calls: CallFormat | None) -> None:
        self._number = uuid.uuid4().hex
        self.id = f"msg_{self._number}"
        self._model = model
        self._reader = ChoiceReader(reasoning, calls)
        self._begun = False
        self._blocks = 0
        self._open: type[AnswerBlock] | None = None

    def whole(self, deltas: Sequence[ChoiceDelta]) -> MessageObject:
        """Return the whole answer, from its last piece."""
        (last,) = deltas
        parts = Parts.of(self._reader.push(last.answer, last.answer.text, ended=True))
        blocks: list[AnswerBlock] = []
        if parts.thinking:
            blocks.append(AnswerThinking(thinking=parts.thinking))
        if parts.text or not (parts.thinking or parts.calls):
            blocks.append(AnswerText(text=parts.text))
        for place, name, arguments in parts.whole_calls():
            blocks.append(AnswerToolUse(id=self._call_id(place), name=name, input=arguments))
        return self._message(last, blocks, **self._end_of(last))

    def events(self, delta: ChoiceDelta) -> Iterator[MessageEvent]:
        """Yield what a piece of the answer adds to a stream."""
        if not self._begun:
            self._begun = True
            yield MessageEvent(type="message_start", message=self._message(delta, []))
        for piece in self._reader.push(delta.answer, delta.text, delta.ended):
            match piece:
                case Thought():
                    yield from self._begin(AnswerThinking(thinking=""))
                    yield self._add(type="thinking_delta", thinking=piece.text)
                case CallPiece(name=str() as name):
                    yield from self._close()
                    number = self._call_id(piece.index)
                    yield from self._begin(AnswerToolUse(id=number, name=name, input={}))
                case CallPiece():
                    yield self._add(type="input_json_delta", partial_json=piece.arguments)
                case str():
                    yield from self._begin(AnswerText(text=""))
                    yield self._add(type="text_delta", text=piece)
        if delta.ended:
            if not self._blocks and self._open is None:
                yield from self._begin(AnswerText(text=""))
            yield from self._close()
            end = EndDelta(**self._end_of(delta))
            yield MessageEvent(type="message_delta", delta=end, usage=_usage(delta))
            yield MessageEvent(type="message_stop")

    def _begin(self, block: AnswerBlock) -> Iterator[MessageEvent]:
        """Begin a block, unless one of its kind is open."""
        if self._open is not type(block):
            yield from self._close()
            self._open = type(block)
            yield MessageEvent(type="content_block_start", index=self._blocks, content_block=block)

    def _add(self, **delta: Any) -> MessageEvent:
        added = BlockDelta(**delta)
        return MessageEvent(type="content_block_delta", index=self._blocks, delta=added)

    def _close(self) -> Iterator[MessageEvent]:
        if self._open is not None:
            yield MessageEvent(type="content_block_stop", index=self._blocks)
            self._open = None
            self._blocks += 1

    def _call_id(self, place: int) -> str:
        return f"toolu_{self._number[:16]}_{place}"

    def _message(self, delta: ChoiceDelta, content: list[AnswerBlock], **end: Any) -> MessageObject:
        return MessageObject(
            id=self.id, model=self._model, content=content, usage=_usage(delta), **end
        )

    def _end_of(self, ended: ChoiceDelta) -> dict[str, Any]:
        """Return Anthropic's words for the end; OpenAI's do not always say that a tool was
        called."""
        summary = ended.answer.summary
        assert summary is not None
        reason: StopReason = "end_turn"
        if summary.finish_reason == "length":
            reason = "max_tokens"
        elif self._reader.has_calls:
            reason = "tool_use"
        elif summary.stop_sequence:
            reason = "stop_sequence"
        stopped_by = summary.stop_sequence if reason == "stop_sequence" else None
        return {"stop_reason": reason, "stop_sequence": stopped_by}


def _usage(delta: ChoiceDelta) -> MessageUsage:
    summary = delta.answer.summary
    cached = 0 if summary is None else summary.cached_tokens
    return MessageUsage(
        input_tokens=delta.answer.prompt_tokens - cached,
        cache_read_input_tokens=cached,
        output_tokens=0 if summary is None else summary.tokens,
    )
