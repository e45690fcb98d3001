"""A checked body as the requests that the suite is asked: one for each choice. Invariant: equal
bodies with a seed make equal requests; choice 0 is the one that n = 1 would give."""

import base64
import binascii
import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tandem.core.errors import InvalidArgument
from tandem.core.hashing import hash_words
from tandem.core.prompt import MAX_IMAGES, Prompt, Turn
from tandem.core.tokens import check_token_ids
from tandem.gateway.body_parsing import UINT32
from tandem.gateway.errors import invalid, unsupported
from tandem.gateway.schema import (
    ChatCompletionRequest,
    CommonParameters,
    CompletionRequest,
    ImagePart,
    Message,
    TandemOptions,
    TextPart,
)
from tandem.generation.request import DEFAULT_PRESET, RAG_PRESET, GenerationRequest
from tandem.generation.request_fields import given_fields
from tandem.specdec.logprobs import MAX_TOP_LOGPROBS
from tandem.specdec.overrides import Override, parse_overrides
from tandem.two_sided.interface import AGGREGATION_PRESETS

SEED_BITS = 53
"""Seeds that are made up stay below 2^53, which every reader of JSON keeps exactly."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of one HTTP request: tokens per answer, and answers."""

    max_tokens: int = 4096
    max_choices: int = 8


def chat_requests(body: ChatCompletionRequest, limits: RequestLimits) -> list[GenerationRequest]:
    """Raises ApiError or InvalidArgument for what no suite could answer."""
    body.check()
    if (body.num_top_logprobs or 0) > MAX_TOP_LOGPROBS:
        raise unsupported("top_logprobs", f"the maximum is {MAX_TOP_LOGPROBS}")
    turns, images = conversation(body.messages)
    offered = [tool.model_dump(exclude_none=True) for tool in body.offered]
    tools = json.dumps(offered) if offered else ""
    return [replace(each, tools=tools) for each in _requests(body, [turns], limits, images)]


def conversation(messages: Sequence[Message]) -> tuple[tuple[Turn, ...], tuple[bytes, ...]]:
    """Turns and the images of the last one. Raises ApiError."""
    turns = tuple(_turn(index, message) for index, message in enumerate(messages))
    return turns, _images(messages)


def completion_requests(body: CompletionRequest, limits: RequestLimits) -> list[GenerationRequest]:
    """The choices of each prompt in turn. Raises as `chat_requests`."""
    body.check()
    prompt = body.prompt
    several = isinstance(prompt, list) and not all(isinstance(item, int) for item in prompt[:1])
    _check_choices(body, len(prompt) if several else 1, limits)
    return _requests(body, _prompts(prompt), limits)


def _requests(
    body: CommonParameters,
    prompts: Sequence[Prompt],
    limits: RequestLimits,
    images: tuple[bytes, ...] = (),
) -> list[GenerationRequest]:
    n = body.n or 1
    _check_choices(body, len(prompts), limits)
    if (body.max_output_tokens or 0) > limits.max_tokens:
        named = "max_tokens" if body.max_tokens is not None else "max_completion_tokens"
        raise invalid(
            named, f"{named}: must be at most {limits.max_tokens}, got {body.max_output_tokens}"
        )
    options = body.tandem
    seed = secrets.randbits(SEED_BITS) if body.seed is None else body.seed
    grammar = body.named_grammar()
    own_form = {"top_k": _top_k(body), "prediction": body.predicted_text}
    given = given_fields(dict(body) | dict(options) | own_form)
    given["max_tokens"] = body.max_output_tokens or limits.max_tokens
    common = GenerationRequest(prompts[0]).with_fields(
        **given,
        preset=_preset(options),
        overrides=(*_overrides(options), *parse_overrides(options.overrides)),
        stop=body.stops,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        logit_bias=body.biases,
        banned_token_ids=tuple(body.banned_token_ids or ()),
        allowed_token_ids=tuple(body.allowed_token_ids or ()),
        grammar=None if grammar is None else grammar[1],
        images=images,
        logprobs=body.num_top_logprobs is not None,
        top_logprobs=body.num_top_logprobs or 0,
        rounds=options.rounds,
        token_texts=options.token_texts or options.even_stream,
    )
    requests = [
        common.with_fields(prompt=prompt, seed=choice_seed(seed, index))
        for prompt in prompts
        for index in range(n)
    ]
    common.validate()  # what needs no model is refused before anything is reserved
    return requests


def _check_choices(body: CommonParameters, prompts: int, limits: RequestLimits) -> None:
    """Before anything is done for each of them."""
    choices = (body.n or 1) * prompts
    if choices > limits.max_choices:
        raise invalid("n", f"n: {choices} choices in total, the maximum is {limits.max_choices}")


