"""A caller's request for an answer from documents on two sides, and the device's own documents for
it."""

from functools import partial

from tandem.core.errors import InvalidArgument
from tandem.generation.request import GenerationRequest
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.side_resources import SideResources
from tandem.settings import variable_of
from tandem.telemetry.tracing import Sent
from tandem.two_sided.interface import DeviceRequest


def device_request(
    request: GenerationRequest,
    *,
    settings: AggregatorSettings,
    resources: SideResources,
    timeout_s: float,
    headers: Sent = None,
    owner: str = "",
) -> DeviceRequest:
    """Return the request for the device's part. `owner`: whose documents may be used, besides the
    operator's and shared ones. Raises InvalidArgument."""
    preset = request.composed_aggregation()
    if resources.cloud is None and preset.needs_cloud:
        why = f"{preset.name} needs documents in the cloud, but this suite has none"
        why += f"; use 'tandem up --rag', or set {variable_of('cloud')} to an aggregator"
        raise InvalidArgument("preset", why)
    return DeviceRequest(
        prompt=request.prompt,
        preset=preset,
        query=request.query or _text_of(request),
        documents=request.documents or settings.documents,
        search=partial(resources.retrieval.search, owner=owner),
        params=request.params,
        stop=request.stop,
        token_texts=request.token_texts,
        lost_cloud=request.lost_cloud,
        timeout_s=timeout_s,
        headers=headers,
        tenant=request.tenant,
        chat_template_kwargs=request.chat_template_kwargs,
    )


def _text_of(request: GenerationRequest) -> str:
    """Return the default search query: the prompt, or the last turn."""
    if isinstance(request.prompt, str):
        return request.prompt
    last = request.prompt[-1] if request.prompt else ""
    if isinstance(last, int | str):
        raise InvalidArgument("query", "is required if the prompt is token ids")
    return last.content
