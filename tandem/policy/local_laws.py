"""What a side draws its draft from, and what it sends of that, when both sides have documents.

Invariant: whoever drafts calls `local_draft`, and sends the law it returns: the law that was drawn
from, bit for bit as the other end will reconstruct it, unless the choices say `cut_after_draw`.
Must not import asyncio, grpc, torch or time.
"""

from tandem.core.aggregation import Side
from tandem.core.chance import Chance, Purpose
from tandem.core.laws import Array
from tandem.core.sparse_laws import sparse_wire_law
from tandem.core.truncation import truncate
from tandem.policy.aggregation_presets import Draw, LawPayload, LocalLaw


def local_draft(
    law: Array, choices: LocalLaw, chance: Chance, position: int, side: Side
) -> tuple[int, Array | None]:
    """The draft token for `position` and the law [V] that goes with it, None where none does.

    `law` [V] is the side's mixture over its documents, float32, after sampling settings (at
    temperature 0: those of temperature 1, and Draw.LIKELIEST). The two sides' independent draws
    have random numbers of their own; shared noise is the same on both.
    """
    sent = _as_sent(law, choices)
    drawn_from = law if choices.cut_after_draw else sent
    token = _draw(drawn_from, choices.draw, chance, position, side)
    return token, None if choices.payload is LawPayload.NONE else sent


def _as_sent(law: Array, choices: LocalLaw) -> Array:
    truncated = truncate(law, choices.truncation)
    if choices.payload is LawPayload.SPARSE and choices.precision != "float32":
        return sparse_wire_law(truncated, choices.precision)
    return truncated


def _draw(law: Array, draw: Draw, chance: Chance, position: int, side: Side) -> int:
    match draw:
        case Draw.INDEPENDENT:
            return chance.pick(law, position, Purpose.DRAFT, side)
        case Draw.SHARED_NOISE:
            return chance.couple(law, position, Purpose.DRAFT)
        case Draw.LIKELIEST:
            return int(law.argmax())