def choice_seed(seed: int, index: int) -> int:
    """The seed of choice `index` of a request with `seed`."""
    return seed if index == 0 else hash_words(seed, index) >> (64 - SEED_BITS)


def _top_k(body: CommonParameters) -> int:
    """OpenAI's API has none; vLLM's, with -1 for all, stands beside the one in `tandem`."""
    own, given = body.tandem.top_k, body.top_k
    if given is None:
        return own
    if own and max(0, given) != own:
        raise invalid("top_k", "top_k: set either top_k or tandem.top_k, not both")
    return max(0, given)


def _preset(options: TandemOptions) -> str:
    """The preset by name; whether it answers from documents must be what `rag` says."""
    name = options.preset or (RAG_PRESET if options.rag else DEFAULT_PRESET)
    from_documents = name in AGGREGATION_PRESETS
    if options.rag is True and not from_documents:
        others = ", ".join(AGGREGATION_PRESETS)
        raise invalid("tandem.preset", f"preset: '{name}' uses no documents; these do: {others}")
    if options.rag is False and from_documents:
        raise invalid("tandem.rag", f"rag: the preset '{name}' answers from documents")
    if options.objective is not None and from_documents:
        raise unsupported("tandem.objective", "document presets do not use an objective")
    return name


def _overrides(options: TandemOptions) -> Iterator[Override]:
    """Options that stand for single choices of the preset."""
    if options.draft_length is not None:
        yield Override("draft_length", options.draft_length)
    if options.objective is not None:
        yield Override("objective", options.objective)


def _prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> list[Prompt]:
    """One or several prompts, each text or token ids."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise invalid("prompt", "prompt: is empty")
    if all(isinstance(item, int) for item in prompt):
        return [_ids(prompt)]
    return [item if isinstance(item, str) else _ids(item) for item in prompt]


def _ids(items: object) -> tuple[int, ...]:
    assert isinstance(items, list)
    check_token_ids(items, UINT32 + 1, "prompt")
    return tuple(items)


def _turn(index: int, message: Message) -> Turn:
    # Templates know the role by its older name.
    role = "system" if message.role == "developer" else message.role
    if (message.role == "tool") != (message.tool_call_id is not None):
        raise invalid(
            f"messages.{index}.tool_call_id",
            "tool_call_id: is required for the role tool, and only allowed there",
        )
    if message.tool_calls is not None:
        return _calling_turn(index, message)
    if message.content is None:
        raise invalid(f"messages.{index}.content", "content: Field required")
    if isinstance(message.content, str):
        return Turn(role, message.content, tool_call_id=message.tool_call_id or "")
    texts = [part.text for part in message.content if isinstance(part, TextPart)]
    if len(texts) < len(message.content) and role != "user":
        raise invalid(f"messages.{index}.content", "images: only allowed in messages of the user")
    return Turn(role, "".join(texts), tool_call_id=message.tool_call_id or "")


def _calling_turn(index: int, message: Message) -> Turn:
    if message.role != "assistant":
        raise invalid(
            f"messages.{index}.tool_calls", "tool_calls: only allowed for the role assistant"
        )
    calls = [call.model_dump() for call in message.tool_calls or ()]
    if not isinstance(message.content, str | None):
        raise invalid(f"messages.{index}.content", "content: must be a string if tool_calls is set")
    return Turn("assistant", message.content or "", json.dumps(calls) if calls else "")


def _images(messages: Sequence[Message]) -> tuple[bytes, ...]:
    """Return the images of the user's last turn; the template puts them before its text."""
    users = [index for index, message in enumerate(messages) if message.role == "user"]
    found: list[bytes] = []
    for index, message in enumerate(messages):
        for place, part in enumerate(message.content or ()):
            if not isinstance(part, ImagePart):
                continue
            name = f"messages.{index}.content.{place}"
            if index != users[-1]:
                raise invalid(name, "images: only allowed in the last message of the user")
            found.append(_image(part.image_url.url, name))
    if len(found) > MAX_IMAGES:
        raise InvalidArgument("images", f"{len(found)} images; at most {MAX_IMAGES}")
    return tuple(found)


def _image(url: str, name: str) -> bytes:
    """The bytes of a data URL; nothing is fetched for a caller."""
    head, comma, encoded = url.partition(",")
    if not (head.startswith("data:image/") and head.endswith(";base64") and comma):
        raise invalid(
            name, "image_url: must be data:image/…;base64,…; this server does not fetch URLs"
        )
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise invalid(name, "image_url: is not valid base64") from None
