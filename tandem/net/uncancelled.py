"""Waiting for an operation of gRPC so that giving up the wait loses no memory. grpc.aio never frees
an operation, some 100 bytes, whose waiter was cancelled (grpc issue 43360)."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

Outcome = TypeVar("Outcome")


async def uncancelled(operation: Awaitable[Outcome]) -> Outcome:
    """Return the outcome of `operation`, one of a call that ends soon after the wait was given up,
    and the operation with it."""
    running = asyncio.ensure_future(operation)
    running.add_done_callback(_heed)
    return await asyncio.shield(running)


def _heed(running: asyncio.Future[Outcome]) -> None:
    """Take an error that nobody waits for any more: the call has ended."""
    if not running.cancelled():
        running.exception()
