"""TPOT predicted from the measured parts of a run: what a run without any overhead would take.

The parts are the summary's own sums (draft time, verification time, messages, tokens, rounds) and
the link as it was set. Efficiency = predicted ÷ measured TPOT; what is missing to 1 is transport
stacks, scheduling and our own code.
"""

from __future__ import annotations

from dataclasses import dataclass

from lab.analysis.cost_models import predict_tpot
from tandem.core.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class SetLink:
    """The link as it was set: the round trip in seconds, 10⁶ bits per second each way."""

    rtt_s: float = 0.0
    mbps: float | None = None

    def serialisation_s(self, size_bytes: float) -> float:
        return 0.0 if self.mbps is None else size_bytes * 8 / (self.mbps * 1e6)


@dataclass(frozen=True, slots=True)
class RoundSums:
    """Sums over one answer of a stop-and-wait preset."""

    tokens: int
    rounds: int
    drafted: int
    draft_s: float
    verify_s: float
    uplink_bytes: int
    downlink_bytes: int
    full_distribution_requests: int = 0


def stop_and_wait_tpot_s(sums: RoundSums, link: SetLink) -> float:
    """Return the TPOT of one answer: `rounds` − 1 mean rounds for the `tokens` − 1 tokens after the
    first.

    The first round ends at the first commit, where TPOT starts to count. A request for the full
    distribution costs one more round trip. Raises InvalidArgument for fewer than two rounds.
    """
    if sums.rounds < 2 or sums.tokens < 2:
        raise InvalidArgument("rounds", "a prediction needs two rounds at least")
    trips = 1 + sums.full_distribution_requests / sums.rounds
    return predict_tpot(
        "stop-and-wait",
        tokens_per_round=(sums.tokens - 1) / (sums.rounds - 1),
        draft_s=sums.draft_s / max(1, sums.drafted),
        draft_length=sums.drafted / sums.rounds,
        verify_s=sums.verify_s / sums.rounds,
        up_s=trips * link.rtt_s / 2 + link.serialisation_s(sums.uplink_bytes / sums.rounds),
        down_s=trips * link.rtt_s / 2 + link.serialisation_s(sums.downlink_bytes / sums.rounds),
    )


def streamed_tpot_s(
    tokens: int, verify_s: float, prefill_s: float, downlink_bytes: int, link: SetLink
) -> float:
    """Return the TPOT when the cloud decodes alone and streams: its step, or the message's
    serialisation if that is longer. `verify_s` sums all passes; `prefill_s` is the prompt's, which
    ends at the first token. Raises InvalidArgument for fewer than two tokens."""
    if tokens < 2:
        raise InvalidArgument("tokens", "a prediction needs two tokens at least")
    step_s = (verify_s - prefill_s) / (tokens - 1)
    return max(step_s, link.serialisation_s(downlink_bytes / tokens))
