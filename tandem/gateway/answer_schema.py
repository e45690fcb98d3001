"""The bodies that the gateway answers with, for its OpenAPI document. Invariant: every answer that
`bodies`, `catalog` and `errors` write is one of these, with no field more; tests hold real answers
against them."""

from typing import Annotated, Literal

from pydantic import Field

from tandem.gateway.body_parsing import Strict
from tandem.gateway.tool_calls import ToolCall, ToolCallDelta

Rate = Annotated[float, Field(ge=0, le=1)]


class ApiErrorDetails(Strict):
    message: str
    type: str
    param: str | None = Field(description="The field of the body that is at fault, if one is.")
    code: str | None


class ErrorBody(Strict):
    """What OpenAI's API answers in place of an answer; also the last event of a broken stream."""

    error: ApiErrorDetails


class TokenProvenance(Strict):
    id: int
    source: str | None = Field(description="Who made it; null for a token of no known source.")
    text: str | None = Field(
        default=None, description="What it spells after those before it, where asked for."
    )
    sides: list[str] | None = Field(
        default=None, description="Of more than two sides those whose draft it was, by name."
    )


class RoundReport(Strict):
    """One round up to its verdict; `in_flight` drafts were not judged yet then. Times in seconds,
    each by the clock of the machine that did the work."""

    drafted: int
    accepted: int
    in_flight: int
    round_s: float
    draft_s: float
    verify_s: float
    queue_s: float
    resumes: int = Field(description="Streams opened after the first, so far.")


class DocumentSideFigures(Strict):
    """Of one side of an answer from documents."""

    documents: int
    document_tokens: int
    drafted: int
    accepted: int
    decode_s: float
    acceptance_rate: Rate | None
    names: list[str] = Field(description="Of the documents used; the device's alone.")
    name: str | None = Field(default=None, description="Of a side beyond the cloud.")
    made: int | None = Field(
        default=None,
        description="Of more than two sides: tokens that the coin gave to this one, or that at"
        " temperature 0 it alone had drafted.",
    )
    round_trip_s: float | None = Field(
        default=None, description="Of more than two sides: the median to this one."
    )
    uplink_bytes: int | None = Field(default=None, description="Likewise, of messages to it.")
    downlink_bytes: int | None = Field(default=None, description="Likewise, from it.")


class ChosenSchedule(Strict):
    """The last schedule that the preset chose, and what it was chosen by; times in seconds."""

    schedule: str
    reason: str
    decisions: int
    expected_tpot_s: float = Field(description="Estimated, with this schedule.")
    cloud_alone_tpot_s: float
    cloud_alone_measured: bool = Field(
        description="Whether the cloud decoded alone within the last minutes, so that what it takes"
        " was measured; else it is an estimate."
    )
    acceptance_rate: Rate
    draft_step_s: float
    pass_s: float
    further_s: float
    wait_s: float
    sessions: float
    round_trip_s: float


class ChunkExtension(Strict):
    """What Tandem adds to a choice; a chunk has `provenance` and `rounds` where they were asked
    for, and the last chunk of a choice all else."""

    provenance: list[TokenProvenance] | None = None
    rounds_ended: list[RoundReport] | None = Field(
        default=None, description="Rounds whose tokens these are, where asked for."
    )
    seed: int | None = None
    session: str | None = None
    preset: str | None = None
    tokens: int | None = None
    rounds: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    target_passes: int | None = None
    uplink_bytes: int | None = None
    downlink_bytes: int | None = None
    prompt_tokens: int | None = None
    resumes: int | None = None
    links_lost: int | None = None
    predrafted: int | None = None
    predraft_hits: int | None = None
    predraft_misses: int | None = None
    early_verdicts: int | None = None
    lossy: bool | None = None
    same_bits: bool | None = Field(
        default=None,
        description="Other requests change no bit of the target's logits, so a coupled text does"
        " not depend on the load. Null where no cloud took part, or two sides' documents.",
    )
    ttft_s: float | None = None
    tpot_s: float | None = None
    duration_s: float | None = None
    acceptance_rate: Rate | None = None
    predraft_miss_rate: Rate | None = None
    unverified: list[int] | None = Field(
        default=None, description="Positions of tokens that no target model has seen."
    )
    side_moves: int | None = None
    fetches: int | None = None
    device: DocumentSideFigures | None = None
    cloud: DocumentSideFigures | None = None
    choice: ChosenSchedule | None = None
    more_sides: list[DocumentSideFigures] | None = Field(
        default=None, description="The sides beyond the cloud that an answer came from."
    )


class LikelyToken(Strict):
    token: str
    logprob: float | None = Field(description="Null for a token that nobody verified.")
    bytes: list[int]


class ContentLogprob(LikelyToken):
    top_logprobs: list[LikelyToken]


class ChatLogprobs(Strict):
    content: list[ContentLogprob]
    refusal: None


class CompletionLogprobs(Strict):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class PromptDetails(Strict):
    cached_tokens: int = Field(
        description="Of the prompt, those whose keys and values the cloud had kept."
    )


class UsageFigures(Strict):
    """Each prompt counts once, however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class _Frame(Strict):
    id: str
    created: int
    model: str
    system_fingerprint: str


class _Choice(Strict):
    index: int
    tandem: ChunkExtension


class _ChunkChoice(Strict):
    index: int
    tandem: ChunkExtension | None = None


class AssistantMessage(Strict):
    role: Literal["assistant"]
    content: str | None = Field(description="Null beside calls alone.")
    tool_calls: list[ToolCall] | None = None


class AssistantDelta(Strict):
    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChoice(_Choice):
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatChunkChoice(_ChunkChoice):
    finish_reason: Literal["stop", "length", "tool_calls"] | None
    delta: AssistantDelta
    logprobs: ChatLogprobs | None


class CompletionChoice(_Choice):
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]


class CompletionChunkChoice(_ChunkChoice):
    finish_reason: Literal["stop", "length"] | None
    text: str
    logprobs: CompletionLogprobs | None


class ChatCompletion(_Frame):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: UsageFigures


class ChatCompletionChunk(_Frame):
    """An event of a streamed chat; the last one, if usage was asked for, has no choices."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: UsageFigures | None = None


class TextCompletion(_Frame):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: UsageFigures


class TextCompletionChunk(_Frame):
    """An event of a streamed completion, as ChatCompletionChunk of a chat."""

    object: Literal["text_completion"]
    choices: list[CompletionChunkChoice]
    usage: UsageFigures | None = None


class ServedPair(Strict):
    draft: str
    context_length: int
    presets: list[str]
    default_preset: str
    logprobs: list[str] = Field(description="Presets that can tell log-probabilities.")
    objectives: list[str] = Field(description="Presets that go by an objective.")
    documents: list[str] = Field(description="Presets that answer from documents.")
    lossy: list[str] = Field(description="Presets that change the distribution of answers.")


class ServedEmbedding(Strict):
    dimension: int


class ModelCard(Strict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["tandem"]
    tandem: ServedPair | ServedEmbedding


class ModelList(Strict):
    object: Literal["list"]
    data: list[ModelCard]


class AliveAnswer(Strict):
    status: Literal["ok"]


class ReadyAnswer(Strict):
    status: Literal["ready", "not ready"]
    reason: str | None = None
    warning: str | None = None
