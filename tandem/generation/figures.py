"""What a finished answer took: as a service's summary, an object for machines, a line for people.
Invariant: a figure has one name, in the counting machine's totals, in `Summary` and elsewhere."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from tandem.control.schedule import CLOUD_ALONE, CLOUD_DRAFTS
from tandem.generation.client import Generated
from tandem.specdec.choices import Control
from tandem.specdec.presets import PRESETS
from tandem_api.common.v1.generation_pb2 import ScheduleChoice, SideSummary, Summary

BIT_FOR_BIT = "bit_for_bit"
"""No bit of the target's logits depends on what was drafted, or on other requests."""
UP_TO_ROUNDING = "up_to_rounding"
"""Its logits may differ in their last bits: where two tokens tie to that, the text may turn."""
INEXACT = "not_exact"
"""The preset is lossy, or the cloud was lost and did not verify all tokens."""
_EXACTNESS_WORDS = {
    BIT_FOR_BIT: "the target's text bit for bit",
    UP_TO_ROUNDING: "the target's text up to rounding",
}
_COMPARABLE_TOKENS = 32
_TOLD = (
    *("preset", "tokens", "rounds", "drafted", "accepted", "target_passes", "uplink_bytes"),
    *("downlink_bytes", "prompt_tokens", "resumes", "links_lost", "predrafted", "predraft_hits"),
    *("predraft_misses", "early_verdicts", "lossy", "draft_context"),
    *("accepted_memory_tokens", "rejected_memory_tokens"),
    *("cloud_drafted", "cloud_accepted"),
)
_TOLD_OF_CHOICES = (
    *("schedule", "reason", "decisions", "expected_tpot_s", "cloud_alone_tpot_s"),
    *("acceptance_rate", "draft_step_s", "pass_s", "further_s", "wait_s", "sessions"),
    *("round_trip_s", "cloud_alone_measured"),
)
_TOLD_OF_SIDES = ("documents", "document_tokens", "drafted", "accepted", "decode_s")


def summary_of(totals: object, **own: Any) -> Summary:
    """Return a summary of the fields in `own`, and of all others that `totals` has."""
    names = [field.name for field in Summary.DESCRIPTOR.fields if hasattr(totals, field.name)]
    return Summary(**{name: getattr(totals, name) for name in names} | own)


def answer_figures(result: Generated) -> dict[str, Any]:
    """Return an answer's figures: method, times in seconds by this process's clock, counts and
    bytes. A figure that the answer does not have is None."""
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
        "same_bits": summary.same_bits if summary.HasField("same_bits") else None,
        "exactness": _exactness(summary, result.unverified),
        "unverified": result.unverified,
        **({"choice": _choice_figures(summary.choice)} if summary.HasField("choice") else {}),
        **(_two_sided_figures(summary) if summary.HasField("device") else {}),
    }


def speculative_decoding_metrics(summaries: Sequence[Summary]) -> dict[str, Any] | None:
    """Return what vLLM reports of drafting for an answer, over several; None if no drafts were
    verified, or if a drafter of an earlier version does not report it."""
    histogram = [
        sum(counts)
        for counts in zip_longest(*(s.acceptance_histogram for s in summaries), fillvalue=0)
    ]
    steps = sum(histogram)
    if not steps:
        return None
    accepted = sum(count * tokens for tokens, count in enumerate(histogram))
    drafted = sum(summary.drafted for summary in summaries)
    return {
        "mean_acceptance_length": 1 + accepted / steps,
        "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
        "acceptance_histogram": histogram,
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "num_spec_tokens": len(histogram) - 1,
    }


