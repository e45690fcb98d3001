"""What pre-drafting saves: the latencies of FSD, "Fast and Cost-effective Speculative Edge-Cloud
Decoding with Early Exits" (table and equation numbers are that paper's).

While a round is verified the edge drafts on from the outcomes it thinks likely. With probability
1 - r the true one is among them (a hit), and the next round's drafts are there at once.

What the paper prints and these formulas deny: the robot's speedup of 1.34 (Table 8b). With its own
times (Table 8a: 288 + 2·120 + 620 ms, r = 0.5563) Table 4 allows at most 1.126 however fast a hit
is, and eq. 9, which leaves communication out, 1.164. And "over 5x" at a miss rate of 10% needs
γc ≥ 8, so a latency ratio of 0.8 at γ = 10, where the text says 0.5.
"""

from lab.analysis.cost_models import LinkTimes, Prediction, expected_tokens_per_round
from tandem.control.conditions import PairTimes, check_duration
from tandem.core.errors import InvalidArgument


def fsd(
    pair: PairTimes,
    link: LinkTimes,
    *,
    acceptance_rate: float,
    draft_length: int,
    miss_rate: float,
    hit_s: float = 0.0,
    uplink_bytes: float = 0.0,
    downlink_bytes: float = 0.0,
) -> Prediction:
    """Predict stop-and-wait with a pre-draft cache: 2·Tc + r·γ·Tp + (1 - r)·Tr + Tq a round (Table
    4). `miss_rate` is r; `hit_s` is Tr, what taking drafts from the cache costs. The paper's Tc is
    one way. Bytes are per round, as the preset's other choices have them."""
    if not 0 <= miss_rate <= 1:
        raise InvalidArgument("miss_rate", f"must be within [0, 1], is {miss_rate}")
    check_duration("hit_s", hit_s)
    drafting_s = miss_rate * draft_length * pair.draft_s + (1 - miss_rate) * hit_s
    communication_s = link.communication_s(uplink_bytes, downlink_bytes)
    return Prediction(
        pair.verify_first_s,
        tokens_per_round=expected_tokens_per_round(acceptance_rate, draft_length),
        round_s=drafting_s + communication_s + pair.verify_s(draft_length),
        communication_s=communication_s,
        uplink_bytes=uplink_bytes,
        downlink_bytes=downlink_bytes,
    )
