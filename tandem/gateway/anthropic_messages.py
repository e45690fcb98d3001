"""POST /v1/messages, Anthropic's API, as far as it says what a chat says: its body is turned into
OpenAI's chat, and the chat's answer into blocks and events. Invariant: the blocks that a stream's
events make up are those of the whole answer."""

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from tandem.gateway.bodies import Writer
from tandem.gateway.body_parsing import UINT32, Strict
from tandem.gateway.error_forms import MESSAGES_PATH, error_body
from tandem.gateway.errors import unsupported, validation_error
from tandem.gateway.event_stream import StreamForm, server_sent
from tandem.gateway.parallel_choices import ChoiceDelta
from tandem.gateway.responses import Ignored
from tandem.gateway.schema import ChatCompletionRequest, Count, Seed, Stops, TandemOptions
from tandem.gateway.tool_calls import MAX_TOOLS, STRICT, ToolName, complete_calls

StopReason = Literal["end_turn", "max_tokens", "tool_use"]


class MessageText(Strict):
    type: Literal["text"]
    text: str
    cache_control: Ignored = None
    citations: Ignored = None


class MessageImageSource(Strict):
    type: Literal["base64"]
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: str


class MessageImage(Strict):
    type: Literal["image"]
    source: MessageImageSource
    cache_control: Ignored = None


class MessageToolUse(Strict):
    """A tool call, in an answer or passed back."""

    type: Literal["tool_use"]
    id: str
    name: ToolName
    input: dict[str, Any]
    cache_control: Ignored = None


class MessageToolResult(Strict):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Annotated[list[MessageText], Field(fail_fast=True)] = ""
    is_error: Ignored = None
    cache_control: Ignored = None


class MessageThinking(Strict):
    """What a model thought before an earlier answer, for chat templates that keep it."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


MessageBlock = Annotated[
    MessageText | MessageImage | MessageToolUse | MessageToolResult | MessageThinking,
    Field(discriminator="type"),
]


class InputTurn(Strict):
    role: Literal["user", "assistant"]
    content: str | Annotated[list[MessageBlock], Field(fail_fast=True)]


class MessageTool(Strict):
    name: ToolName
    input_schema: dict[str, Any] = Field(description="JSON schema of the input.")
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = Field(default=None, description=STRICT)
    cache_control: Ignored = None


class MessageToolChoice(Strict):
    type: Literal["auto", "any", "tool", "none"]
    name: ToolName | None = Field(default=None, description="Only with the type `tool`.")
    disable_parallel_tool_use: bool | None = None


class NoThinking(Strict):
    type: Literal["disabled"]


class WithThinking(Strict):
    """Return what the model thinks before it answers, and have it think no longer than this."""

    type: Literal["enabled"]
    budget_tokens: Count


class MessagesPrompt(Strict):
    """What becomes the prompt."""

    model: str
    messages: Annotated[list[InputTurn], Field(min_length=1, fail_fast=True)]
    system: str | Annotated[list[MessageText], Field(fail_fast=True)] | None = None
    tools: Annotated[list[MessageTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: Annotated[NoThinking | WithThinking, Field(discriminator="type")] | None = Field(
        default=None,
        description="Default: the chat template decides whether the model thinks, and the thinking"
        " is not returned.",
    )


class CountTokensRequest(MessagesPrompt):
    """Body of POST /v1/messages/count_tokens. The last message must be the user's."""


class TokenCount(Strict):
    """Tokens of the prompt that /v1/messages would make of the same body."""

    input_tokens: int


class MessagesRequest(MessagesPrompt):
    """Body of POST /v1/messages. The last message must be the user's."""

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
    metadata: Ignored = None
    service_tier: Ignored = None


class AnswerText(Strict):
    type: Literal["text"]
    text: str


class AnswerThinking(Strict):
    type: Literal["thinking"]
    thinking: str
    signature: Literal[""]


class AnswerToolUse(Strict):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class MessageUsage(Strict):
    input_tokens: int = Field(description="Prompt tokens that were not in the prefix cache.")
    cache_creation_input_tokens: Literal[0]
    cache_read_input_tokens: int
    output_tokens: int


