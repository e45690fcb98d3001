"""Bodies and answers of POST /v1/responses: the part of OpenAI's API that needs no memory of
earlier answers. Invariant: as of `schema` and `answer_schema`."""

from typing import Annotated, Any, Literal

from pydantic import Field

from tandem.gateway.body_parsing import Strict
from tandem.gateway.constraints import JsonObjectFormat, JsonSchema, TextFormat
from tandem.gateway.schema import Count, Seed, TandemOptions
from tandem.gateway.tool_schema import MAX_TOOLS, ToolName

Ignored = Annotated[Any, Field(description="Of no effect.")]


class InputText(Strict):
    type: Literal["input_text", "output_text"]
    text: str
    annotations: Ignored = None
    logprobs: Ignored = None


class InputMessage(Strict):
    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[InputText], Field(fail_fast=True)]
    id: Ignored = None
    status: Ignored = None
    phase: Ignored = None


class FunctionCallItem(Strict):
    """A call, in an answer and when it is passed back."""

    type: Literal["function_call"]
    call_id: str
    name: ToolName
    arguments: str = Field(description="JSON.")
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class FunctionOutput(Strict):
    type: Literal["function_call_output"]
    call_id: str
    output: str
    id: Ignored = None
    status: Ignored = None


class ResponseSchemaFormat(Strict):
    type: Literal["json_schema"]
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    json_schema: JsonSchema = Field(alias="schema")
    description: str | None = None
    strict: bool | None = Field(default=None, description="Of no effect: answers always match.")


class TextSettings(Strict):
    format: Annotated[
        TextFormat | JsonObjectFormat | ResponseSchemaFormat | None, Field(discriminator="type")
    ] = None
    verbosity: Ignored = None


class ResponseTool(Strict):
    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(default=None, description="A JSON schema.")
    strict: bool | None = Field(default=None, description="Of no effect: arguments always fit.")


class NamedResponseTool(Strict):
    type: Literal["function"]
    name: ToolName


class ResponsesRequest(Strict):
    """Body of POST /v1/responses; nothing is kept of it."""

    model: str
    input: (
        str | Annotated[list[InputMessage | FunctionCallItem | FunctionOutput], Field(min_length=1)]
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
        default=None, description="auto: the oldest turns are left out."
    )
    seed: Seed | None = Field(default=None, description="Tandem's own.")
    tandem: TandemOptions = TandemOptions()
    store: Ignored = None
    metadata: Ignored = None
    user: Ignored = None
    include: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    previous_response_id: None = Field(default=None, description="Nothing is kept to go on from.")


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
    """The answer; `tandem` as in a chat's choice."""

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
    output: list[OutputMessage | FunctionCallItem]
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
    """An event of a streamed answer: of the answer, of an item of its output, or of a part."""

    type: str
    sequence_number: int
    response: ResponseObject | None = None
    output_index: int | None = None
    item: OutputMessage | FunctionCallItem | None = None
    item_id: str | None = None
    content_index: int | None = None
    part: OutputText | None = None
    delta: str | None = None
    text: str | None = None
    logprobs: list[Any] | None = None
    name: str | None = None
    arguments: str | None = None
