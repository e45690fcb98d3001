"""What an answer is asked for: a text, token ids, or a conversation.

Must not import asyncio, grpc, torch or time.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation."""

    role: str
    content: str


Prompt = str | tuple[int, ...] | tuple[Turn, ...]
