"""Whether a cloud with no draft at hand should go on alone: time against passes.

Invariant: pure arithmetic on values. Must not import asyncio, grpc, torch or time.
"""

from __future__ import annotations


def decodes_alone(idle_weight: float, tokens_per_pass: float) -> bool:
    """`idle_weight` 1 wants the answer soon, 0 with few passes; `tokens_per_pass` is what a pass
    over drafts yields (at least 1).

    Alone, a token costs one pass at once. Left to drafts it costs 1/tokens_per_pass of one, later,
    when that much time is spent as well. With w for time and 1 - w for passes the token is worth
    its own pass iff (1 - w)·(1 - 1/tokens_per_pass) ≤ w/tokens_per_pass, that is
    w ≥ 1 - 1/tokens_per_pass.
    """
    return idle_weight >= 1 - 1 / max(1.0, tokens_per_pass)
