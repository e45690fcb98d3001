"""A prompt as the `oneof` that requests to a drafter and to a decoder have in common.

Must not import torch.
"""

from __future__ import annotations

from tandem.core.errors import InvalidArgument
from tandem.core.prompt import Prompt, Turn
from tandem_api.common.v1 import generation_pb2, sampling_pb2
from tandem_api.decoding.v1 import decoding_pb2

Asking = generation_pb2.Generation | decoding_pb2.Open


def prompt_to_proto(message: Asking, prompt: Prompt) -> None:
    """Write it into a message that has none yet."""
    if isinstance(prompt, str):
        message.text = prompt
        return
    message.token_ids.SetInParent()
    for item in prompt:
        if isinstance(item, Turn):
            message.chat.messages.append(
                sampling_pb2.ChatMessage(role=item.role, content=item.content)
            )
        else:
            message.token_ids.ids.append(item)


def prompt_from_proto(message: Asking) -> Prompt:
    """Raises InvalidArgument("prompt") where there is none."""
    match message.WhichOneof("prompt"):
        case "text":
            return message.text
        case "token_ids":
            return tuple(message.token_ids.ids)
        case "chat":
            return tuple(Turn(turn.role, turn.content) for turn in message.chat.messages)
    raise InvalidArgument("prompt", "is missing")
