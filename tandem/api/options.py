"""What a caller asks for: prompt, sampling and method, as a request that was checked. Invariant:
what no model is needed to refuse is refused here, as InvalidArgument naming the option."""

import json
import secrets
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from operator import attrgetter
from typing import Annotated, Any, cast, get_type_hints

from tandem.api.argument_types import as_type
from tandem.core.errors import InvalidArgument, unknown_name
from tandem.core.processors import Grammar, GrammarKind
from tandem.core.prompt import Prompt, Turn
from tandem.generation.request import (
    DEFAULT_PRESET,
    LONGEST_ANSWER_S,
    RAG_PRESET,
    GenerationRequest,
)
from tandem.generation.request_fields import RequestFields, given_fields
from tandem.specdec.overrides import field_names, with_overrides
from tandem.specdec.presets import PRESETS, Preset
from tandem.two_sided.interface import AGGREGATION_PRESETS, AggregationPreset

Choice = bool | int | float | str
_CHAIN = "coupled"
"""What a preset is told apart from that has no listed name."""
SEED_BELOW = 2**53
"""So that every JSON reader holds a seed exactly."""


Message = Mapping[str, str]
"""One turn of a conversation, as in OpenAI's API: `role` and `content`."""


class GenerationOptions(RequestFields, total=False):
    """Keyword arguments of `generate`, `stream` and `chat`. All may be left out, and so is one that
    is None. Those of the table of request fields stand in `tandem/generation/request_fields.py`."""

    preset: Annotated[
        str | Preset | AggregationPreset,
        "Decoding method: a name, or a method made by `tandem.preset`. Default: `auto`, or"
        " `dragon-coupled` if `rag` is true.",
    ]
    overrides: Annotated[
        Mapping[str, Choice],
        'Settings of the preset to override, for example `{"window": 8}`.',
    ]
    logit_bias: Annotated[Mapping[int, float], "Values to add to logits, by token id."]
    banned_token_ids: Annotated[Sequence[int], "Token ids that are never generated."]
    allowed_token_ids: Annotated[Sequence[int], "Only these token ids may be generated."]
    json_schema: Annotated[str | Mapping[str, Any], "JSON schema that the answer must match."]
    regex: Annotated[str, "Regular expression that the whole answer must match."]
    grammar: Annotated[str, "Grammar in Lark syntax that the answer must match."]
    stop: Annotated[str | Sequence[str], "Stop before any of these strings."]
    stop_token_ids: Annotated[
        Sequence[int],
        "Stop after any of these tokens, in addition to the model's end-of-text tokens.",
    ]
    rag: Annotated[bool, "Answer from the documents on the device and in the cloud."]
    images: Annotated[Sequence[bytes], "PNG, JPEG or WebP images, for vision models."]
    logprobs: Annotated[bool, "Return the log-probability of each token."]
    top_logprobs: Annotated[
        int,
        "Also return this many of the most likely tokens at each position, at most 5. Requires"
        " `logprobs`.",
    ]
    timeout_s: Annotated[float, "Maximum seconds for the whole answer."]


DEFAULTS: GenerationOptions = {
    "overrides": {},
    "logit_bias": {},
    "banned_token_ids": (),
    "allowed_token_ids": (),
    "stop": (),
    "stop_token_ids": (),
    "rag": False,
    "images": (),
    "logprobs": False,
    "top_logprobs": 0,
    "timeout_s": LONGEST_ANSWER_S,
}
"""Of the options that are not in the table; those without one are off."""


def preset(base: str, /, **choices: Choice) -> Preset | AggregationPreset:
    """Return a new method: the preset `base` with other settings, as in
    `preset("coupled", window=8)`. Raises InvalidArgument for an unknown preset or field, and for
    settings that do not fit together."""
    as_type("preset", str, base)
    as_type("overrides", Mapping[str, Choice], choices)
    known: Mapping[str, Preset | AggregationPreset] = {**PRESETS, **AGGREGATION_PRESETS}
    if base not in known:
        raise unknown_name("preset", base, known)
    composed = with_overrides(known[base], _overrides(choices))
    composed.validate()
    return composed