def plain_line(
    figures: Mapping[str, Any], finish_reason: str | None, alone_tpot_s: float | None = None
) -> str:
    """Return the speed, who made the tokens, and how much faster that is than the large model
    alone, if that was measured: by the schedule's controller, or as `alone_tpot_s`, seconds per
    token."""
    tokens = figures["tokens"]
    tpot_s = figures["tpot_s"]
    parts = [_speed(tpot_s) if tpot_s else f"{tokens} token{'' if tokens == 1 else 's'}"]
    if "device" in figures:
        device = figures["device"]["documents"]
        cloud = figures["cloud"]["documents"]
        parts.append(f"documents: {device} from the device")
        parts.append(f"{cloud} from the cloud")
    else:
        parts += _makers(figures)
    if tpot_s and figures["drafted"]:
        alone_tpot_s = alone_tpot_s or _measured_alone(figures)
        if alone_tpot_s is not None:
            parts.append(_compared_with_alone(alone_tpot_s / tpot_s))
    if finish_reason == "length":
        parts.append(f"cut off at {tokens} tokens")
    return "; ".join((", ".join(parts), *_warnings(figures)))


def _makers(figures: Mapping[str, Any]) -> list[str]:
    """Return which part of the tokens the small model made, which were repeated from the memory,
    the prompt or the answer so far, and which were drafts of the cloud."""
    tokens = figures["tokens"]

    def share(accepted: int) -> str:
        return f"{min(accepted, tokens) / max(1, tokens):.0%}"

    made = []
    repeated = figures.get("accepted_memory_tokens") or 0  # an earlier version does not tell
    by_model = max(0, figures["accepted"] - repeated)
    if by_model or (figures["drafted"] and not repeated):
        made.append(f"{share(by_model)} by the small model")
    if repeated:
        made.append(f"{share(repeated)} repeated from earlier text")
    if figures.get("cloud_drafted"):
        made.append(f"{share(figures['cloud_accepted'])} by drafts of the cloud")
    return made or ["by the large model alone"]


def _measured_alone(figures: Mapping[str, Any]) -> float | None:
    """Return the seconds per token of the cloud alone, as the controller measured them in this
    answer. None if it did not, if the cloud went on alone, and for answers so short that their own
    speed is chance."""
    choice = figures.get("choice")
    if choice is None or not choice.get("cloud_alone_measured"):
        return None
    if choice["schedule"] in (CLOUD_ALONE, CLOUD_DRAFTS) or figures["tokens"] < _COMPARABLE_TOKENS:
        return None
    return choice["cloud_alone_tpot_s"] or None


def _speed(tpot_s: float) -> str:
    rate = 1 / tpot_s
    return f"{rate:.0f} tokens/s" if rate >= 10 else f"{rate:.1f} tokens/s"


def _compared_with_alone(ratio: float) -> str:
    if f"{ratio:.1f}" == "1.0":
        return "about as fast as the cloud alone"
    return f"{ratio:.1f} times as fast as the cloud alone"


def _warnings(figures: Mapping[str, Any]) -> list[str]:
    """Return what a person must know of the text."""
    warnings = []
    if figures["lossy"]:
        warnings.append("lossy: the distribution of the answer is not quite the target's")
    if most := figures.get("draft_context"):  # a server of an earlier version does not tell
        warnings.append(f"drafted after the text's end: the draft model reads {most} tokens")
    if figures["unverified"]:
        warnings.append(f"{len(figures['unverified'])} tokens unverified: the cloud was lost")
    return warnings


def figures_line(figures: Mapping[str, Any], finish_reason: str | None) -> str:
    """Return a line for those who know the method: TTFT, TPOT, acceptance and bytes. `figures` are
    those of `answer_figures`."""
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
    if judged := figures.get("cloud_drafted"):
        parts.append(f"acceptance in the cloud {figures['cloud_accepted'] / judged:.0%}")
    up = figures["uplink_bytes"] / tokens
    down = figures["downlink_bytes"] / tokens
    parts.append(f"bytes per token {up:.1f} up, {down:.1f} down")
    if "device" in figures:
        parts += _two_sided_words(figures)
    else:
        parts.append(f"{figures['target_passes'] / tokens:.2f} target passes per token")
    if recalled := figures.get("accepted_memory_tokens"):
        parts.append(f"{recalled} tokens from memory")
    if turns := figures["predraft_hits"] + figures["predraft_misses"]:
        parts.append(f"pre-draft misses {figures['predraft_misses'] / turns:.0%}")
    if words := _EXACTNESS_WORDS.get(figures.get("exactness") or ""):
        parts.append(words)
    return "; ".join((*parts, *_warnings(figures)))


