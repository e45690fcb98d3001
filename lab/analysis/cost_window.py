"""What a window of drafts in flight costs and saves.

An epoch begins when the edge drafts on after a correction, and ends with the next one. In it j
drafts are accepted with probability a^j·(1 - a), so it yields 1/(1 - a) tokens on average. It lasts
as long as drafting up to the rejected one in whole chunks, the way up, what is left of the pass
then under way, its own pass, and the way down. Chunks follow one another as fast as the slowest of
drafting, sending and the window allows.
"""

from lab.analysis.cost_models import LinkTimes, Prediction, check_acceptance
from tandem.core.errors import InvalidArgument
from tandem.specdec.scheduling import PairTimes, check_duration

_RARE = 1e-9


def streaming(
    pair: PairTimes,
    link: LinkTimes,
    *,
    acceptance_rate: float,
    window: int,
    chunk: int,
    decode_when_idle: bool = False,
    draft_bytes: float = 0.0,
    payload_bytes: float = 0.0,
) -> Prediction:
    """TPOT of a window of `window` drafts sent in chunks of `chunk`; one "round" is an epoch.

    `draft_bytes` is what one draft weighs, `payload_bytes` a rejection. With `decode_when_idle` the
    target alone is the slowest it gets; what the cloud's own tokens save beyond that is left out.
    """
    check_acceptance(acceptance_rate)
    if not 1 <= chunk <= window:
        raise InvalidArgument("chunk", f"must be within 1…{window}, is {chunk}")
    check_duration("draft_bytes", draft_bytes)
    check_duration("payload_bytes", payload_bytes)
    steady_s = _steady_s(pair, link, window, chunk, draft_bytes)
    if acceptance_rate > 1 - _RARE:
        tokens, epoch_s = 1.0, steady_s
    else:
        tokens = 1 / (1 - acceptance_rate)
        epoch_s = _epoch_s(pair, link, acceptance_rate, chunk, steady_s, draft_bytes, payload_bytes)
    if decode_when_idle:
        epoch_s = min(epoch_s, tokens * pair.verify_first_s)
    return Prediction(
        pair.verify_first_s,
        tokens_per_round=tokens,
        round_s=epoch_s,
        communication_s=link.communication_s(chunk * draft_bytes, payload_bytes),
        uplink_bytes=tokens * draft_bytes,
        downlink_bytes=payload_bytes,
    )


def _steady_s(
    pair: PairTimes, link: LinkTimes, window: int, chunk: int, draft_bytes: float
) -> float:
    """Seconds per token while every draft is accepted."""
    sending_s = draft_bytes / link.uplink_bytes_per_s
    judging_s = pair.verify_first_s / window + pair.verify_further_s
    return max(pair.draft_s, sending_s, judging_s, _loop_s(pair, link, chunk, draft_bytes) / window)


def _loop_s(pair: PairTimes, link: LinkTimes, chunk: int, draft_bytes: float) -> float:
    """From the first step of a chunk to its verdict."""
    return (
        chunk * pair.draft_s
        + link.communication_s(chunk * draft_bytes, 0)
        + pair.verify_s(chunk - 1)
    )


def _epoch_s(
    pair: PairTimes,
    link: LinkTimes,
    acceptance_rate: float,
    chunk: int,
    steady_s: float,
    draft_bytes: float,
    payload_bytes: float,
) -> float:
    """Expected length: the first chunk, the further ones at the steady pace, and the answer. The
    rejected draft lies in chunk i + 1 with probability A^i·(1 - A), A = a^chunk."""
    pass_s = pair.verify_s(chunk - 1)
    whole = acceptance_rate**chunk
    further_chunks = whole / (1 - whole)
    # A further chunk finds the cloud at work with this probability, half a pass from its end.
    busy = min(1.0, pass_s / (chunk * steady_s)) if steady_s > 0 else 1.0
    waiting_s = whole * busy * pass_s / 2
    first_s = chunk * pair.draft_s + link.communication_s(chunk * draft_bytes, payload_bytes)
    return first_s + further_chunks * chunk * steady_s + waiting_s + pass_s
