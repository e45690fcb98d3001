"""A side's drafting: how it draws its drafts, and what it sends of their distribution. Invariant:
`local_draft` returns the distribution that was drawn from, or a head of it, bit for bit as the
other end will reconstruct it, unless the choices say `cut_after_draw`."""

from dataclasses import dataclass

from tandem.core.codecs import sparse_wire_probs
from tandem.core.probs import NO_TRUNCATION, Array, SamplingParams, truncate
from tandem.core.randomness import Purpose, RandomSource
from tandem.two_sided.protocol.draft_head import DraftProbs, head_of_draft
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import (
    AggregationMode,
    AggregationPreset,
    Draw,
    LocalProbs,
    ProbsPayload,
)


@dataclass(frozen=True, slots=True)
class LocalDrafting:
    """The settings of a side's drafting: how a document's distribution is formed, and what of the
    side's is drawn and sent."""

    sampling: SamplingParams
    probs: LocalProbs


def local_drafting(preset: AggregationPreset, sampling: SamplingParams) -> LocalDrafting:
    """Return how a side drafts for a request."""
    # At temperature 0 the sides' distributions are those of temperature 1, in full: the argmax of a
    # mixture cannot be told from one-hot distributions, nor, in general, from truncated ones.
    needs_probs = preset.two_sided and preset.mode is not AggregationMode.ANSWER_COIN
    if sampling.greedy:
        payload = ProbsPayload.FULL if needs_probs else ProbsPayload.NONE
        return LocalDrafting(
            SamplingParams(), LocalProbs(Draw.LIKELIEST, payload, "float32", NO_TRUNCATION)
        )
    return LocalDrafting(sampling, preset.probs)


def local_draft(
    probs: Array, choices: LocalProbs, *, rng: RandomSource, position: int, side: Side
) -> tuple[int, DraftProbs | None]:
    """Return the draft token for `position` and what goes with it of its distribution, if anything.
    `probs` [V] is the side's mixture over its documents, float32, after sampling settings (at
    temperature 0: those of temperature 1, and Draw.LIKELIEST). Independent draws use each side's
    own random numbers; Gumbel coupling uses the same on both."""
    sent = cut_and_rounded(probs, choices)
    token = _draw(
        probs if choices.cut_after_draw else sent,
        choices.draw,
        rng=rng,
        position=position,
        side=side,
    )
    match choices.payload:
        case ProbsPayload.NONE:
            return token, None
        case ProbsPayload.HEAD:
            head = head_of_draft(
                sent,
                token,
                top=choices.head,
                precision=choices.precision,
                rng=rng,
                position=position,
                side=side,
            )
            return token, head
    return token, sent


def cut_and_rounded(probs: Array, choices: LocalProbs) -> Array:
    """Return the distribution [V] that a draft is judged by, and drawn from unless the choices say
    `cut_after_draw`: `probs` after the preset's truncation, and rounded if it is sent in full."""
    truncated = truncate(probs, choices.truncation)
    if choices.payload is ProbsPayload.SPARSE and choices.precision != "float32":
        return sparse_wire_probs(truncated, choices.precision)
    return truncated


def _draw(probs: Array, draw: Draw, *, rng: RandomSource, position: int, side: Side) -> int:
    match draw:
        case Draw.INDEPENDENT:
            return rng.categorical(probs, position, Purpose.DRAFT, side)
        case Draw.GUMBEL:
            return rng.gumbel_categorical(probs, position, Purpose.DRAFT)
        case Draw.LIKELIEST:
            return int(probs.argmax())
