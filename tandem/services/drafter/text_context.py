"""How long a prompt and its answer may be: as the target's context, whose text it is, wherever the
draft model can read the end of a text that is longer than its own."""

from __future__ import annotations

import time
from contextlib import suppress
from math import inf

from tandem.backends.interface import Engine
from tandem.backends.sliding_window import has_sliding_window
from tandem.core.prompt import Turn
from tandem.generation.request import GenerationRequest
from tandem.net.status import Rejected
from tandem.services.drafter.cloud.clouds import Clouds
from tandem.services.drafter.tokenising import PromptTokens
from tandem.telemetry.logging import get_logger
from tandem_api.common.v1 import sampling_pb2

log = get_logger(__name__)

DESCRIBE_TIMEOUT_S = 3.0
DESCRIBE_EVERY_S = 5.0
"""How often at most a request has a cloud described whose context is not known."""
TEMPLATE_TOKENS = 256
"""Of a chat template, at most. Otherwise a text has no more tokens than characters."""


class TextContext:
    """Of one drafter; `prompts` are held to it as well."""

    def __init__(self, engine: Engine, clouds: Clouds, prompts: PromptTokens) -> None:
        self._engine = engine
        self._clouds = clouds
        self._prompts = prompts
        self._target = 0
        """Tokens, of the cloud that was described last; 0: not known."""
        self._described_s = -inf

    def tokens(self, whole: bool = False, tree_nodes: int = 0) -> int:
        """Return the most tokens of a prompt and its answer: the target's. Where that is not known,
        or the draft model has to read the `whole` text, the draft model's."""
        mine = self._engine.context_length
        theirs = self._target or mine
        end_suffices = not whole and has_sliding_window(self._engine, tree_nodes)
        return theirs if end_suffices else min(mine, theirs)

    async def learn_for(self, request: GenerationRequest) -> None:
        """Ask the cloud for its context, if prompt and answer might not fit the draft model's."""
        turns = (
            request.prompt
            if isinstance(request.prompt, str)
            else [item.content if isinstance(item, Turn) else " " for item in request.prompt]
        )
        most = sum(map(len, turns)) + len(request.suffix) + len(request.tools) + TEMPLATE_TOKENS
        if most + request.params.max_tokens > self._engine.context_length:
            await self.learn()

    async def learn(self) -> None:
        """Ask the cloud for its context, unless it is known or was asked for just now."""
        now = time.monotonic()
        if self._target or now < self._described_s + DESCRIBE_EVERY_S:
            return
        self._described_s = now
        with suppress(Rejected):  # the request will meet the same cloud
            await self.describe()

    async def describe(self) -> sampling_pb2.ModelDescription:
        """Describe the target. Raises Rejected as `Clouds.describe` does."""
        target = await self._clouds.describe(DESCRIBE_TIMEOUT_S)
        mine, theirs = self._engine.context_length, target.context_length
        if theirs > mine and theirs != self._target:
            log.info("long texts are read from the end", reads=mine, target_reads=theirs)
        self._target = theirs
        self._prompts.context_length = self.tokens()
        return target
