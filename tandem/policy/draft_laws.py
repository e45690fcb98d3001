"""The law a draft token is drawn from: truncated, then as the other end will reconstruct it.

Invariant: whoever drafts calls `law_to_draft_from`, and draws from nothing else. Must not import
asyncio, grpc, torch or time.
"""

from tandem.core.codecs import wire_law
from tandem.core.laws import Array
from tandem.core.sparse_laws import sparse_wire_law
from tandem.core.truncation import truncate
from tandem.policy.choices import Uplink
from tandem.policy.presets import Preset


def law_to_draft_from(law: Array, preset: Preset) -> Array:
    """From the draft model's law [V], after sampling settings, to the law in wire precision."""
    truncated = truncate(law, preset.truncation)
    if preset.uplink_precision == "float32":  # laws are float32 from the start
        return truncated
    if preset.uplink is Uplink.FULL_LAWS:
        return wire_law(truncated, preset.uplink_precision)
    if preset.uplink is Uplink.SPARSE_LAWS:
        return sparse_wire_law(truncated, preset.uplink_precision)
    return truncated