class MessageObject(Strict):
    """An answer. `stop_reason` is `end_turn` after a stop sequence, too."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnswerText | AnswerThinking | AnswerToolUse]
    stop_reason: StopReason | None
    stop_sequence: None
    usage: MessageUsage


class MessageDelta(Strict):
    """What is added to a block, or to the message at its end."""

    type: Literal["text_delta", "thinking_delta", "input_json_delta"] | None = None
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: StopReason | None = None
    stop_sequence: None = None


class MessageEvent(Strict):
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
    message: MessageObject | None = None
    index: int | None = None
    content_block: AnswerText | AnswerThinking | AnswerToolUse | None = None
    delta: MessageDelta | None = None
    usage: MessageUsage | None = None


class MessageErrorDetails(Strict):
    type: str
    message: str


class MessageError(Strict):
    """Error in Anthropic's format. A broken stream ends with it."""

    type: Literal["error"]
    error: MessageErrorDetails


def chat_of_messages(asked: MessagesRequest) -> ChatCompletionRequest:
    """Return the chat that asks for the same. Raises ApiError for what a chat cannot ask."""
    return _chat(
        asked,
        max_tokens=asked.max_tokens,
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=asked.top_k,
        stop=asked.stop_sequences,
        stream=asked.stream,
        seed=asked.seed,
        tandem=asked.tandem,
    )


def chat_to_count(asked: CountTokensRequest) -> ChatCompletionRequest:
    """Return a chat that has the same prompt. Raises ApiError as `chat_of_messages`."""
    return _chat(asked, max_tokens=1)


def _chat(asked: MessagesPrompt, **more: Any) -> ChatCompletionRequest:
    if asked.messages[-1].role == "assistant":
        raise unsupported("messages", "the last message must be the user's")
    choice = asked.tool_choice
    body: dict[str, Any] = {
        "model": asked.model,
        "messages": [*_system(asked), *_messages(asked.messages)],
        "tools": [_function(tool) for tool in asked.tools or ()] or None,
        "tool_choice": None if choice is None else _tool_choice(choice),
        "parallel_tool_calls": False if choice and choice.disable_parallel_tool_use else None,
        **_thinking(asked.thinking),
        **more,
    }
    given = {name: value for name, value in body.items() if value is not None}
    try:
        return ChatCompletionRequest.model_validate(given)
    except ValidationError as error:
        raise validation_error(error) from None


def _thinking(thinking: NoThinking | WithThinking | None) -> dict[str, Any]:
    """Return the parameters of the chat that say whether to think. Callers that did not ask for
    thinking expect no block of it."""
    if isinstance(thinking, WithThinking):
        variables = {"chat_template_kwargs": {"enable_thinking": True}}
        return {**variables, "thinking_token_budget": thinking.budget_tokens}
    variables = {} if thinking is None else {"chat_template_kwargs": {"enable_thinking": False}}
    return {**variables, "include_reasoning": False}


def _system(asked: MessagesPrompt) -> Iterator[dict[str, Any]]:
    if asked.system:
        yield {"role": "system", "content": _text(asked.system)}


def _messages(turns: Sequence[InputTurn]) -> Iterator[dict[str, Any]]:
    for turn in turns:
        if isinstance(turn.content, str):
            yield {"role": turn.role, "content": turn.content}
        else:
            yield from _turn(turn.role, turn.content)


def _turn(role: str, blocks: Sequence[MessageBlock]) -> Iterator[dict[str, Any]]:
    """Yield a message for each tool result in a turn, then the rest of the turn as one message."""
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for block in blocks:
        match block:
            case MessageThinking():
                thoughts.append(block.thinking)
            case MessageText():
                parts.append({"type": "text", "text": block.text})
            case MessageImage():
                url = f"data:{block.source.media_type};base64,{block.source.data}"
                parts.append({"type": "image_url", "image_url": {"url": url}})
            case MessageToolUse():
                function = {"name": block.name, "arguments": json.dumps(block.input)}
                calls.append({"id": block.id, "type": "function", "function": function})
            case MessageToolResult():
                result = {"tool_call_id": block.tool_use_id, "content": _text(block.content)}
                yield {"role": "tool", **result}
    content: Any = parts
    if all(part["type"] == "text" for part in parts):
        content = "".join(part["text"] for part in parts)
    message = {"role": role, "content": content}
    if any(thoughts):
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        yield {**message, "tool_calls": calls}
    elif parts or not blocks:
        yield message


def _text(content: str | Sequence[MessageText]) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)


