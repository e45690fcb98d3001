"""Ollama's API: its bodies as OpenAI's, and OpenAI's answers in its words. Invariant: an answer is
the one to the chat or the completion that the body stands for; what would have to be ignored,
though it could change an answer, is refused."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from tandem.gateway.bodies import Writer
from tandem.gateway.body_parsing import UINT32, MinusOne, Strict, Zero
from tandem.gateway.constraints import JsonSchema, Penalty
from tandem.gateway.error_forms import OLLAMA_PREFIX, error_body
from tandem.gateway.errors import invalid, validation_error
from tandem.gateway.event_stream import StreamForm
from tandem.gateway.parallel_choices import ChoiceDelta
from tandem.gateway.responses import Ignored
from tandem.gateway.schema import ChatCompletionRequest, CompletionRequest, Stops
from tandem.gateway.tool_calls import Tools, complete_calls

NDJSON = "application/x-ndjson"
_SAME_NAME = (
    *("temperature", "top_p", "top_k", "min_p", "typical_p", "stop"),
    *("presence_penalty", "frequency_penalty"),
)
"""Options that OpenAI's or vLLM's API knows by the same name."""


class OllamaOptions(Strict):
    """Options of the sampling. What is not set has this server's default, not Ollama's."""

    num_predict: Annotated[int, Field(ge=-2, le=UINT32)] | None = Field(
        default=None, description="Maximum tokens of the answer. -1 or -2: the server's limit."
    )
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=UINT32)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    typical_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-1, lt=2**64)] | None = Field(
        default=None, description="Seed of the sampling. -1: a new one for each answer."
    )
    stop: str | Stops | None = None
    repeat_penalty: Annotated[float, Field(gt=0, le=10)] | None = Field(
        default=None, description="Penalty for tokens that occur in the prompt or the answer."
    )
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repeat_last_n: MinusOne | None = Field(
        default=None, description="Penalties always count the whole prompt and answer."
    )
    mirostat: Zero | None = None
    num_ctx: Ignored = None
    num_keep: Ignored = None
    num_batch: Ignored = None
    num_gpu: Ignored = None
    main_gpu: Ignored = None
    num_thread: Ignored = None
    use_mmap: Ignored = None
    use_mlock: Ignored = None
    low_vram: Ignored = None
    numa: Ignored = None


class OllamaFunction(Strict):
    name: str
    arguments: dict[str, Any]
    index: Ignored = None


class OllamaToolCall(Strict):
    function: OllamaFunction
    id: str | None = None
    type: Literal["function"] | None = None


class OllamaMessage(Strict):
    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    images: list[str] | None = Field(default=None, description="Images as base64.")
    tool_calls: Annotated[list[OllamaToolCall], Field(fail_fast=True)] | None = None
    tool_name: str | None = Field(
        default=None,
        description="The function whose result this is, in a message with the role `tool`.",
    )
    tool_call_id: str | None = None
    thinking: str | None = Field(
        default=None,
        description="What a model thought before an earlier answer, for chat templates that keep"
        " it.",
    )


class _OllamaBody(Strict):
    model: str
    stream: bool | None = Field(default=None, description="Default: true.")
    format: Literal["", "json"] | JsonSchema | None = Field(
        default=None, description="`json`, or a JSON schema that the answer matches."
    )
    options: OllamaOptions | None = None
    think: bool | Literal["low", "medium", "high"] | None = Field(
        default=None,
        description="Whether, or how much, the model thinks before it answers. Default: its chat"
        " template decides.",
    )
    keep_alive: Ignored = None

    @property
    def streamed(self) -> bool:
        return self.stream is not False


class OllamaChatRequest(_OllamaBody):
    """Body of POST /api/chat. Without messages nothing is generated."""

    messages: Annotated[list[OllamaMessage], Field(default_factory=list, fail_fast=True)]
    tools: Tools | None = None


class OllamaGenerateRequest(_OllamaBody):
    """Body of POST /api/generate. Without a prompt nothing is generated."""

    prompt: str = ""
    suffix: str | None = Field(
        default=None,
        description="Text after the answer. Only for models trained to fill in the middle.",
    )
    system: str | None = None
    images: list[str] | None = Field(default=None, description="Images as base64.")
    raw: bool | None = Field(default=None, description="Do not apply the chat template.")
    template: Literal[""] | None = None
    context: Annotated[list[int], Field(max_length=0)] | None = Field(
        default=None, description="Not supported: send the conversation to /api/chat."
    )


class OllamaShowRequest(Strict):
    """Body of POST /api/show."""

    model: str
    verbose: Ignored = None


class OllamaEmbedRequest(Strict):
    """Body of POST /api/embed."""

    model: str
    input: str | Annotated[list[str], Field(fail_fast=True)]
    dimensions: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Must be the model's own dimension."
    )
    truncate: bool | None = Field(
        default=None,
        description="Read only the beginning of a text that is longer than the model's maximum"
        " length. Without it such a text is embedded in windows.",
    )
    options: Ignored = None
    keep_alive: Ignored = None


class OllamaCalledFunction(Strict):
    name: str
    arguments: dict[str, Any]


class OllamaCall(Strict):
    id: str
    function: OllamaCalledFunction


class OllamaAnswerMessage(Strict):
    role: Literal["assistant"]
    content: str
    thinking: str | None = Field(default=None, description="The thinking before the answer.")
    tool_calls: list[OllamaCall] | None = None


class _OllamaAnswer(Strict):
    model: str
    created_at: str
    done: bool
    done_reason: Literal["stop", "length", "load"] | None = None
    total_duration: int | None = Field(default=None, description="Durations are in nanoseconds.")
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None


class OllamaChatAnswer(_OllamaAnswer):
    """An answer, or a line of a streamed one. The figures come with the last line."""

    message: OllamaAnswerMessage


class OllamaGenerateAnswer(_OllamaAnswer):
    """An answer, or a line of a streamed one. The figures come with the last line."""

    response: str
    thinking: str | None = Field(default=None, description="The thinking before the answer.")


class OllamaEmbeddings(Strict):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaDetails(Strict):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(Strict):
    name: str
    model: str
    modified_at: str
    size: int = Field(description="Always 0: unknown.")
    digest: str
    details: OllamaDetails


class OllamaModels(Strict):
    models: list[OllamaModel]


class OllamaModelCard(Strict):
    modified_at: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[Literal["completion", "tools", "embedding"]]


class OllamaVersion(Strict):
    version: str


class OllamaError(Strict):
    """Error in Ollama's format. A broken stream ends with it."""

    error: str


