"""What a finished answer took: as a service's summary, an object for machines, a line for people.
Invariant: a figure has one name, in the counting machine's totals, in `Summary` and elsewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from itertools import zip_longest
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from pydantic import Field, TypeAdapter

from tandem.control.schedule import CLOUD_ALONE, CLOUD_DRAFTS
from tandem.generation.client import Generated
from tandem.specdec.choices import Control
from tandem.specdec.presets import PRESETS
from tandem_api.common.v1.generation_pb2 import SideSummary, Summary

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
Rate = Annotated[float, Field(ge=0, le=1)]
Kind = TypeVar("Kind", "Figures", "SideFigures", "ChoiceFigures")


@dataclass(frozen=True, slots=True)
class SideFigures:
    """One side of an answer from two sides' documents."""

    documents: Annotated[int, Field(description="Documents used.")]
    document_tokens: Annotated[int, Field(description="Tokens of these documents.")]
    drafted: Annotated[
        int, Field(description="Tokens that this side drafted in time to be judged.")
    ]
    accepted: Annotated[int, Field(description="Drafted tokens that became part of the answer.")]
    decode_s: Annotated[float, Field(description="Time spent drafting.")]
    acceptance_rate: Annotated[Rate | None, Field(description="Accepted of drafted tokens.")]
    names: Annotated[
        tuple[str, ...],
        Field(description="Names of the documents used. Only reported for the device."),
    ] = ()


@dataclass(frozen=True, slots=True)
class ChoiceFigures:
    """The last schedule that the preset chose, and the estimates it was based on. Times are in
    seconds."""

    schedule: Annotated[
        str, Field(description="The schedule in words, such as `stream, window 6`.")
    ]
    reason: Annotated[
        str,
        Field(
            description="What had changed most: `first`, `acceptance`, `round_trip`, `load` or"
            " `step_times`; or `trial`: chosen to be measured."
        ),
    ]
    decisions: Annotated[int, Field(description="Number of times that a schedule was chosen.")]
    expected_tpot_s: Annotated[float, Field(description="Time per token, with this schedule.")]
    cloud_alone_tpot_s: Annotated[
        float, Field(description="Time per token of a cloud that decodes without drafts.")
    ]
    acceptance_rate: Annotated[Rate, Field(description="Probability that a draft is accepted.")]
    draft_step_s: Annotated[float, Field(description="Time of the draft model for one token.")]
    target_pass_s: Annotated[
        float, Field(description="Time of the target model for a pass without drafts.")
    ]
    per_draft_token_s: Annotated[
        float, Field(description="Time that each draft token adds to a pass.")
    ]
    batch_sessions: Annotated[float, Field(description="Sessions that share a pass.")]
    round_trip_s: Annotated[float, Field(description="Network round trip.")]
    cloud_alone_measured: Annotated[
        bool,
        Field(
            description="True if the time of the large model alone was measured within the last"
            " minutes, false if it is an estimate."
        ),
    ]


@dataclass(frozen=True, slots=True)
class Figures:
    """Statistics of an answer. Times are in seconds by the caller's clock, sizes in bytes on the
    link between edge and cloud. Null: there is nothing to measure.

    A field that has the name of one of `Summary` has its value; `figures_of` computes the others.
    """

    preset: Annotated[str, Field(description="Name of the decoding method.")]
    ttft_s: Annotated[float | None, Field(description="Time to the first token.")]
    tpot_s: Annotated[float | None, Field(description="Mean time per token after the first.")]
    duration_s: Annotated[
        float, Field(description="Time from the request to the end of the answer.")
    ]
    tokens: Annotated[int, Field(description="Tokens of the answer.")]
    rounds: Annotated[int, Field(description="Times that drafts were verified.")]
    drafted: Annotated[int, Field(description="Tokens that the device drafted for verification.")]
    accepted: Annotated[int, Field(description="Draft tokens that became part of the answer.")]
    acceptance_rate: Annotated[Rate | None, Field(description="Accepted of drafted tokens.")]
    target_passes: Annotated[int, Field(description="Forward passes of the target model.")]
    uplink_bytes: Annotated[int, Field(description="Bytes sent to the cloud.")]
    downlink_bytes: Annotated[int, Field(description="Bytes received from the cloud.")]
    prompt_tokens: Annotated[int, Field(description="Tokens of the prompt.")]
    resumes: Annotated[int, Field(description="Times that a lost connection was restored.")]
    unverified: Annotated[
        tuple[int, ...],
        Field(description="Positions of tokens that the target model did not verify."),
    ]
    links_lost: Annotated[int, Field(description="Times that the link was found dead.")]
    predrafted: Annotated[int, Field(description="Tokens drafted ahead of verdicts.")]
    predraft_hits: Annotated[
        int, Field(description="Times that a needed draft had been made ahead.")
    ]
    predraft_misses: Annotated[int, Field(description="Times that it had not.")]
    predraft_miss_rate: Annotated[Rate | None, Field(description="Misses of hits and misses.")]
    early_verdicts: Annotated[int, Field(description="Verdicts by the target model's early exits.")]
    lossy: Annotated[
        bool, Field(description="True if the preset may change the target's distribution.")
    ]
    draft_context: Annotated[
        int,
        Field(
            description="Tokens that the draft model reads at once, if prompt and answer are"
            " longer: drafts then follow from the end of the text alone. 0 if it read the whole"
            " text."
        ),
    ]
    accepted_memory_tokens: Annotated[
        int,
        Field(
            description="Tokens of the answer that were drafted from what the drafter remembers:"
            " your earlier texts, the prompt, and the answer so far."
        ),
    ]
    rejected_memory_tokens: Annotated[
        int, Field(description="Tokens drafted from there that are not in the answer.")
    ]
    cloud_drafted: Annotated[
        int, Field(description="Drafts that the cloud made itself, and judged.")
    ]
    cloud_accepted: Annotated[
        int, Field(description="Drafts of the cloud that became part of the answer.")
    ]
    same_bits: Annotated[
        bool | None,
        Field(
            description="True if concurrent requests do not change the target model's logits, so a"
            " text with a coupled preset does not depend on the load. Null if the cloud took no"
            " part, or for answers from documents."
        ),
    ]
    exactness: Annotated[
        Literal["bit_for_bit", "up_to_rounding", "not_exact"] | None,
        Field(
            description="`bit_for_bit`: the target model is batch-invariant, so the text is"
            " exactly what it alone would give. `up_to_rounding`: its logits may differ in their"
            " last bits with the number of tokens in a pass; where two tokens tie to that, the text"
            " may be another. `not_exact`: the preset is lossy, or some tokens were not verified."
            " Null if the cloud took no part, or for answers from documents."
        ),
    ]
    side_moves: Annotated[
        int | None,
        Field(
            description="Times that aggregation moved from the device. Only for answers from"
            " documents."
        ),
    ] = None
    fetches: Annotated[
        int | None,
        Field(
            description="Lists of likely tokens that had to be longer. Only for answers from"
            " documents."
        ),
    ] = None
    device: Annotated[
        SideFigures | None, Field(description="The device's part. Only for answers from documents.")
    ] = None
    cloud: Annotated[
        SideFigures | None, Field(description="The cloud's part. Only for answers from documents.")
    ] = None
    choice: Annotated[
        ChoiceFigures | None,
        Field(description="The schedule chosen, for presets that choose one, such as `auto`."),
    ] = None


@dataclass(frozen=True, slots=True)
class DraftingMetrics:
    """Statistics of drafting and verifying, in vLLM's form, over all choices. A step is one
    verification of drafts."""

    mean_acceptance_length: Annotated[
        float,
        Field(
            description="Mean tokens per step: the accepted draft tokens and one token of the"
            " target model."
        ),
    ]
    draft_acceptance_rate: Rate
    acceptance_histogram: Annotated[
        list[int],
        Field(description="Number of steps that accepted 0, 1, 2, ... draft tokens."),
    ]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: Annotated[int, Field(description="Drafted tokens, verified or not.")]
    num_spec_tokens: Annotated[
        int, Field(description="Largest number of draft tokens verified in a step.")
    ]


_FIGURES = TypeAdapter(Figures)


def dataclass_fields(kind: type, *, absent: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as pydantic makes models of them; `absent` is the default of
    those that may be left out."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        field.name: (hints[field.name], ... if field.default is MISSING else absent)
        for field in fields(kind)
    }


def summary_of(totals: object, **own: Any) -> Summary:
    """Return a summary of the fields in `own`, and of all others that `totals` has."""
    names = [field.name for field in Summary.DESCRIPTOR.fields if hasattr(totals, field.name)]
    return Summary(**{name: getattr(totals, name) for name in names} | own)


