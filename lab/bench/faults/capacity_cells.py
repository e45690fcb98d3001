"""What `bench capacity` compares in: who drafts, what bounds a pass of the target, links,
acceptance. All of it is declared. Invariant: a cell is a value; searched once, it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from types import MappingProxyType

from lab.bench.harness.models import Pacing
from lab.simulation.sessions_held import Capacity, sessions_held, together
from lab.simulation.shared_verifier import VerifierFigures, VerifierPlan
from tandem.specdec.presets import PRESETS

ALONE = "ar"
CLOUD = "cloud-draft"
EDGES = ("coupled", "stream")
ARMS = (ALONE, CLOUD, *EDGES)
TARGETS: Mapping[str, Pacing] = MappingProxyType(
    {"memory": Pacing(0.024, 0.072, 0.0005), "compute": Pacing(0.024, 0.072, 0.009)}
)
"""By what bounds a pass. Memory: a further row takes 1/144 of the first, about what an H200 needs
in bfloat16 (see `auto_cases.PACINGS`). Compute: it takes an eighth."""
CLOUD_SHARE = 1 / 15
"""Of a target's pass over as many rows: a draft step in the cloud. With a pass of 72 ms that is 4.8
ms, a fifth of an edge's step."""
TPOT_S = 0.100
RATES = (0.5, 0.7, 0.8, 0.9)
RTTS_S = (0.0, 0.040, 0.100)
QUICK_RATES = (0.5, 0.8)
QUICK_RTTS_S = (0.040,)
SHARES = (1 / 30, 1 / 15, 1 / 5, 1 / 3)
EDGE_STEPS_S = (0.024, 0.012)
LIMITS_S = (0.080, 0.100, 0.150, 0.200)


@dataclass(frozen=True, slots=True)
class Cell:
    """What is declared. `target`: what bounds its passes; `rate`: acceptance of each draft;
    `tpot_s`: what 95 % of the answers are promised; `share`: of a pass, a draft step in the cloud;
    `draft_s`: seconds of one at an edge."""

    target: str
    rtt_s: float
    rate: float
    tpot_s: float = TPOT_S
    share: float = CLOUD_SHARE
    draft_s: float = TARGETS["memory"].draft_s

    def __str__(self) -> str:
        link = f"{self.rtt_s * 1e3:g} ms, acceptance {self.rate:g}"
        return f"bound by {self.target}, {link}, TPOT {self.tpot_s * 1e3:g} ms"

    def capacity(self, arm: str, seed: int) -> Capacity:
        """Return how many sessions the verifier holds."""
        return _capacity(self._plan(arm, seed), self.tpot_s)

    def together(self, arm: str, sessions: int, seed: int) -> VerifierFigures:
        """Return the figures of this many sessions at once."""
        return together(self._plan(arm, seed), sessions)

    def _plan(self, arm: str, seed: int) -> VerifierPlan:
        pacing = replace(TARGETS[self.target], draft_s=self.draft_s)
        return plan_of(arm, pacing, self.rtt_s, self.rate, self.share, seed)

    @property
    def bound(self) -> float:
        """The bound of `clients_bound` for a pass that judges one session alone, where it is
        loosest."""
        pacing = TARGETS[self.target]
        length = PRESETS[CLOUD].cloud_draft_length
        verify_s = pacing.verify_first_s + length * pacing.verify_further_s
        return clients_bound(length, self.share * pacing.verify_first_s, verify_s)


@cache
def _capacity(plan: VerifierPlan, tpot_s: float) -> Capacity:
    return sessions_held(plan, tpot_s)


def clients_bound(length: float, draft_s: float, verify_s: float) -> float:
    """Return how many times as many clients a saturated server can have at most if each round's
    drafts are made elsewhere: 1 + γ·t_draft/t_verify (Lyu et al., arXiv 2606.25091).

    Args:
        length: γ, the drafts of a round.
        draft_s: seconds of a draft step in the cloud.
        verify_s: seconds of the pass that judges them."""
    return 1 + length * draft_s / verify_s


def bound_at(drafting_share: float) -> float:
    """Return the bound of `clients_bound` for a verifier that spends this share of its computing on
    its draft steps: the time of passes and draft steps over that of the passes."""
    return 1 / (1 - drafting_share)


def plan_of(
    arm: str, pacing: Pacing, rtt_s: float, rate: float, share: float, seed: int
) -> VerifierPlan:
    """Return the plan of one verifier with these declared times. Plans that differ only in what
    does not concern their preset are equal, so that they are simulated once."""
    preset = PRESETS[arm]
    return VerifierPlan(
        preset,
        sessions=1,
        verify_first_s=pacing.verify_first_s,
        verify_further_s=pacing.verify_further_s,
        draft_s=pacing.draft_s,
        # TPOT is measured where tokens leave, so a link delays nothing but an edge's drafts.
        rtt_s=rtt_s if preset.drafts else 0.0,
        acceptance_rate=rate if preset.drafts or preset.drafts_in_cloud else 0.0,
        seed=seed,
        cloud_draft_s=share * pacing.verify_first_s if preset.drafts_in_cloud else 0.0,
        cloud_draft_further_s=share * pacing.verify_further_s if preset.drafts_in_cloud else 0.0,
    )


def grid(quick: bool, tpot_s: float) -> list[Cell]:
    """Return all cells; in a quick run those of one link and two acceptance rates."""
    rates, rtts_s = (QUICK_RATES, QUICK_RTTS_S) if quick else (RATES, RTTS_S)
    return [Cell(*choice, tpot_s) for choice in product(TARGETS, rtts_s, rates)]
