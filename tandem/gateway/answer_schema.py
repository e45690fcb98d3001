"""Response bodies of the HTTP API, for the OpenAPI document. Invariant: everything that `bodies`,
`catalog` and `errors` write matches one of these models exactly; tests check real responses against
them."""

from typing import Annotated, Literal

from pydantic import Field

from tandem.gateway.body_parsing import Strict
from tandem.gateway.tool_calls import ToolCall, ToolCallDelta

Rate = Annotated[float, Field(ge=0, le=1)]


class ApiErrorDetails(Strict):
    message: str
    type: str
    param: str | None = Field(description="The request field that caused the error, if any.")
    code: str | None


class ErrorBody(Strict):
    """Error response in OpenAI's format. A broken stream ends with it."""

    error: ApiErrorDetails


class TokenProvenance(Strict):
    id: int
    source: str | None = Field(description="The model that produced the token. Null: unknown.")
    text: str | None = Field(
        default=None, description="Text of the token. Present if `token_texts` was requested."
    )


class RoundReport(Strict):
    """One draft-and-verify round. `in_flight`: draft tokens not yet verified when the round ended.
    Times are in seconds, each measured on the machine that did the work."""

    drafted: int
    accepted: int
    in_flight: int
    round_s: float
    draft_s: float
    verify_s: float
    queue_s: float
    resumes: int = Field(description="Number of reconnections so far.")


class DocumentSideFigures(Strict):
    """Statistics of one side of an answer from documents."""

    documents: int
    document_tokens: int
    drafted: int
    accepted: int
    decode_s: float
    acceptance_rate: Rate | None
    names: list[str] = Field(
        description="Names of the documents used. Only reported for the device."
    )


class ChosenSchedule(Strict):
    """The last schedule that the preset chose, and the estimates it was based on. Times are in
    seconds."""

    schedule: str
    reason: str
    decisions: int
    expected_tpot_s: float = Field(description="Estimated, with this schedule.")
    cloud_alone_tpot_s: float
    cloud_alone_measured: bool = Field(
        description="True if the time of the cloud alone was measured within the last minutes,"
        " false if it is an estimate."
    )
    acceptance_rate: Rate
    draft_step_s: float
    pass_s: float
    further_s: float
    wait_s: float
    sessions: float
    round_trip_s: float