def chat_of(asked: OllamaChatRequest, model: str) -> ChatCompletionRequest:
    """Return the chat that asks `model` for the same. Raises ApiError."""
    tools = [tool.model_dump(exclude_none=True) for tool in asked.tools or ()]
    body = {
        **_common_fields(asked, model),
        **_thinking(asked.think),
        "messages": list(_messages(asked.messages)),
        "tools": tools or None,
    }
    return _chat(body)


def generation_of(
    asked: OllamaGenerateRequest, model: str
) -> ChatCompletionRequest | CompletionRequest:
    """Return the completion that asks `model` for the same, or the chat if its template is to be
    applied. Raises ApiError."""
    common = _common_fields(asked, model)
    if not (asked.raw or asked.suffix):
        system = [{"role": "system", "content": asked.system}] if asked.system else []
        user = {"role": "user", "content": _content(asked.prompt, asked.images)}
        return _chat({**common, **_thinking(asked.think), "messages": [*system, user]})
    refused = (("system", asked.system), ("images", asked.images), ("think", asked.think))
    for name, given in refused:
        if given:
            raise invalid(name, f"{name}: cannot be combined with raw or suffix")
    body = {**common, "prompt": asked.prompt, "suffix": asked.suffix or None}
    try:
        return CompletionRequest.model_validate(_given(body))
    except ValidationError as error:
        raise validation_error(error) from None


def _chat(body: Mapping[str, Any]) -> ChatCompletionRequest:
    try:
        return ChatCompletionRequest.model_validate(_given(body))
    except ValidationError as error:
        raise validation_error(error) from None


def _given(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value is not None}


