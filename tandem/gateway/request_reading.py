"""A checked body as the requests that the suite is asked: one for each choice. Invariant: equal
bodies with a seed make equal requests; choice 0 is the one that n = 1 would give."""

import base64
import binascii
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tandem.core.default_sampling import NO_DEFAULTS, DefaultSampling
from tandem.core.errors import InvalidArgument
from tandem.core.hashing import hash_words
from tandem.core.processors import Grammar
from tandem.core.prompt import MAX_IMAGES, Prompt, Turn
from tandem.gateway.base_models import UINT32
from tandem.gateway.errors import invalid, unsupported
from tandem.gateway.messages import ImagePart, Message, RefusalPart, TextPart
from tandem.gateway.schema import (
    ChatCompletionRequest,
    CommonParameters,
    CompletionRequest,
    TandemOptions,
)
from tandem.generation.request import (
    CLOUD_ALONE_PRESET,
    DEFAULT_PRESET,
    RAG_PRESET,
    GenerationRequest,
)
from tandem.generation.request_fields import given_fields
from tandem.text.families import PLAIN, ModelFamily
from tandem.two_sided.interface import AGGREGATION_PRESETS

SEED_BITS = 53
"""Seeds that are made up stay below 2^53, which every reader of JSON keeps exactly."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of one HTTP request. `max_tokens`: of an answer; 0: what the context leaves.
    `max_choices`: answers. `unstated_tokens`: of an answer to a caller that sets no limit.
    `default_sampling`: of a caller that names no settings."""

    max_tokens: int = 0
    max_choices: int = 8
    unstated_tokens: int = 4096
    default_sampling: DefaultSampling = NO_DEFAULTS


def chat_requests(
    body: ChatCompletionRequest, limits: RequestLimits, family: ModelFamily = PLAIN
) -> list[GenerationRequest]:
    """Return a chat's requests, one for each choice. `family`: the model's, which may write tool
    calls in its own way. Raises ApiError or InvalidArgument for what no suite could answer."""
    body.check()
    turns, images = conversation(body.messages)
    offered = [tool.model_dump(exclude_none=True) for tool in body.offered]
    variables = body.template_variables
    tools = json.dumps(offered) if offered else ""
    template = json.dumps(variables) if variables else ""
    grammar = body.named_grammar(family)
    requests = _requests(body, [turns], limits, grammar=grammar, images=images)
    return [replace(each, tools=tools, chat_template_kwargs=template) for each in requests]


def conversation(messages: Sequence[Message]) -> tuple[tuple[Turn, ...], tuple[bytes, ...]]:
    """Return the turns, and the images of the last one. Raises ApiError."""
    turns = tuple(_turn(index, message) for index, message in enumerate(messages))
    return turns, _images(messages)


def completion_requests(body: CompletionRequest, limits: RequestLimits) -> list[GenerationRequest]:
    """Return the requests for the choices of each prompt in turn. Raises as `chat_requests`."""
    body.check()
    return _requests(body, body.prompt, limits, grammar=body.named_grammar())


def _requests(
    body: CommonParameters,
    prompts: Sequence[Prompt],
    limits: RequestLimits,
    *,
    grammar: tuple[str, Grammar] | None,
    images: tuple[bytes, ...] = (),
) -> list[GenerationRequest]:
    n = body.n or 1
    if (choices := n * len(prompts)) > limits.max_choices:
        raise invalid("n", f"n: {choices} choices in total, the maximum is {limits.max_choices}")
    most = limits.max_tokens or UINT32
    if (body.max_output_tokens or 0) > most:
        named = body.limit_name
        raise invalid(named, f"{named}: must be at most {most}, got {body.max_output_tokens}")
    options = body.tandem
    asked_seed = -1 if body.seed is None else body.seed
    seed = secrets.randbits(SEED_BITS) if asked_seed == -1 else asked_seed
    converted = {"top_k": _top_k(body), "prediction": body.predicted_text}
    if body.store is False:
        converted["no_memory"] = True
    given = limits.default_sampling.named | given_fields(body.given | dict(options) | converted)
    given["seed"] = seed
    given["max_tokens"] = body.max_output_tokens or min(limits.unstated_tokens, most)
    common = GenerationRequest(prompts[0]).with_fields(
        **given,
        preset=_preset_of(body),
        overrides=_overrides(options),
        stop=body.stops,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        logit_bias=body.biases,
        banned_token_ids=tuple(body.banned_token_ids or ()),
        allowed_token_ids=tuple(body.allowed_token_ids or ()),
        grammar=None if grammar is None else grammar[1],
        images=images,
        logprobs=body.num_top_logprobs is not None,
        top_logprobs=body.num_top_logprobs or 0,
        prompt_logprobs=body.reads_prompt,
        rounds=options.rounds,
        token_texts=options.token_texts or options.even_stream,
        spell_special_tokens=body.skip_special_tokens is False,
    )
    if common.spell_special_tokens and common.from_two_sides:
        words = "presets that answer from documents leave special tokens out; send true"
        raise unsupported("skip_special_tokens", words)
    requests = [
        common.with_fields(prompt=prompt, seed=choice_seed(seed, index))
        for prompt in prompts
        for index in range(n)
    ]
    common.validate()  # what needs no model is refused before anything is reserved
    return requests


