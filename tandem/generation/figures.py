"""What a finished answer took: as a service's summary, an object for machines, a line for people.
Invariant: a figure has one name, in the counting machine's totals, in `Summary` and elsewhere."""

from collections.abc import Mapping
from typing import Any

from tandem.generation.client import Generated
from tandem_api.common.v1.generation_pb2 import SideSummary, Summary

_TOLD = (
    *("preset", "tokens", "rounds", "drafted", "accepted", "target_passes", "uplink_bytes"),
    *("downlink_bytes", "prompt_tokens", "resumes", "links_lost", "predrafted", "predraft_hits"),
    *("predraft_misses", "early_verdicts", "lossy"),
)
_TOLD_OF_SIDES = ("documents", "document_tokens", "drafted", "accepted", "decode_s")


def summary_of(totals: object, **own: Any) -> Summary:
    """`own` fields, and all others that `totals` has."""
    names = [field.name for field in Summary.DESCRIPTOR.fields if hasattr(totals, field.name)]
    return Summary(**{name: getattr(totals, name) for name in names} | own)


def answer_figures(result: Generated) -> dict[str, Any]:
    """Method, times in seconds by this process's clock, counts, bytes; None where there is none."""
    summary = result.summary
    assert summary is not None
    resolved = summary.predraft_hits + summary.predraft_misses
    return {
        **{name: getattr(summary, name) for name in _TOLD},
        "ttft_s": result.ttft_s,
        "tpot_s": result.tpot_s,
        "duration_s": result.duration_s,
        "acceptance_rate": _rate(summary.accepted, summary.drafted),
        "predraft_miss_rate": _rate(summary.predraft_misses, resolved),
        "unverified": result.unverified,
        **(_two_sided_figures(summary) if summary.HasField("device") else {}),
    }


def figures_line(figures: Mapping[str, Any], finish_reason: str | None) -> str:
    """TTFT, TPOT, acceptance and bytes; `figures` as `answer_figures` has them."""
    made = figures["tokens"]
    tokens = max(1, made)
    parts = [f"{made} tokens ({finish_reason}) by {figures['preset']}"]
    if figures["ttft_s"] is not None:
        parts.append(f"TTFT {_duration(figures['ttft_s'])}")
    if figures["tpot_s"]:
        tpot_s = figures["tpot_s"]
        parts.append(f"TPOT {_duration(tpot_s)} ({1 / tpot_s:.0f} tokens/s)")
    if figures["drafted"]:
        parts.append(f"acceptance {figures['accepted'] / figures['drafted']:.0%}")
    up, down = figures["uplink_bytes"] / tokens, figures["downlink_bytes"] / tokens
    parts.append(f"bytes per token {up:.1f} up, {down:.1f} down")
    if "device" in figures:
        parts += _two_sided_words(figures)
    else:
        parts.append(f"{figures['target_passes'] / tokens:.2f} target passes per token")
    if turns := figures["predraft_hits"] + figures["predraft_misses"]:
        parts.append(f"pre-draft misses {figures['predraft_misses'] / turns:.0%}")
    if figures["lossy"]:
        parts.append("lossy: the distribution of the answer is not quite the target's")
    if figures["unverified"]:
        parts.append(f"{len(figures['unverified'])} tokens unverified: the cloud was lost")
    return "; ".join(parts)


def _two_sided_figures(summary: Summary) -> dict[str, Any]:
    def of(side: SideSummary) -> dict[str, Any]:
        same = {name: getattr(side, name) for name in _TOLD_OF_SIDES}
        return same | {"acceptance_rate": _rate(side.accepted, side.drafted)}

    return {
        "side_moves": summary.side_moves,
        "fetches": summary.fetches,
        "device": of(summary.device),
        "cloud": of(summary.cloud),
    }


def _two_sided_words(figures: Mapping[str, Any]) -> list[str]:
    """Whose documents it came from, whose drafts stood, and how often the aggregation moved."""
    sides = {side: figures[side] for side in ("device", "cloud")}
    rates = {side: own["acceptance_rate"] for side, own in sides.items() if own["drafted"]}
    return [
        "documents " + ", ".join(f"{own['documents']} ({side})" for side, own in sides.items()),
        "accepted " + ", ".join(f"{rate:.0%} ({side})" for side, rate in rates.items()),
        f"{figures['side_moves']} side moves",
    ]


def _rate(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"
