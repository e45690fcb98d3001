"""Which model is on offer, and whether it can be reached now.

Invariant: however many ask at once, the suite is asked once, and not more often than every
`MAX_AGE_S`. Must not import grpc or torch.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from typing import Any

from tandem import __version__
from tandem.core.errors import Unavailable
from tandem.gateway.errors import ApiError
from tandem.gateway.suite import Description, Suite
from tandem.rpc.generation import DEFAULT_PRESET

MAX_AGE_S = 2.0


class Catalog:
    """What the suite says of itself, remembered."""

    def __init__(self, suite: Suite) -> None:
        self._suite = suite
        self._asking = asyncio.Lock()
        self._known: Description | None = None
        self._known_at_s = 0.0
        self._created = int(time.time())

    async def reach(self) -> Description:
        """The suite with its cloud, as it was at most `MAX_AGE_S` ago. Raises Unavailable, or what
        `describe` raises, when one of them cannot be reached."""
        if self._suite.leaving:
            raise Unavailable("the aggregator is stopping")
        async with self._asking:
            if self._known is None or time.monotonic() - self._known_at_s > MAX_AGE_S:
                described = await self._suite.describe()
                if not described.target.model_name:
                    raise Unavailable(described.cloud_error or "the cloud cannot be reached")
                self._known, self._known_at_s = described, time.monotonic()
            return self._known

    async def fingerprint(self, model: str) -> str:
        """Of the pair that serves `model`; ApiError 404 for a model that is not here.

        A model that was here is taken to be: a caller's first token does not wait for a question.
        """
        known = self._known
        if known is None or known.target.model_name != model:
            known = await self.reach()
        if known.target.model_name != model:
            served = known.target.model_name
            raise ApiError(
                404,
                f"The model '{model}' does not exist here; '{served}' does.",
                param="model",
                code="model_not_found",
            )
        pair = (__version__, known.draft.model_name, model, known.target.vocabulary_hash)
        return "fp_" + hashlib.sha256("\n".join(pair).encode()).hexdigest()[:12]

    async def card(self) -> dict[str, Any]:
        """The one model, as /v1/models lists it."""
        known = await self.reach()
        return {
            "id": known.target.model_name,
            "object": "model",
            "created": self._created,
            "owned_by": "tandem",
            "tandem": {
                "draft": known.draft.model_name,
                "context_length": known.draft.context_length,
                "presets": list(known.presets),
                "default_preset": DEFAULT_PRESET,
            },
        }