def _common_fields(asked: _OllamaBody, model: str) -> dict[str, Any]:
    options = asked.options or OllamaOptions()
    limit = options.num_predict
    seed = options.seed
    return {
        "model": model,
        "stream": asked.streamed,
        **{name: getattr(options, name) for name in _SAME_NAME},
        "max_tokens": None if limit in (-1, -2) else limit,
        "seed": None if seed == -1 else seed,
        "repetition_penalty": options.repeat_penalty,
        "response_format": _response_format(asked.format),
    }


def _thinking(think: bool | str | None) -> dict[str, Any]:
    """Return the parameters of a chat that say whether its model thinks first."""
    if isinstance(think, str):
        return {"reasoning_effort": think}
    return {} if think is None else {"chat_template_kwargs": {"enable_thinking": think}}


def _response_format(wanted: str | JsonSchema | None) -> dict[str, Any] | None:
    if isinstance(wanted, dict):
        return {"type": "json_schema", "json_schema": {"name": "format", "schema": wanted}}
    return {"type": "json_object"} if wanted == "json" else None


def _messages(messages: Sequence[OllamaMessage]) -> Iterator[dict[str, Any]]:
    """Yield OpenAI's messages. There, a tool's result names its call by id; in Ollama's API it
    names the function, or else follows the order of the calls."""
    unanswered: list[tuple[str, str]] = []
    for index, message in enumerate(messages):
        if message.role == "tool":
            number = _answered_call(index, message, unanswered)
            yield {"role": "tool", "tool_call_id": number, "content": message.content}
            continue
        content = _content(message.content, message.images)
        turn: dict[str, Any] = {"role": message.role, "content": content}
        if message.thinking:
            turn["reasoning_content"] = message.thinking
        if message.tool_calls:
            turn["tool_calls"] = calls = [
                _call(call, f"call_{index}_{place}")
                for place, call in enumerate(message.tool_calls)
            ]
            unanswered = [(call["function"]["name"], call["id"]) for call in calls]
        yield turn


def _answered_call(index: int, message: OllamaMessage, unanswered: list[tuple[str, str]]) -> str:
    """Return the id of the call whose result the message is, and take the call off `unanswered`.
    Raises ApiError if there is none."""
    for place, (name, number) in enumerate(unanswered):
        if message.tool_call_id is not None:
            matches = message.tool_call_id == number
        else:
            matches = message.tool_name in (None, name)
        if matches:
            del unanswered[place]
            return number
    field = f"messages.{index}"
    raise invalid(field, f"{field}: is not the result of a call in the message before it")


def _call(call: OllamaToolCall, number: str) -> dict[str, Any]:
    arguments = json.dumps(call.function.arguments)
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id or number, "type": "function", "function": function}


