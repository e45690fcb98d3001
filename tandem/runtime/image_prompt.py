"""The images of one prompt on their way into a session; the same at the edge and in the cloud."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tandem.backends.interface import Engine, Session, Vision
from tandem.core.errors import InvalidArgument
from tandem.core.prompt import FIELD, check_image_bytes, check_places, place_images
from tandem.runtime.engine_thread import EngineThread


class ImagePrompt:
    """Images that an engine can see, checked by their headers. Raises InvalidArgument("images") for
    a model without vision, and for images that are too many, too large or no images."""

    def __init__(self, engine: Engine, images: Sequence[bytes]) -> None:
        self._images = tuple(images)
        self._vision: Vision | None = None
        self._counts: list[int] = []
        if images:
            check_image_bytes(images)
            self._vision = engine.vision
            if self._vision is None:
                raise InvalidArgument(FIELD, f"the model {engine.model_name} reads text only")
            self._counts = self._vision.tokens_per_image(images)

    def placed(self, prompt_ids: Sequence[int]) -> tuple[int, ...]:
        """Return the prompt with as many placeholders as the images have tokens."""
        if self._vision is None:
            return tuple(prompt_ids)
        vision = self._vision
        return place_images(prompt_ids, vision.image_token_id, vision.around, self._counts)

    def check(self, prompt_ids: Sequence[int]) -> None:
        """Reject a prompt in which another model has placed these images differently."""
        if self._vision is not None:
            check_places(prompt_ids, self._vision.image_token_id, self._counts)

    async def show(self, thread: EngineThread, session: Session, prompt_ids: Sequence[int]) -> None:
        """Attach the images to a fresh session, once, and forget them; decoded on another
        thread."""
        if self._vision is None:
            return
        vision = self._vision
        images, self._images = self._images, ()
        pixels = await asyncio.to_thread(vision.prepare, images)
        await thread.call(lambda: vision.attach(session, prompt_ids, pixels))
