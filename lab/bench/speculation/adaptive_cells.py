"""What `bench adaptive` compares in: links of two directions, round trips, acceptance, and for each
preset that chooses while it runs, the fixed settings that it is compared with in hindsight. In
virtual time; all step times are declared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

from lab.simulation.answer import Conditions, simulate_answer
from lab.simulation.declared_pair import declared_pair
from lab.simulation.model_pair import SimulatedPair
from lab.simulation.simulator import ModelTimes
from lab.simulation.spread_pair import spread_pair
from tandem.core.probs import Truncation
from tandem.netem.link_model import shape_from
from tandem.specdec.presets import PRESETS, TREES, Preset

CHAINS = ("dsd", "dssd", "dssd-full", "coupled")
TRUNCATED = ("tslt", "mc-dsd")
LINKS = ((1.0, 10.0), (10.0, 10.0), (100.0, 100.0))
"""10⁶ bit/s up and down."""
RTTS_S = (0.0, 0.030, 0.100, 0.300)
RATES = (0.3, 0.6, 0.9)
LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
TRUNCATED_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
KEPT = (8, 32, 128, 320, 1280, 5120)
EXPANSIONS = tuple(
    dict.fromkeys(widths[:depth] for widths in TREES for depth in (1, 2, 3, 4, 6, 8))
)
"""Trees, the paper's ⟨2,2,2⟩ among them."""
TREE_KEPT = (32, 320, 1280)
TOKENS = 400
FIRST_TOKENS = 80
"""Of the answers by which most of many fixed settings are left out."""
VOCABULARY = 32_000
"""That whole distributions count as: TSLT's and DSSD's."""
WORDS = 64
"""Vocabulary of the declared pair: small ones draw sooner."""
SPREAD_WORDS = 8192
"""Vocabulary where truncation counts."""
SEEDS = 3


@dataclass(frozen=True, slots=True)
class Cell:
    """What is declared. `rate`: acceptance of every draft, or where truncation counts, of those
    from whole distributions on average."""

    preset: str
    mbps_up: float
    mbps_down: float
    rtt_s: float
    rate: float

    def __str__(self) -> str:
        link = f"{self.mbps_up:g}/{self.mbps_down:g} Mbit/s, {self.rtt_s * 1e3:g} ms"
        return f"{self.preset}, {link}, acceptance {self.rate:g}"

    @property
    def chosen(self) -> Preset:
        """The preset as it chooses while it runs."""
        return PRESETS[self.preset].adaptive()

    def fixed(self) -> dict[str, Preset]:
        """Return the fixed settings to choose from in hindsight, by their names."""
        return dict(_fixed(self.chosen))

    def tokens_per_s(self, preset: Preset, seed: int, tokens: int = TOKENS) -> float:
        """Return the tokens per second of one answer, from its first token on."""
        shape = shape_from(self.rtt_s, mbps_up=self.mbps_up, mbps_down=self.mbps_down)
        spread = self.preset in TRUNCATED
        conditions = Conditions(
            ModelTimes(), link=shape, padded_vocabulary=None if spread else VOCABULARY
        )
        pair = _pair(self.rate, seed, spread)
        answer = simulate_answer(preset, pair, conditions, (1, seed % WORDS), tokens, seed)
        assert answer.tpot_s is not None, "several tokens"
        return 1 / answer.tpot_s


def _fixed(preset: Preset) -> Iterator[tuple[str, Preset]]:
    fixed = preset.fixed()
    if not preset.truncation.cuts:
        for length in LENGTHS:
            yield f"{length} drafts", fixed.with_draft_length(length)
        return
    for kept in TREE_KEPT if preset.expansion else KEPT:
        cut = replace(fixed, truncation=Truncation(top_k=kept))
        if preset.expansion:
            for widths in EXPANSIONS:
                tree = ",".join(map(str, widths))
                yield f"tree {tree}, {kept} kept", cut.with_expansion(widths)
        else:
            for length in TRUNCATED_LENGTHS:
                yield f"{length} drafts, {kept} kept", cut.with_draft_length(length)


def grid(quick: bool) -> list[Cell]:
    """Return all cells; for a quick run only a few."""
    presets = (*CHAINS, *TRUNCATED)
    if quick:
        return [
            *(Cell(name, 1.0, 10.0, 0.1, 0.6) for name in CHAINS),
            *(Cell(name, 100.0, 100.0, 0.03, 0.9) for name in CHAINS),
            Cell("tslt", 1.0, 10.0, 0.03, 0.6),
        ]
    return [
        Cell(name, up, down, rtt_s, rate)
        for (up, down), rtt_s, rate, name in product(LINKS, RTTS_S, RATES, presets)
    ]


@lru_cache(maxsize=SEEDS)
def _pair(rate: float, seed: int, spread: bool) -> SimulatedPair:
    """Return one pair for all settings, which mostly ask for the same distributions."""
    if spread:
        return spread_pair(rate, seed=seed, vocabulary_size=SPREAD_WORDS)
    return declared_pair(rate, seed=seed, vocabulary_size=WORDS)
