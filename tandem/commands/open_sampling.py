"""The sampling settings that no option sets: the model's own, from the suite that answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tandem.core.default_sampling import CHAT_TEMPERATURE, NAMES, DefaultSampling
from tandem.core.prompt import Turn
from tandem.generation.client import AggregatorClient
from tandem.generation.request import GenerationRequest
from tandem.net.access import ClientAccess
from tandem.net.status import Rejected
from tandem.wire.common_codec import default_sampling_from_proto

ASK_WITHIN_S = 6.0
"""A little longer than a suite waits for a cloud that does not answer."""


@dataclass(frozen=True, slots=True)
class OpenSampling:
    """`settings` for what was left open, by the names of request fields; `of_model`: the names of
    those that are the model's own. `known`: whether the suite could say what those are."""

    settings: Mapping[str, float | int]
    of_model: tuple[str, ...] = ()
    known: bool = True

    def line(self, request: GenerationRequest) -> str:
        """Return a line that tells a person what `request` is sampled with."""
        values = ", ".join(f"{name} {value:g}" for name, value in sampling_of(request).items())
        origin = f" (from the model: {', '.join(self.of_model)})" if self.of_model else ""
        if not self.known:
            origin = " (the suite did not say what the model recommends)"
        return f"sampling: {values}{origin}"


async def open_sampling(
    endpoint: str,
    request: GenerationRequest,
    options: Mapping[str, Any],
    access: ClientAccess | None,
) -> OpenSampling:
    """Return what the flags leave open. A suite that does not describe its model has no say: it
    will hardly answer the request either, and says then why."""
    left = [name for name in NAMES if options[name] is None]
    if options["generation_config"] == "none" or not left:
        return OpenSampling({})
    within_s = min(ASK_WITHIN_S, options["timeout"])
    defaults = await _defaults_at(endpoint, access, within_s)
    named = {} if defaults is None else defaults.named
    settings = {name: named[name] for name in left if name in named}
    of_model = tuple(settings)
    if "temperature" in left and _is_chat(request):
        settings.setdefault("temperature", CHAT_TEMPERATURE)
    return OpenSampling(settings, of_model, known=defaults is not None)


def sampling_of(request: GenerationRequest) -> dict[str, float | int]:
    """Return the settings of a request for which a model may have a default."""
    params = request.params
    return {
        name: getattr(params.sampling, name)
        if hasattr(params.sampling, name)
        else getattr(params.processors, name)
        for name in NAMES
    }


def _is_chat(request: GenerationRequest) -> bool:
    prompt = request.prompt
    return not isinstance(prompt, str) and isinstance(prompt[0], Turn)


async def _defaults_at(
    endpoint: str, access: ClientAccess | None, within_s: float
) -> DefaultSampling | None:
    """Return the default settings of the suite's target model; None if the suite, or its cloud,
    does not answer."""
    try:
        async with AggregatorClient(endpoint, access=access) as client:
            described = await client.describe(within_s)
    except Rejected:
        return None
    if not described.HasField("target"):
        return None
    return default_sampling_from_proto(described.target)
