"""Tools in bodies and answers, as OpenAI's API has them. Invariant: as of `schema`."""

from typing import Annotated, Any, Literal

from pydantic import Field

from tandem.gateway.body_parsing import Strict

MAX_TOOLS = 128
ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class ToolFunction(Strict):
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(default=None, description="A JSON schema.")
    strict: bool | None = Field(default=None, description="Of no effect: arguments always fit.")


class Tool(Strict):
    type: Literal["function"]
    function: ToolFunction


class NamedFunction(Strict):
    name: ToolName


class NamedTool(Strict):
    type: Literal["function"]
    function: NamedFunction


Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)]
ToolChoice = Literal["none", "auto", "required"] | NamedTool


class CalledFunction(Strict):
    name: str
    arguments: str = Field(description="JSON.")


class ToolCall(Strict):
    """In an assistant's message."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class CalledFunctionDelta(Strict):
    name: str | None = None
    arguments: str


class ToolCallDelta(Strict):
    """Id, type and name come first; arguments in parts."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunctionDelta
