"""Tables of the papers, computed from the cost models and set beside the printed numbers.

Table 1 of DSSD gives, for draft lengths 2…8 and acceptance rates 0.5…0.99, the probability of a
rejection 1 - a^n and the expected communication time of eq. 9,

    T_comm = (1 - a^n)·|V|·b_prob/R_down + T_NTT.

The paper names no parameters beside the table, but its cells fix them. Fitted together they leave
T_NTT within 0.005 ms of 20 ms, and at 20 ms a time of 8.0000…8.0020 ms for one distribution. Both
follow from values the text states elsewhere: section 4 configures a round-trip latency of 20 ms (of
{0, 20, 50}) and caps the bandwidth at 100 Mbit/s, and section 2.2 offers 16 bits as half precision.
That leaves |V| = 50,000 (to 50,012), a rounded vocabulary: with the 50,272 entries of the OPT
models of section 4 a distribution would take 8.04 ms, and the first cell would read 26.03 ms, not
26.00 ms. With these values all 24 cells are reproduced within the printed rounding (half a unit of
the second decimal); the cell (6, 0.5) is exactly 27.875 ms and printed 27.88.

Invariant: nothing printed enters a computation.
"""

from dataclasses import dataclass

from lab.analysis.cost_models import LinkTimes, dssd, rejection_probability
from tandem.control.conditions import PairTimes

RTT_S = 0.020
BYTES_PER_S = 100e6 / 8
PRECISION_BYTES = 2
VOCABULARY_SIZE = 50_000

ACCEPTANCE_RATES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.99)

# Table 1 as printed: draft length -> (1 - a^n, T_comm in ms) for each acceptance rate in order.
_PRINTED = {
    2: ((0.75, 26.00), (0.64, 25.12), (0.51, 24.08), (0.36, 22.88), (0.19, 21.52), (0.02, 20.16)),
    4: ((0.94, 27.50), (0.87, 26.96), (0.76, 26.08), (0.59, 24.72), (0.34, 22.75), (0.04, 20.32)),
    6: ((0.98, 27.88), (0.95, 27.63), (0.88, 27.06), (0.74, 25.90), (0.47, 23.75), (0.06, 20.47)),
    8: ((1.00, 27.97), (0.98, 27.87), (0.94, 27.54), (0.83, 26.66), (0.57, 24.56), (0.08, 20.62)),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One cell of DSSD's Table 1: computed from the formulas, and as printed."""

    draft_length: int
    acceptance_rate: float
    rejection_probability: float
    communication_s: float
    printed_rejection_probability: float
    printed_communication_s: float


def dssd_table_1() -> list[Row]:
    """Return all 24 cells of DSSD's Table 1, row by row."""
    return [
        _cell(draft_length, acceptance_rate, *printed)
        for draft_length, line in _PRINTED.items()
        for acceptance_rate, printed in zip(ACCEPTANCE_RATES, line, strict=True)
    ]


def _cell(
    draft_length: int, acceptance_rate: float, printed_probability: float, printed_ms: float
) -> Row:
    prediction = dssd(
        # Any pair: T_comm does not depend on the models' step times.
        PairTimes(draft_s=0.001, verify_first_s=0.01),
        LinkTimes(RTT_S, BYTES_PER_S, BYTES_PER_S),
        acceptance_rate=acceptance_rate,
        draft_length=draft_length,
        vocabulary_size=VOCABULARY_SIZE,
        precision_bytes=PRECISION_BYTES,
    )
    return Row(
        draft_length=draft_length,
        acceptance_rate=acceptance_rate,
        rejection_probability=rejection_probability(acceptance_rate, draft_length),
        communication_s=prediction.communication_s,
        printed_rejection_probability=printed_probability,
        printed_communication_s=printed_ms / 1e3,
    )
