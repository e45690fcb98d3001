"""The frames of a stream as tables: what each kind of message is called in a frame, which fields
have one name here and on the wire, and how the others are written and read. Invariant: what a peer
could get wrong is checked, lengths before contents, and InvalidArgument names the field."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tandem.core.errors import InvalidArgument
from tandem.specdec.messages import Cancel, Frame, GoingAway, Ping, Pong
from tandem.wire.common_codec import same_fields

Sent = TypeVar("Sent", bound=Frame)
Received = TypeVar("Received", bound=Frame)


def _nothing_more(part: Any, message: Any = None) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class FramePart:
    """One kind of message in a frame. `write` fills in what `same` does not name; `read` checks a
    part, all of it, and returns those fields."""

    name: str
    kind: type[Any]
    same: tuple[str, ...] = ()
    write: Callable[[Any, Any], object] = _nothing_more
    read: Callable[[Any], dict[str, Any]] = _nothing_more


CANCEL = FramePart("cancel", Cancel)
PING = FramePart("ping", Ping, ("nonce",))
PONG = FramePart("pong", Pong, ("nonce",))
GOING_AWAY = FramePart("going_away", GoingAway)


class FrameCodec(Generic[Sent, Received]):
    """One end of a stream: writes the kinds of messages that it sends as frames of one type, reads
    those that it receives."""

    def __init__(
        self, frame_type: type[Any], sent: Sequence[FramePart], received: Sequence[FramePart]
    ) -> None:
        self._frame_type = frame_type
        self._sent = {part.kind: part for part in sent}
        self._received = {part.name: part for part in received}

    def add(self, both_ways: Sequence[FramePart]) -> None:
        """Send and receive these kinds of messages too from now on."""
        self._sent |= {part.kind: part for part in both_ways}
        self._received |= {part.name: part for part in both_ways}

    def encode(self, message: Sent) -> Any:
        """Return the frame of a message."""
        frame = self._frame_type(
            session=message.session, base=message.base, prefix=message.prefix_hash
        )
        part = self._sent[type(message)]
        proto = getattr(frame, part.name)
        proto.SetInParent()
        if part.same:
            proto.MergeFrom(type(proto)(**{name: getattr(message, name) for name in part.same}))
        part.write(proto, message)
        return frame

    def decode(self, frame: Any) -> Received:
        """Return the message of a frame. Raises InvalidArgument naming the field for anything no
        honest peer would send."""
        part = self._received.get(frame.WhichOneof("message"))
        if part is None:
            raise InvalidArgument("message", "the frame carries none")
        proto = getattr(frame, part.name)
        rest = part.read(proto)
        message: Received = part.kind(
            session=frame.session,
            base=frame.base,
            prefix_hash=frame.prefix,
            **same_fields(proto, part.same),
            **rest,
        )
        return message


def check_seconds(seconds: float, field: str) -> None:
    """Raise InvalidArgument naming the field unless this is a duration."""
    if not 0 <= seconds < math.inf:
        raise InvalidArgument(field, f"{seconds} is not a duration")


def check_share(share: float, field: str) -> None:
    """Raise InvalidArgument naming the field unless this is in [0, 1]."""
    if not 0 <= share <= 1:
        raise InvalidArgument(field, f"{share} is not in [0, 1]")
