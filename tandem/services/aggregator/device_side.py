"""Answers from documents on two sides, at the device: a caller's request and the device's
own documents for it."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from tandem.core.errors import InvalidArgument
from tandem.generation.request import GenerationRequest
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.side_resources import SideResources
from tandem.settings import variable_of
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.tracing import Sent
from tandem.two_sided.interface import ContextDocument, DeviceAnswers, DeviceRequest
from tandem_api.common.v1 import generation_pb2 as pb


class DeviceSide:
    """The device's part in all its answers; used on the event loop only."""

    def __init__(
        self,
        settings: AggregatorSettings,
        metrics: Metrics,
        resources: SideResources,
        target_name: Callable[[], str],
    ) -> None:
        """Begin to serve; `resources` stay the caller's to close. `target_name` returns what the
        target model is called, as far as that is known."""
        self._settings = settings
        self._resources = resources
        self._answers = DeviceAnswers(
            decoder=resources.decoder,
            cloud=resources.cloud,
            profiling=resources.profiling,
            metrics=metrics,
            target_name=target_name,
            give_up_after_s=settings.give_up_after_s,
        )

    async def close(self) -> None:
        await self._answers.close()

    async def answers(
        self,
        request: GenerationRequest,
        timeout_s: float,
        cancel: Callable[[], Awaitable[None]] | None = None,
        headers: Sent = None,
        owner: str = "",
    ) -> AsyncGenerator[pb.GenerateResponse]:
        """Yield the messages for the caller; closing the generator cancels the request on both
        sides. `owner`: whose documents may be used, besides the operator's and shared ones."""
        preset = request.composed_aggregation()
        if self._resources.cloud is None and preset.needs_cloud:
            why = f"{preset.name} needs documents in the cloud, but this suite has none"
            why += f"; use 'tandem up --rag', or set {variable_of('cloud')} to an aggregator"
            raise InvalidArgument("preset", why)

        async def search(query: str, count: int) -> tuple[ContextDocument, ...]:
            return await self._resources.retrieval.search(query, count, headers, owner)

        asked = DeviceRequest(
            prompt=request.prompt,
            preset=preset,
            query=request.query or _text_of(request),
            documents=request.documents or self._settings.documents,
            search=search,
            params=request.params,
            stop=request.stop,
            token_texts=request.token_texts,
            lost_cloud=request.lost_cloud,
            timeout_s=timeout_s,
            headers=headers,
            tenant=request.tenant,
            chat_template_kwargs=request.chat_template_kwargs,
        )
        async with aclosing(self._answers.answer(asked, cancel)) as answers:
            async for answer in answers:
                yield answer


def _text_of(request: GenerationRequest) -> str:
    """Return the default search query: the prompt, or the last turn."""
    if isinstance(request.prompt, str):
        return request.prompt
    last = request.prompt[-1] if request.prompt else ""
    if isinstance(last, int | str):
        raise InvalidArgument("query", "is required if the prompt is token ids")
    return last.content