class ChunkExtension(Strict):
    """Tandem's additions to a choice. In a stream, `provenance` and `rounds_ended` come with each
    chunk if requested, and everything else comes with the last chunk of the choice."""

    provenance: list[TokenProvenance] | None = None
    rounds_ended: list[RoundReport] | None = Field(
        default=None,
        description="Rounds that produced these tokens. Present if `rounds` was requested.",
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
    draft_context: int | None = Field(
        default=None,
        description="Tokens that the draft model reads at once, if prompt and answer are longer:"
        " drafts then follow from the end of the text alone. 0 if it read the whole text.",
    )
    accepted_memory_tokens: int | None = Field(
        default=None,
        description="Tokens of the answer that were drafted from what the drafter remembers: your"
        " earlier texts, the prompt, and the answer so far.",
    )
    rejected_memory_tokens: int | None = Field(
        default=None, description="Tokens drafted from there that are not in the answer."
    )
    cloud_drafted: int | None = Field(
        default=None, description="Drafts that the cloud made itself, and judged."
    )
    cloud_accepted: int | None = None
    same_bits: bool | None = Field(
        default=None,
        description="True if concurrent requests do not change the target model's logits, so a"
        " text with a coupled preset does not depend on the load. Null if the"
        " cloud took no part, or for answers from documents.",
    )
    exactness: Literal["bit_for_bit", "up_to_rounding", "not_exact"] | None = Field(
        default=None,
        description="`bit_for_bit`: the target model is batch-invariant, so the text is exactly"
        " what it alone would give. `up_to_rounding`: its logits may differ in their last bits"
        " with the number of tokens in a pass; where two tokens tie to that, the text may be"
        " another. `not_exact`: the preset is lossy, or some tokens were not verified. Null if"
        " the cloud took no part, or for answers from documents.",
    )
    ttft_s: float | None = None
    tpot_s: float | None = None
    duration_s: float | None = None
    acceptance_rate: Rate | None = None
    predraft_miss_rate: Rate | None = None
    unverified: list[int] | None = Field(
        default=None, description="Positions of tokens that the target model did not verify."
    )
    side_moves: int | None = None
    fetches: int | None = None
    device: DocumentSideFigures | None = None
    cloud: DocumentSideFigures | None = None
    choice: ChosenSchedule | None = None


class LikelyToken(Strict):
    token: str
    logprob: float | None = Field(description="Null if the target model did not verify the token.")
    bytes: list[int] = Field(
        description="Bytes of the token. The bytes of all tokens together are the answer's UTF-8"
        " text. A token that ends inside a character has bytes but no text."
    )


class ContentLogprob(LikelyToken):
    top_logprobs: list[LikelyToken]


class ChatLogprobs(Strict):
    content: list[ContentLogprob]
    refusal: None


class CompletionLogprobs(Strict):
    """With `echo`, the tokens of the prompt come first."""

    tokens: list[str]
    token_logprobs: list[float | None] = Field(
        description="Null for the first token of the prompt, and for a token that the target model"
        " did not verify."
    )
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class PromptDetails(Strict):
    cached_tokens: int = Field(description="Prompt tokens found in the cloud's prefix cache.")


class CompletionDetails(Strict):
    reasoning_tokens: int = Field(
        description="Tokens of thinking, with the tags around it. They count as completion tokens."
    )
    accepted_prediction_tokens: int = Field(
        description="Tokens of the answers that were drafted from `prediction`."
    )
    rejected_prediction_tokens: int = Field(
        description="Tokens drafted from `prediction` that are not in the answers. They are not"
        " part of `completion_tokens`."
    )


class UsageFigures(Strict):
    """Token counts. Each prompt counts once, even if it has several choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class RunningUsage(Strict):
    """Token counts of one choice up to this chunk."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class SpeculativeDecodingMetrics(Strict):
    """Statistics of drafting and verifying, in vLLM's form, over all choices. A step is one
    verification of drafts."""

    mean_acceptance_length: float = Field(
        description="Mean tokens per step: the accepted draft tokens and one token of the target"
        " model."
    )
    draft_acceptance_rate: Rate
    acceptance_histogram: list[int] = Field(
        description="Number of steps that accepted 0, 1, 2, ... draft tokens."
    )
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int = Field(description="Drafted tokens, verified or not.")
    num_spec_tokens: int = Field(description="Largest number of draft tokens verified in a step.")


class AnswerMetrics(Strict):
    """Present if drafts were verified."""

    speculative_decoding: SpeculativeDecodingMetrics


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
    content: str | None = Field(description="Null if the message contains only tool calls.")
    reasoning_content: str | None = Field(
        default=None, description="The model's thinking. Present if there is any."
    )
    tool_calls: list[ToolCall] | None = None


class AssistantDelta(Strict):
    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
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
    metrics: AnswerMetrics | None = None


class ChatCompletionChunk(_Frame):
    """Event of a streamed chat completion. If usage was requested, the last event has the usage and
    no choices. The last event has the metrics."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: UsageFigures | RunningUsage | None = None
    metrics: AnswerMetrics | None = None


class TextCompletion(_Frame):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: UsageFigures
    metrics: AnswerMetrics | None = None


class TextCompletionChunk(_Frame):
    """Event of a streamed text completion. If usage was requested, the last event has the usage and
    no choices. The last event has the metrics."""

    object: Literal["text_completion"]
    choices: list[CompletionChunkChoice]
    usage: UsageFigures | RunningUsage | None = None
    metrics: AnswerMetrics | None = None


class ServedPair(Strict):
    draft: str
    context_length: int
    presets: list[str]
    default_preset: str
    default_sampling: dict[str, float] = Field(
        description="Sampling settings of requests that name none, from the model's"
        " generation_config.json: `temperature`, `top_p`, `top_k`, `repetition_penalty`, as far as"
        " it has them. Others have OpenAI's defaults."
    )
    logprobs: list[str] = Field(description="Presets that support log-probabilities.")
    documents: list[str] = Field(description="Presets that answer from documents.")
    lossy: list[str] = Field(
        description="Presets whose answers do not follow the target's distribution exactly."
    )


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
