"""What is made of a body: of a short one at once, of a long one on a thread, in its tenant's turn.
Invariant: no body holds the event loop, on which everybody's answers are sent, for much longer than
a short one does."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import Request

from tandem.net.tenant import paying_tenant
from tandem.net.turns import FairExecutor

OBJECT_BYTES = 256
"""Text of so many bytes is read in the time that one message of a conversation takes, 5 us."""
LONG_BYTES = 2**15
"""What is read and checked in about a millisecond, objects included."""
MOST_WAITING = 256
"""Long bodies that wait for their turn."""

Made = TypeVar("Made")


def weight_of(raw: bytes) -> int:
    """Return the bytes of a body, or of a part of one, with those that its objects stand for."""
    return len(raw) + OBJECT_BYTES * (raw.count(b"{") + raw.count(b"["))


def turns() -> FairExecutor:
    """Return what an application's tenants take turns with: one thread, as it needs the interpreter
    all the time."""
    return FairExecutor("reading long bodies", 1, MOST_WAITING)


async def in_turn(
    request: Request,
    work: Callable[[], Made],
    *,
    begins: bool = False,
    spends: list[Any] | None = None,
) -> Made:
    """Return what `work` makes of a request's body, or of the answer to it. Raises
    ResourceExhausted where too many wait.

    `begins`: it is the first that reads the body. What is begun goes before that. `spends`: what
    nobody reads after it, and is emptied, since FastAPI holds a body until it is answered. The
    objects of dozens of long bodies at once would have the garbage collector stop everybody for a
    tenth of a second, again and again."""
    if getattr(request.state, "is_long", False):
        threads: FairExecutor = request.app.state.long_bodies
        submitted = threads.submit(paying_tenant(), work, priority=int(begins))
        made = await asyncio.wrap_future(submitted)
    else:
        made = work()
    if spends is not None:
        spends.clear()
    return made