def choice_seed(seed: int, index: int) -> int:
    """Return the seed of choice `index` of a request with `seed`."""
    return seed if index == 0 else hash_words(seed, index) >> (64 - SEED_BITS)


def _top_k(body: CommonParameters) -> int | None:
    """Return `top_k`, or None if it is not given. OpenAI's API has none; vLLM's, where -1 means
    all, may be given instead of the one in `tandem`."""
    in_extension = body.tandem.top_k
    given = body.top_k
    if given is None:
        return in_extension if "top_k" in body.tandem.model_fields_set else None
    if in_extension and max(0, given) != in_extension:
        raise invalid("top_k", "top_k: set either top_k or tandem.top_k, not both")
    return max(0, given)


def _preset_of(body: CommonParameters) -> str:
    """Return the preset's name. Without any options, a prompt that is only to be read goes past the
    draft model, which would compute it for a single token; the text is the same."""
    options = body.tandem
    if body.reads_prompt and body.max_output_tokens == 1 and options == TandemOptions():
        return CLOUD_ALONE_PRESET
    return _preset(options)


def _preset(options: TandemOptions) -> str:
    """Return the preset's name. Raises ApiError if `rag` contradicts it."""
    name = options.preset or (RAG_PRESET if options.rag else DEFAULT_PRESET)
    from_documents = name in AGGREGATION_PRESETS
    if options.rag is True and not from_documents:
        others = ", ".join(AGGREGATION_PRESETS)
        raise invalid("tandem.preset", f"preset: '{name}' uses no documents; these do: {others}")
    if options.rag is False and from_documents:
        raise invalid("tandem.rag", f"rag: the preset '{name}' answers from documents")
    return name


def _overrides(options: TandemOptions) -> tuple[str, ...]:
    """Return the overrides, and those that other options stand for."""
    length = options.draft_length
    return (*([] if length is None else [f"draft_length={length}"]), *options.overrides)


def _turn(index: int, message: Message) -> Turn:
    # Templates know the role by its older name.
    role = "system" if message.role == "developer" else message.role
    if (message.role == "tool") != (message.tool_call_id is not None):
        raise invalid(
            f"messages.{index}.tool_call_id",
            "tool_call_id: is required for the role tool, and only allowed there",
        )
    if message.tool_calls is not None and message.role != "assistant":
        raise invalid(
            f"messages.{index}.tool_calls", "tool_calls: only allowed for the role assistant"
        )
    calls = [call.model_dump() for call in message.tool_calls or ()]
    return Turn(
        role,
        _text(index, message),
        tool_calls=json.dumps(calls) if calls else "",
        tool_call_id=message.tool_call_id or "",
        reasoning_content=message.thoughts if message.role == "assistant" else "",
    )


def _text(index: int, message: Message) -> str:
    """Return the text of a message. An assistant's may have none, such as one that only called
    tools."""
    content = message.content
    param = f"messages.{index}.content"
    if content is None:
        if message.role == "assistant":
            return ""
        raise invalid(param, "content: must be a string or a list of parts; an empty string is one")
    if isinstance(content, str):
        return content
    if message.role != "user" and any(isinstance(part, ImagePart) for part in content):
        raise invalid(
            param, "content: images are only allowed in the last message with the role user"
        )
    return "".join(part.text for part in content if isinstance(part, TextPart | RefusalPart))


def _images(messages: Sequence[Message]) -> tuple[bytes, ...]:
    """Return the images of the user's last turn; the template puts them before its text."""
    users = [index for index, message in enumerate(messages) if message.role == "user"]
    images: list[bytes] = []
    for index, message in enumerate(messages):
        for place, part in enumerate(message.parts):
            if not isinstance(part, ImagePart):
                continue
            name = f"messages.{index}.content.{place}"
            if index != users[-1]:
                words = (
                    "images: only allowed in the last message of the user; leave earlier ones out"
                )
                raise invalid(name, words)
            images.append(_image(part.url, name))
    if len(images) > MAX_IMAGES:
        raise InvalidArgument("images", f"{len(images)} images; at most {MAX_IMAGES}")
    return tuple(images)


def _image(url: str, name: str) -> bytes:
    """Return the bytes of a data URL; nothing is fetched for a caller."""
    head, comma, encoded = url.partition(",")
    if not (head.startswith("data:image/") and head.endswith(";base64") and comma):
        raise invalid(
            name, "image_url: must be data:image/…;base64,…; this server does not fetch URLs"
        )
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise invalid(name, "image_url: is not valid base64") from None