def choice_line(figures: Mapping[str, Any]) -> str:
    """Return what a preset that chooses its schedule chose, and why; empty for other presets. Times
    are of one moment: the answer may have begun with other schedules."""
    if (choice := figures.get("choice")) is None:
        preset = PRESETS.get(figures["preset"])
        if preset is None or preset.control is not Control.LEAST_COST:
            return ""
        why = "the answer was over before enough was measured to choose by"
        return f"{preset.name}: the schedule that it begins with; {why}"
    alone, expected = _duration(choice["cloud_alone_tpot_s"]), _duration(choice["expected_tpot_s"])
    how = "measured" if choice["cloud_alone_measured"] else "estimated"
    why = f"estimated at {expected} a token, against {alone} by the cloud alone ({how})"
    if choice["schedule"] in (CLOUD_ALONE, CLOUD_DRAFTS):
        why = f"drafts are estimated to take longer than its {alone} a token ({how})"
    by = f"acceptance {choice['acceptance_rate']:.0%}, round trip"
    by = f"{by} {_duration(choice['round_trip_s'])}, draft step {_duration(choice['draft_step_s'])}"
    return f"{figures['preset']}: {choice['schedule']}; {why} ({by})"


def choice_estimates(figures: Mapping[str, Any]) -> str:
    """Return the estimates that the schedule was chosen by; empty for presets that choose none."""
    if (choice := figures.get("choice")) is None:
        return ""
    return "; ".join(
        (
            f"estimated {_duration(choice['expected_tpot_s'])} a token",
            f"acceptance {choice['acceptance_rate']:.0%}",
            f"draft step {_duration(choice['draft_step_s'])}",
            f"pass {_duration(choice['pass_s'])} and {_duration(choice['further_s'])} a draft",
            f"round trip {_duration(choice['round_trip_s'])}",
            f"wait {_duration(choice['wait_s'])}",
            f"{choice['sessions']:.1f} sessions a pass",
            f"decided {choice['decisions']} times, last by {choice['reason']}",
        )
    )


def _choice_figures(choice: ScheduleChoice) -> dict[str, Any]:
    return {name: getattr(choice, name) for name in _TOLD_OF_CHOICES}


def _two_sided_figures(summary: Summary) -> dict[str, Any]:
    def of(side: SideSummary) -> dict[str, Any]:
        same = {name: getattr(side, name) for name in _TOLD_OF_SIDES}
        rate = _rate(side.accepted, side.drafted)
        return same | {"acceptance_rate": rate, "names": list(side.names)}

    return {
        "side_moves": summary.side_moves,
        "fetches": summary.fetches,
        "device": of(summary.device),
        "cloud": of(summary.cloud),
    }


def _two_sided_words(figures: Mapping[str, Any]) -> list[str]:
    """Return how many documents came from each side, how many of its drafts were accepted, and how
    often the aggregation moved."""
    sides = {side: figures[side] for side in ("device", "cloud")}
    rates = {side: of["acceptance_rate"] for side, of in sides.items() if of["drafted"]}
    return [
        "documents " + ", ".join(f"{of['documents']} ({side})" for side, of in sides.items()),
        "accepted " + ", ".join(f"{rate:.0%} ({side})" for side, rate in rates.items()),
        f"{figures['side_moves']} side moves",
    ]


def _exactness(summary: Summary, unverified: Sequence[int]) -> str | None:
    """Return how the text relates to what the target alone would give. None if no cloud took part,
    for answers from two sides' documents, and for servers of earlier versions."""
    if summary.HasField("device"):
        return None
    if summary.lossy or unverified:
        return INEXACT
    if not summary.HasField("batch_invariant"):
        return None
    return BIT_FOR_BIT if summary.batch_invariant else UP_TO_ROUNDING


def _rate(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"