def _content(text: str, images: Sequence[str] | None) -> str | list[dict[str, Any]]:
    if not images:
        return text
    # Whoever decodes an image sees what kind it is; its address must say that it is one.
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": f"data:image/*;base64,{image}"}}
        for image in images
    ]
    return [*parts, {"type": "text", "text": text}]


class OllamaWriter:
    """Writes the one answer of `writer` as Ollama does; `chat`: as /api/chat, not /api/generate."""

    def __init__(self, writer: Writer, model: str, chat: bool) -> None:
        self._writer = writer
        self._model = model
        self._chat = chat
        self._calls: list[dict[str, Any]] = []

    @property
    def stream_form(self) -> StreamForm:
        nothing = {**self._line(""), "done": False}
        return StreamForm(
            media_type=NDJSON,
            event=_json_line,
            error=lambda refused: error_body(refused, OLLAMA_PREFIX),
            keep_alive=_json_line(nothing),
        )

    def whole(self, deltas: Sequence[ChoiceDelta]) -> dict[str, Any]:
        """Return the whole answer, from its last piece."""
        answer = self._writer.whole(deltas)
        (choice,) = answer["choices"]
        message = choice.get("message") or {"content": choice["text"]}
        thinking = message.get("reasoning_content", "")
        line = self._line(message["content"] or "", message.get("tool_calls", ()), thinking)
        return line | self._figures(choice, answer["usage"])

    def events(self, delta: ChoiceDelta) -> Iterator[dict[str, Any]]:
        """Yield the lines of a piece of the answer. A call is written once it is complete."""
        if (chunk := self._writer.chunk(delta)) is None:
            return
        (choice,) = chunk["choices"]
        change = choice.get("delta") or {"content": choice.get("text")}
        for part in change.get("tool_calls", ()):
            if part["index"] == len(self._calls):
                self._calls.append({**part, "function": {**part["function"]}})
            else:
                function = self._calls[part["index"]]["function"]
                function["arguments"] += part["function"]["arguments"]
        ended = choice["finish_reason"] is not None
        calls = self._calls if ended else []
        thinking = change.get("reasoning_content", "")
        if change.get("content") or thinking or calls:
            yield {**self._line(change.get("content") or "", calls, thinking), "done": False}
        if ended:
            usage = self._writer.usage_chunk()["usage"]
            yield self._line("") | self._figures(choice, usage)

    def closing(self) -> Iterator[dict[str, Any]]:
        """Yield nothing: no line follows the last one."""
        return iter(())

    def _line(
        self, text: str, calls: Sequence[Mapping[str, Any]] = (), thinking: str = ""
    ) -> dict[str, Any]:
        return answer_line(self._model, text, calls, thinking, chat=self._chat)

    def _figures(self, choice: Mapping[str, Any], usage: Mapping[str, Any]) -> dict[str, Any]:
        figures = choice["tandem"]
        total_s = figures["duration_s"]
        prompt_s = total_s if figures["ttft_s"] is None else figures["ttft_s"]
        return {
            "done": True,
            "done_reason": "length" if choice["finish_reason"] == "length" else "stop",
            "total_duration": nanoseconds(total_s),
            "load_duration": 0,
            "prompt_eval_count": usage["prompt_tokens"],
            "prompt_eval_duration": nanoseconds(prompt_s),
            "eval_count": usage["completion_tokens"],
            "eval_duration": nanoseconds(total_s - prompt_s),
        }


def answer_line(
    model: str,
    text: str,
    calls: Sequence[Mapping[str, Any]] = (),
    thinking: str = "",
    *,
    chat: bool,
) -> dict[str, Any]:
    """Return a part of an answer by `model` without the figures; `calls` are OpenAI's. One that
    was cut off is left out."""
    line = {"model": model, "created_at": as_time(datetime.now(UTC).timestamp())}
    thought = {"thinking": thinking} if thinking else {}
    if not chat:
        return {**line, "response": text, **thought}
    message: dict[str, Any] = {"role": "assistant", "content": text, **thought}
    if written := [
        {"id": call["id"], "function": {"name": call["function"]["name"], "arguments": arguments}}
        for call, arguments in complete_calls(calls)
    ]:
        message["tool_calls"] = written
    return {**line, "message": message}


def model_entry(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model of /v1/models as /api/tags lists it."""
    return {
        "name": card["id"],
        "model": card["id"],
        "modified_at": as_time(card["created"]),
        "size": 0,
        "digest": hashlib.sha256(json.dumps(card["tandem"]).encode()).hexdigest(),
        "details": _details(),
    }


def model_details(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model of /v1/models as /api/show describes it."""
    served = card["tandem"]
    embeds = "dimension" in served
    length = (
        {"tandem.embedding_length": served["dimension"]}
        if embeds
        else {"tandem.context_length": served["context_length"]}
    )
    return {
        "modified_at": as_time(card["created"]),
        "details": _details(),
        "model_info": {"general.architecture": "tandem", **length},
        "capabilities": ["embedding"] if embeds else ["completion", "tools"],
    }


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def as_time(timestamp: float) -> str:
    """Return seconds since 1970 as RFC 3339 in UTC."""
    return datetime.fromtimestamp(timestamp, UTC).isoformat().replace("+00:00", "Z")


def _json_line(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode() + b"\n"


def _details() -> dict[str, Any]:
    unknown = ("parent_model", "format", "parameter_size", "quantization_level")
    return {**dict.fromkeys(unknown, ""), "family": "tandem", "families": ["tandem"]}
