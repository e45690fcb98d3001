"""How long a token takes and how many bytes it costs, per method, from measured step times.

The models are those of "DSSD: Efficient Edge-Device LLM Deployment and Collaborative Inference via
Distributed Split Speculative Decoding" (equation numbers below are that paper's). Two of its
statements are taken with their misprints corrected: section 2.1 and algorithms 1-2 print the
acceptance ratio upside down (a draft is accepted with probability
min(1, target_probs/draft_probs)), and the sentence after eq. 6 swaps the two models' run times.

Common to all: draft tokens are accepted independently with probability `acceptance_rate`, as in
the paper, and the size of a token index and of a single probability is neglected (section 2.2).
"""

from dataclasses import dataclass
from math import inf, isfinite, isnan

from tandem.control.conditions import PairTimes, check_duration
from tandem.core.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """A link: `rtt_s` is the paper's T_NTT (both propagations, queues, processing). The two rates
    (R_up, R_down) are in bytes per second; `math.inf` leaves serialisation out."""

    rtt_s: float
    uplink_bytes_per_s: float = inf
    downlink_bytes_per_s: float = inf

    def __post_init__(self) -> None:
        check_duration("rtt_s", self.rtt_s)
        for field in ("uplink_bytes_per_s", "downlink_bytes_per_s"):
            rate = getattr(self, field)
            if isnan(rate) or rate <= 0:
                raise InvalidArgument(field, f"must be above 0, is {rate}")

    def communication_s(self, uplink_bytes: float, downlink_bytes: float) -> float:
        """Return T_comm = D_up/R_up + D_down/R_down + T_NTT (eqs. 1-3)."""
        return (
            uplink_bytes / self.uplink_bytes_per_s
            + downlink_bytes / self.downlink_bytes_per_s
            + self.rtt_s
        )


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a model predicts: of a round, the expected tokens, seconds and bytes. `verify_first_s`:
    one step of the target alone; `communication_s`: T_comm."""

    verify_first_s: float
    tokens_per_round: float
    round_s: float
    communication_s: float
    uplink_bytes: float
    downlink_bytes: float

    @property
    def tpot_s(self) -> float:
        return self.round_s / self.tokens_per_round

    @property
    def speedup_over_ar(self) -> float:
        """Ratio of throughputs (eqs. 14-15) to the target decoding alone, which no link limits."""
        return self.verify_first_s / self.tpot_s if self.tpot_s > 0 else inf


def dsd(
    pair: PairTimes,
    link: LinkTimes,
    *,
    acceptance_rate: float,
    draft_length: int,
    vocabulary_size: int,
    precision_bytes: float,
) -> Prediction:
    """Predict distributed speculative decoding, where a whole draft distribution goes up with every
    draft token. D_up = draft_length·|V|·b (eq. 4), T_comm by eq. 5, the round by eqs. 6-7; what
    else travels is not counted. `precision_bytes` is b_prob, in bytes per probability."""
    return stop_and_wait(
        pair,
        link,
        acceptance_rate=acceptance_rate,
        draft_length=draft_length,
        uplink_bytes=draft_length * _probs_bytes(vocabulary_size, precision_bytes),
        downlink_bytes=0.0,
    )


def dssd(
    pair: PairTimes,
    link: LinkTimes,
    *,
    acceptance_rate: float,
    draft_length: int,
    vocabulary_size: int,
    precision_bytes: float,
) -> Prediction:
    """Split verification: one target distribution comes down, and only when a draft was rejected.

    E[D_down] = (1 - a^n)·|V|·b (eqs. 8-9), the round by eq. 13; what else travels is not counted.
    """
    rejected = rejection_probability(acceptance_rate, draft_length)
    return stop_and_wait(
        pair,
        link,
        acceptance_rate=acceptance_rate,
        draft_length=draft_length,
        uplink_bytes=0.0,
        downlink_bytes=rejected * _probs_bytes(vocabulary_size, precision_bytes),
    )


def expected_tokens_per_round(acceptance_rate: float, draft_length: int) -> float:
    """Return (1 - a^(n+1))/(1 - a): the accepted drafts and the one token that always follows them.
    Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", eq. 1."""
    _check_round(acceptance_rate, draft_length)
    # Summed, not divided: exact at a = 1 and free of cancellation near it.
    return float(sum(acceptance_rate**position for position in range(draft_length + 1)))


def rejection_probability(acceptance_rate: float, draft_length: int) -> float:
    """Return 1 - a^n: the probability that at least one of n drafts is rejected (before eq. 9)."""
    _check_round(acceptance_rate, draft_length)
    return float(1 - acceptance_rate**draft_length)


def stop_and_wait(
    pair: PairTimes,
    link: LinkTimes,
    *,
    acceptance_rate: float,
    draft_length: int,
    uplink_bytes: float,
    downlink_bytes: float,
) -> Prediction:
    """Predict T_inf = draft_length·T_SLM + T_comm + T_LLM (eq. 6) and what follows from it."""
    communication_s = link.communication_s(uplink_bytes, downlink_bytes)
    return Prediction(
        pair.verify_first_s,
        tokens_per_round=expected_tokens_per_round(acceptance_rate, draft_length),
        round_s=draft_length * pair.draft_s + communication_s + pair.verify_s(draft_length),
        communication_s=communication_s,
        uplink_bytes=uplink_bytes,
        downlink_bytes=downlink_bytes,
    )


def _probs_bytes(vocabulary_size: int, precision_bytes: float) -> float:
    if vocabulary_size < 1:
        raise InvalidArgument("vocabulary_size", f"must be at least 1, is {vocabulary_size}")
    if not (isfinite(precision_bytes) and precision_bytes > 0):
        raise InvalidArgument("precision_bytes", f"must be above 0, is {precision_bytes}")
    return vocabulary_size * precision_bytes


def check_acceptance(acceptance_rate: float) -> None:
    """Raise InvalidArgument unless it is a probability."""
    if not 0 <= acceptance_rate <= 1:
        raise InvalidArgument("acceptance_rate", f"must be within [0, 1], is {acceptance_rate}")


def _check_round(acceptance_rate: float, draft_length: int) -> None:
    check_acceptance(acceptance_rate)
    if draft_length < 1:
        raise InvalidArgument("draft_length", f"must be at least 1, is {draft_length}")
