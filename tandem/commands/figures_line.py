"""Figures of a finished answer for a person, in one line.

Must not import grpc or torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def figures_line(figures: Mapping[str, Any]) -> str:
    """TTFT, TPOT, acceptance and bytes; `figures` as `answer_figures` has them, with the
    `finish_reason`."""
    made = figures["tokens"]
    tokens = max(1, made)
    parts = [f"{made} tokens ({figures['finish_reason']}) by {figures['preset']}"]
    if figures["ttft_s"] is not None:
        parts.append(f"TTFT {_milliseconds(figures['ttft_s'])}")
    if figures["tpot_s"]:
        rate = 1 / figures["tpot_s"]
        parts.append(f"TPOT {_milliseconds(figures['tpot_s'])} ({rate:.0f} tokens/s)")
    if figures["drafted"]:
        parts.append(f"acceptance {figures['accepted'] / figures['drafted']:.0%}")
    up, down = figures["uplink_bytes"] / tokens, figures["downlink_bytes"] / tokens
    parts.append(f"bytes per token {up:.1f} up, {down:.1f} down")
    if "device" in figures:
        parts += _two_sided(figures)
    else:
        parts.append(f"{figures['target_passes'] / tokens:.2f} target passes per token")
    if turns := figures["predraft_hits"] + figures["predraft_misses"]:
        parts.append(f"pre-draft misses {figures['predraft_misses'] / turns:.0%}")
    if figures["lossy"]:
        parts.append("lossy: the law of the answer is not quite the target's")
    if figures["unverified"]:
        parts.append(f"{len(figures['unverified'])} tokens unverified: the cloud was lost")
    return "; ".join(parts)


def _two_sided(figures: Mapping[str, Any]) -> list[str]:
    """Whose documents it came from, whose drafts stood, and how often the aggregation moved."""
    sides = {side: figures[side] for side in ("device", "cloud")}
    rates = {side: own["acceptance_rate"] for side, own in sides.items() if own["drafted"]}
    return [
        "documents " + ", ".join(f"{own['documents']} ({side})" for side, own in sides.items()),
        "accepted " + ", ".join(f"{rate:.0%} ({side})" for side, rate in rates.items()),
        f"{figures['side_moves']} side moves",
    ]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"