def given_options(options: GenerationOptions) -> GenerationOptions:
    """Return the options that are not None, each of its type, with the defaults of others. Raises
    InvalidArgument naming the option, and TypeError for one that does not exist, as Python does for
    any other function."""
    hints = get_type_hints(GenerationOptions)
    for name in options:
        if name not in hints:
            close = get_close_matches(name, sorted(hints), n=1)
            meant = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(hints))}"
            raise TypeError(f"unexpected keyword argument {name!r}; {meant}")
    given = {
        name: as_type(name, hints[name], value)
        for name, value in options.items()
        if value is not None
    }
    return cast("GenerationOptions", {**DEFAULTS, **given})


def conversation(messages: str | Sequence[Message]) -> Sequence[Message]:
    """Return the turns of a conversation; of a text, one turn of the user. Raises
    InvalidArgument("messages")."""
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    turns: Sequence[Message] = as_type("messages", Sequence[Message], messages)
    if not turns:
        raise InvalidArgument("messages", "must not be empty")
    return turns


def request_of(
    prompt: str | Sequence[int] | Sequence[Message], options: GenerationOptions
) -> GenerationRequest:
    """Return the request; one without a seed gets one. Raises InvalidArgument naming the option."""
    options = {**DEFAULTS, **options}
    name, choices = _method(options)
    stop = options["stop"]
    drawn = {"seed": secrets.randbelow(SEED_BELOW)}
    request = GenerationRequest(_prompt(prompt)).with_fields(
        **drawn | given_fields(options),
        preset=name,
        overrides=(*choices, *_overrides(options["overrides"])),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=tuple(options["stop_token_ids"]),
        logit_bias=tuple(options["logit_bias"].items()),
        banned_token_ids=tuple(options["banned_token_ids"]),
        allowed_token_ids=tuple(options["allowed_token_ids"]),
        grammar=_grammar(options),
        images=tuple(options["images"]),
        logprobs=options["logprobs"],
        top_logprobs=options["top_logprobs"],
    )
    request.validate(rag=options["rag"])
    return request


def _prompt(prompt: Any) -> Prompt:
    given = as_type("prompt", str | Sequence[int] | Sequence[Message], prompt)
    if isinstance(given, str):
        return given
    if not given:
        raise InvalidArgument("prompt", "must not be empty")
    if not isinstance(given[0], Mapping):
        return tuple(given)
    try:
        return tuple(Turn(turn["role"], turn["content"]) for turn in given)
    except KeyError as error:
        raise InvalidArgument("prompt", f"a message has no {error}") from None


def _grammar(options: GenerationOptions) -> Grammar | None:
    schema = options.get("json_schema")
    text = schema if schema is None or isinstance(schema, str) else json.dumps(schema)
    sources = {
        "json_schema": (GrammarKind.JSON_SCHEMA, text),
        "regex": (GrammarKind.REGEX, options.get("regex")),
        "grammar": (GrammarKind.LARK, options.get("grammar")),
    }
    given = [(name, kind, source) for name, (kind, source) in sources.items() if source is not None]
    if len(given) > 1:
        raise InvalidArgument(given[1][0], f"set either {given[0][0]} or {given[1][0]}, not both")
    return Grammar(given[0][1], given[0][2]) if given else None


def _method(options: GenerationOptions) -> tuple[str, tuple[str, ...]]:
    """Return the name of a listed preset, and the overrides that turn it into the one that
    `options` ask for."""
    chosen = options.get("preset")
    if chosen is None:
        return (RAG_PRESET if options.get("rag") else DEFAULT_PRESET), ()
    if isinstance(chosen, str):
        return chosen, ()
    if isinstance(chosen, AggregationPreset):
        base = AGGREGATION_PRESETS.get(chosen.name, AGGREGATION_PRESETS[RAG_PRESET])
        return base.name, _differences(chosen, base)
    like = PRESETS.get(chosen.name, PRESETS[_CHAIN])
    if like.expansion != chosen.expansion:
        like = PRESETS[_CHAIN]  # which any expansion can be given
    if like.expansion or not chosen.expansion:
        return like.name, _differences(chosen, like)
    expansion = "expansion=" + ",".join(map(str, chosen.expansion))
    return like.name, (expansion, *_differences(chosen, like.with_expansion(chosen.expansion)))


def _differences(chosen: Any, base: Any) -> tuple[str, ...]:
    fields = {name: attrgetter(name) for name in field_names(chosen)}
    return _overrides({name: of(chosen) for name, of in fields.items() if of(chosen) != of(base)})


def _overrides(choices: Mapping[str, Choice]) -> tuple[str, ...]:
    """Return the choices as overrides, which say what they do on the command line."""
    return tuple(f"{name}={value}" for name, value in choices.items())
