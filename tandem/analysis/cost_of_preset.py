"""The cost of any preset, composed from its choices, whatever its name. The schedule says which
model counts the time, the payloads what travels. Invariant: pure arithmetic on values."""

from dataclasses import dataclass

from tandem.analysis.cost_fsd import fsd
from tandem.analysis.cost_models import LinkTimes, Prediction, ar, rejection_probability
from tandem.analysis.cost_tslt import mc_dsd, sparse_probs_bytes
from tandem.analysis.cost_window import streaming
from tandem.core.codecs import Precision
from tandem.specdec.choices import Predraft, RejectionPayload, Uplink
from tandem.specdec.presets import Preset
from tandem.specdec.scheduling import PairTimes

PRECISION_BYTES: dict[Precision, int] = {"float32": 4, "float16": 2}
TAIL_MASS_BYTES = 4
PARENT_BYTES = 1


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a message's parts in bytes; `head_bytes`: without payload. The defaults are the
    wire's: varint ids beyond 16,383, float32 probabilities, frames as `bench bytes` measures."""

    vocabulary_size: int
    token_bytes: float = 3.0
    probability_bytes: float = 4.0
    head_bytes: float = 30.0


def predict(
    preset: Preset,
    pair: PairTimes,
    link: LinkTimes,
    *,
    acceptance_rate: float,
    sizes: Sizes,
    miss_rate: float = 1.0,
) -> Prediction:
    """What a preset is expected to take. `acceptance_rate` is that of its own acceptance rule,
    `miss_rate` that of its pre-draft cache where a round waits for its verdict."""
    if not preset.drafts:
        return ar(pair, token_bytes=sizes.token_bytes)
    schedule = preset.schedule
    if preset.expansion:  # the acceptance rate is then a layer's
        return mc_dsd(
            pair,
            link,
            layer_acceptance_rate=acceptance_rate,
            expansion=preset.expansion,
            probs_bytes=draft_bytes(preset, sizes) - sizes.token_bytes,
            token_bytes=sizes.token_bytes + PARENT_BYTES,
            downlink_bytes=sizes.token_bytes + sizes.head_bytes,
        )
    if schedule.window > schedule.chunk or not schedule.bonus:
        return streaming(
            pair,
            link,
            acceptance_rate=acceptance_rate,
            window=schedule.window,
            chunk=schedule.chunk,
            decode_when_idle=schedule.decode_when_idle,
            draft_bytes=draft_bytes(preset, sizes) + sizes.head_bytes / schedule.chunk,
            payload_bytes=payload_bytes(preset, sizes) + sizes.head_bytes,
        )
    rejected = rejection_probability(acceptance_rate, schedule.chunk)
    return fsd(  # without a hit, plain stop-and-wait
        pair,
        link,
        acceptance_rate=acceptance_rate,
        draft_length=schedule.chunk,
        miss_rate=1.0 if preset.predraft is Predraft.OFF else miss_rate,
        uplink_bytes=schedule.chunk * draft_bytes(preset, sizes) + sizes.head_bytes,
        downlink_bytes=rejected * payload_bytes(preset, sizes) + sizes.head_bytes,
    )


def draft_bytes(preset: Preset, sizes: Sizes) -> float:
    """Uplink payload of one draft token; a distribution cut by its mass alone counts as uncut."""
    match preset.uplink:
        case Uplink.FULL_DISTRIBUTIONS:
            probs = sizes.vocabulary_size * PRECISION_BYTES[preset.uplink_precision]
            return sizes.token_bytes + probs
        case Uplink.SPARSE_DISTRIBUTIONS:
            kept = preset.fitted(sizes.vocabulary_size).truncation.top_k or sizes.vocabulary_size
            value_bytes = PRECISION_BYTES[preset.uplink_precision]
            return sizes.token_bytes + sparse_probs_bytes(kept, sizes.vocabulary_size, value_bytes)
        case Uplink.PROBABILITIES:
            return sizes.token_bytes + sizes.probability_bytes
        case Uplink.IDS:
            return sizes.token_bytes


def payload_bytes(preset: Preset, sizes: Sizes) -> float:
    """Downlink payload of a rejection."""
    entry_bytes = sizes.token_bytes + sizes.probability_bytes
    match preset.rejection_payload:
        case RejectionPayload.TOKEN:
            return sizes.token_bytes
        case RejectionPayload.FULL_DISTRIBUTION:
            return sizes.vocabulary_size * PRECISION_BYTES["float32"]
        case RejectionPayload.TOP_K:
            return preset.payload_top * entry_bytes + TAIL_MASS_BYTES
        case RejectionPayload.LOSSLESS_SPARSE:
            return (preset.payload_top + preset.payload_tail_draws) * entry_bytes + TAIL_MASS_BYTES