def figures_of(result: Generated) -> Figures:
    """Return an answer's figures."""
    summary = result.summary
    assert summary is not None
    computed: dict[str, Any] = {
        "ttft_s": result.ttft_s,
        "tpot_s": result.tpot_s,
        "duration_s": result.duration_s,
        "acceptance_rate": _rate(summary.accepted, summary.drafted),
        "predraft_miss_rate": _rate(
            summary.predraft_misses, summary.predraft_hits + summary.predraft_misses
        ),
        "same_bits": summary.same_bits if summary.HasField("same_bits") else None,
        "exactness": _exactness(summary, result.unverified),
        "unverified": tuple(result.unverified),
        "choice": _named(ChoiceFigures, summary.choice) if summary.HasField("choice") else None,
        "device": None,
        "cloud": None,
    }
    if summary.HasField("device"):
        computed |= {"device": _side(summary.device), "cloud": _side(summary.cloud)}
    else:
        computed |= {"side_moves": None, "fetches": None}
    return _named(Figures, summary, **computed)


def answer_figures(result: Generated) -> dict[str, Any]:
    """Return an answer's figures as JSON has them; those of kinds of answers that this one is not
    of are left out."""
    figures: dict[str, Any] = _FIGURES.dump_python(figures_of(result), mode="json")
    kinds = {field.name for field in fields(Figures) if field.default is None}
    return {name: value for name, value in figures.items() if not (name in kinds and value is None)}


def speculative_decoding_metrics(summaries: Sequence[Summary]) -> DraftingMetrics | None:
    """Return what vLLM reports of drafting for an answer, over several; None if no drafts were
    verified."""
    histogram = [
        sum(counts)
        for counts in zip_longest(*(s.acceptance_histogram for s in summaries), fillvalue=0)
    ]
    steps = sum(histogram)
    if not steps:
        return None
    accepted = sum(count * tokens for tokens, count in enumerate(histogram))
    drafted = sum(summary.drafted for summary in summaries)
    return DraftingMetrics(
        mean_acceptance_length=1 + accepted / steps,
        draft_acceptance_rate=accepted / drafted if drafted else 0.0,
        acceptance_histogram=histogram,
        num_spec_steps=steps,
        num_accepted_draft_tokens=accepted,
        num_draft_tokens=drafted,
        num_spec_tokens=len(histogram) - 1,
    )


def plain_line(figures: Mapping[str, Any], finish_reason: str | None) -> str:
    """Return the speed, who drafted the tokens, and how much faster that is than the large model
    alone, if the schedule's controller measured that."""
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
        alone_tpot_s = _measured_alone(figures)
        if alone_tpot_s is not None:
            parts.append(_compared_with_alone(alone_tpot_s / tpot_s))
    if finish_reason == "length":
        parts.append(f"cut off at {tokens} tokens")
    return "; ".join((", ".join(parts), *_warnings(figures)))


def _makers(figures: Mapping[str, Any]) -> list[str]:
    """Return which part of the tokens had been drafted on the device, by its draft model or by
    looking up, which was repeated from the memory, the prompt or the answer so far, and which were
    drafts of the cloud; no part that rounds to nothing. A token that the target wrote before it saw
    the same draft counts too."""
    tokens = max(1, figures["tokens"])
    repeated = figures.get("accepted_memory_tokens") or 0  # an earlier version does not tell
    made_by = {
        "drafted on the device": max(0, figures["accepted"] - repeated),
        "repeated from earlier text": repeated,
        "by drafts of the cloud": figures["cloud_accepted"] if figures.get("cloud_drafted") else 0,
    }
    shares = {maker: round(100 * min(1, made / tokens)) for maker, made in made_by.items()}
    shown = [f"{share}% {maker}" for maker, share in shares.items() if share]
    return shown or ([] if figures["unverified"] else ["by the large model alone"])


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
        return "about as fast as the large model alone"
    return f"{ratio:.1f} times as fast as the large model alone"


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
    why = f"estimated at {expected} a token, against {alone} by the large model alone ({how})"
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
            f"pass {_duration(choice['target_pass_s'])}"
            f" and {_duration(choice['per_draft_token_s'])} a draft",
            f"round trip {_duration(choice['round_trip_s'])}",
            f"{choice['batch_sessions']:.1f} sessions a pass",
            f"decided {choice['decisions']} times, last by {choice['reason']}",
        )
    )


def _named(kind: type[Kind], message: Any, **computed: Any) -> Kind:
    """Return the figures of a message: its fields by their names, and those that are computed."""
    names = (field.name for field in fields(kind) if field.name not in computed)
    return kind(**{name: getattr(message, name) for name in names}, **computed)


def _side(side: SideSummary) -> SideFigures:
    rate = _rate(side.accepted, side.drafted)
    return _named(SideFigures, side, acceptance_rate=rate, names=tuple(side.names))


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
    and for answers from two sides' documents."""
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
