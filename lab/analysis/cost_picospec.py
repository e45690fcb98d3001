"""What an asynchronous pipeline saves: the analysis of PicoSpec, section 3.4 (its eqs. 5-10).

While one chunk is on its way and judged, the edge drafts the next, as if all were accepted. If they
are (probability a^n) the slower of the two activities is all that counts; else the round is paid
in full, as under stop-and-wait.

The paper counts n + 1 tokens for a full hit (eq. 5), though a pipeline has no bonus token there:
the next chunk's first draft is at its position. `cost_window` counts n. Its measured accepted
lengths (Table 4: 2.03, 2.50, 2.84, 3.10 at n = 3…6) do not come from one acceptance rate in eq. 5:
the first needs 0.55, the last 0.71.
"""

from lab.analysis.cost_models import (
    LinkTimes,
    Prediction,
    expected_tokens_per_round,
    rejection_probability,
)
from tandem.specdec.scheduling import PairTimes


def picospec(
    pair: PairTimes,
    link: LinkTimes,
    *,
    acceptance_rate: float,
    draft_length: int,
    uplink_bytes: float = 0.0,
    downlink_bytes: float = 0.0,
) -> Prediction:
    """Rounds of a^n·max(T_draft, T_rtt + T_verify) + (1 - a^n)·(T_draft + T_rtt + T_verify). Eqs.
    8-9; tokens per round by eq. 5. Bytes are per round, serialised within T_rtt as in the paper."""
    missed = rejection_probability(acceptance_rate, draft_length)
    draft_s = draft_length * pair.draft_s
    communication_s = link.communication_s(uplink_bytes, downlink_bytes)
    answer_s = communication_s + pair.verify_s(draft_length)
    return Prediction(
        pair.verify_first_s,
        tokens_per_round=expected_tokens_per_round(acceptance_rate, draft_length),
        round_s=(1 - missed) * max(draft_s, answer_s) + missed * (draft_s + answer_s),
        communication_s=communication_s,
        uplink_bytes=uplink_bytes,
        downlink_bytes=downlink_bytes,
    )