def _function(tool: MessageTool) -> dict[str, Any]:
    function = {"name": tool.name, "parameters": tool.input_schema, "strict": tool.strict}
    described = {} if tool.description is None else {"description": tool.description}
    return {"type": "function", "function": {**function, **described}}


def _tool_choice(choice: MessageToolChoice) -> str | dict[str, Any]:
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return "required" if choice.type == "any" else choice.type


class MessageWriter:
    """Writes the one answer of `writer`, a chat's, as Anthropic's API does."""

    stream_form = StreamForm(
        media_type="text/event-stream",
        event=server_sent,
        error=lambda refused: error_body(refused, MESSAGES_PATH),
        keep_alive=server_sent({"type": "ping"}),
    )

    def __init__(self, writer: Writer, model: str) -> None:
        self._writer = writer
        self._model = model
        self._id = f"msg_{uuid.uuid4().hex}"
        self._begun = False
        self._blocks = 0
        self._open: str | None = None
        self._called = False

    def whole(self, deltas: Sequence[ChoiceDelta]) -> dict[str, Any]:
        """Return the whole answer, from its last piece."""
        answer = self._writer.whole(deltas)
        (choice,) = answer["choices"]
        message = choice["message"]
        blocks: list[dict[str, Any]] = []
        if thinking := message.get("reasoning_content"):
            blocks.append({"type": "thinking", "thinking": thinking, "signature": ""})
        if message["content"]:
            blocks.append({"type": "text", "text": message["content"]})
        for call, arguments in complete_calls(message.get("tool_calls", ())):
            blocks.append(_tool_use(call, arguments))
        reason = _stop_reason(choice["finish_reason"], called=bool(message.get("tool_calls")))
        return self._message(blocks, reason, _usage(answer["usage"]))

    def events(self, delta: ChoiceDelta) -> Iterator[dict[str, Any]]:
        """Yield what a piece of the answer adds to a stream."""
        if not self._begun:
            self._begun = True
            prompt = {"prompt_tokens": delta.answer.prompt_tokens, "completion_tokens": 0}
            yield {"type": "message_start", "message": self._message([], None, _usage(prompt))}
        if (chunk := self._writer.chunk(delta)) is None:
            return
        (choice,) = chunk["choices"]
        if thinking := choice["delta"].get("reasoning_content"):
            if self._open != "thinking":
                yield from self._begin({"type": "thinking", "thinking": "", "signature": ""})
            yield self._add({"type": "thinking_delta", "thinking": thinking})
        if text := choice["delta"].get("content"):
            if self._open != "text":
                yield from self._begin({"type": "text", "text": ""})
            yield self._add({"type": "text_delta", "text": text})
        for call in choice["delta"].get("tool_calls", ()):
            if "id" in call:
                self._called = True
                yield from self._begin(_tool_use(call, {}))
            if arguments := call["function"]["arguments"]:
                yield self._add({"type": "input_json_delta", "partial_json": arguments})
        if choice["finish_reason"] is not None:
            yield from self._end()
            reason = _stop_reason(choice["finish_reason"], called=self._called)
            usage = _usage(self._writer.usage_chunk()["usage"])
            ended = {"stop_reason": reason, "stop_sequence": None}
            yield {"type": "message_delta", "delta": ended, "usage": usage}
            yield {"type": "message_stop"}

    def closing(self) -> Iterator[dict[str, Any]]:
        """Yield nothing: no event follows the last one."""
        return iter(())

    def _begin(self, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from self._end()
        self._open = block["type"]
        yield {"type": "content_block_start", "index": self._blocks, "content_block": block}

    def _add(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._blocks, "delta": delta}

    def _end(self) -> Iterator[dict[str, Any]]:
        if self._open is not None:
            yield {"type": "content_block_stop", "index": self._blocks}
            self._open = None
            self._blocks += 1

    def _message(
        self, content: list[dict[str, Any]], reason: StopReason | None, usage: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": usage,
        }


def _stop_reason(finish_reason: str, *, called: bool) -> StopReason:
    """Return Anthropic's reason for the end; OpenAI's does not always say that a tool was
    called."""
    if finish_reason == "length":
        return "max_tokens"
    return "tool_use" if called else "end_turn"


def _tool_use(call: Mapping[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    name = call["function"]["name"]
    return {"type": "tool_use", "id": call["id"], "name": name, "input": arguments}


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    return {
        "input_tokens": usage["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage["completion_tokens"],
    }
