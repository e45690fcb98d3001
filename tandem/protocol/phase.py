"""Where the end of a stream that may be lost and resumed stands: the edge, or a side.

Must not import asyncio, grpc, torch or time.
"""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """CONNECTING: no stream. RUNNING: stream open. ALONE: cloud given up. DONE: finished."""

    CONNECTING = "connecting"
    RUNNING = "running"
    ALONE = "alone"
    DONE = "done"
