"""Drafts, passes and verdicts in every order that two streams permit: the answer's distribution is
the target's, in fractions, whoever decides what comes late.

Two tokens suffice to speak of a draft, the token in its place, and what was drafted after it."""

from dataclasses import replace
from typing import Any

import pytest

from tandem.core.errors import ProtocolError
from tandem.core.probs import Truncation
from tandem.specdec.choices import (
    CloudDrafts,
    Control,
    Predraft,
    RejectionPayload,
    Schedule,
    Uplink,
)
from tandem.specdec.pending_drafts import PendingDrafts
from tandem.specdec.presets import PRESETS, Preset
from tests.long_runs import LONG, with_long_cases
from tests.virtual_time.cases import ModelPair, opposed_pair, preset, scheduled, tree
from tests.virtual_time.exact_models import exact_payload_probs, pair_of
from tests.virtual_time.interleavings import Opponent
from tests.virtual_time.lockstep import Lockstep

MODELS = pair_of(
    draft={0: [1, 3, 0], 1: [3, 1, 0], 2: [1, 1, 0]},
    target={0: [3, 1, 0], 1: [1, 1, 0], 2: [1, 3, 0]},
)
"""The third token is the prompt's alone."""
PARTS = Schedule(2, 1, True, bonus=False, token_by_token=True)
"""PicoSpec's: drafts leave one by one and are judged as they arrive."""
CHUNKS = Schedule(4, 2, True, bonus=False, token_by_token=True)
PREPARED = Schedule(4, 2, bonus=False, token_by_token=True, prepare_on_arrival=True)
METHODS: dict[str, tuple[Preset, int]] = {
    "dsd": (preset("dsd", 2), 3),
    "dsd, pipelined": (scheduled("dsd", Schedule(2, 1, bonus=False)), 3),
    "dsd, pipelined, chunks of two": (scheduled("dsd", Schedule(4, 2, bonus=False)), 3),
    "dssd, nothing sent of the distribution": (
        preset("dssd", 2, payload_top=0, payload_tail_draws=0),
        3,
    ),
    "dssd-full, pipelined": (scheduled("dssd-full", Schedule(2, 1, bonus=False)), 3),
    "tslt-after": (preset("tslt-after", 2, truncation=Truncation(top_k=3)), 3),
    "picospec": (scheduled("picospec", PARTS, payload_top=3, control=Control.FIXED), 3),
    "picospec, chunks of two": (
        scheduled("picospec", CHUNKS, payload_top=3, control=Control.FIXED),
        3,
    ),
    "picospec, the cloud draws": (
        scheduled(
            "picospec",
            PARTS,
            uplink=Uplink.FULL_DISTRIBUTIONS,
            rejection_payload=RejectionPayload.TOKEN,
            control=Control.FIXED,
        ),
        3,
    ),
    "picospec, adaptive": (scheduled("picospec", PARTS, payload_top=3), 3),
    "picospec-top-k, all of it": (
        scheduled("picospec-top-k", PARTS, payload_top=3, control=Control.FIXED),
        3,
    ),
    "picospec-preverify": (
        scheduled("picospec-preverify", PREPARED, payload_top=3, control=Control.FIXED),
        3,
    ),
    "picospec-preverify, one chunk": (
        scheduled(
            "picospec-preverify",
            replace(PREPARED, window=3, chunk=3),
            payload_top=3,
            control=Control.FIXED,
        ),
        3,
    ),
    "picospec-preverify, nothing sent of the distribution": (
        scheduled(
            "picospec-preverify",
            PREPARED,
            payload_top=0,
            payload_tail_draws=0,
            control=Control.FIXED,
        ),
        3,
    ),
    "drafts ahead, pipelined": (
        scheduled("dsd", Schedule(2, 1, bonus=False), predraft=Predraft.LIKELY_OUTCOMES),
        2,
    ),
    "mc-dsd": (tree((2, 1)), 3),
}
EVERY_RUN = (
    *("dsd", "dsd, pipelined", "tslt-after", "picospec, the cloud draws"),
    *("drafts ahead, pipelined", "mc-dsd"),
)
"""In `make test`: where the orders are few. A change of the machines runs all (.ci/stages.toml)."""
EARLY_EXITS = {
    "fsd": preset("fsd", 1, payload_top=3),
    "fsd, pipelined": scheduled("fsd", Schedule(2, 1, bonus=False), payload_top=3),
}
COUPLED: dict[str, Preset] = {
    "coupled": preset("coupled", 2),
    "coupled, pipelined": scheduled("coupled", Schedule(2, 1)),
    "stream": scheduled(
        "stream",
        replace(PRESETS["stream"].schedule, window=2, chunk=2),
        control=Control.FIXED,
        predraft=Predraft.OFF,
    ),
    "stream, its own window": preset("stream", predraft=Predraft.OFF),
    "stream, one branch": scheduled(
        "stream",
        replace(PRESETS["stream"].schedule, window=2, chunk=2),
        control=Control.FIXED,
        predraft_workers=1,
        predraft_outcomes=1,
    ),
    "stream, drafts of the cloud too": scheduled(
        "stream",
        replace(PRESETS["stream"].schedule, window=2, chunk=1),
        control=Control.FIXED,
        predraft=Predraft.OFF,
        cloud_drafts=CloudDrafts.LOOKUP,
        cloud_draft_length=2,
    ),
    "auto": preset("auto", predraft=Predraft.OFF),
}
COUPLED_EVERY_RUN = ("coupled", "coupled, pipelined", "stream", "auto")


def check_exact(chosen: Preset, max_tokens: int, models: ModelPair = MODELS, **case: Any) -> None:
    opponent = Opponent(chosen, models, max_tokens=max_tokens, **case)
    ends = case.get("ends", frozenset())
    assert opponent.likeliest() == exact_payload_probs(max_tokens, ends, models)
    assert opponent.states > 10, "there was much to choose"


@pytest.mark.parametrize("method", with_long_cases(METHODS, EVERY_RUN))
def test_no_order_changes_the_distribution(method: str) -> None:
    check_exact(*METHODS[method])


@pytest.mark.parametrize(
    "method",
    with_long_cases(METHODS, ("dsd", "picospec-preverify", "mc-dsd")),
)
def test_nor_does_a_stream_that_breaks(method: str) -> None:
    """Whenever it does: what was judged is judged again, by the same chance."""
    chosen, max_tokens = METHODS[method]
    check_exact(chosen, max_tokens - 1, losses=1)


@pytest.mark.parametrize(
    "method",
    ["dsd, pipelined", "picospec", "picospec, chunks of two", "picospec-preverify, one chunk"],
)
def test_so_it_is_where_the_text_may_end(method: str) -> None:
    chosen, max_tokens = METHODS[method]
    check_exact(chosen, max_tokens, ends=frozenset({0}))


@pytest.mark.parametrize("method", EARLY_EXITS)
def test_so_it_is_with_early_verdicts(method: str) -> None:
    """One exit is like the draft model, the other like the target."""
    models = replace(MODELS, exit_distributions=(MODELS.draft_probs, MODELS.target_probs))
    check_exact(EARLY_EXITS[method], 2, models)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=LONG) for seed in (2, 3))])
@pytest.mark.parametrize("losses", [0, 1])
@pytest.mark.parametrize("method", with_long_cases(COUPLED, COUPLED_EVERY_RUN))
def test_coupled_text_is_the_targets_own_in_every_order(
    method: str, losses: int, seed: int
) -> None:
    models = opposed_pair()
    own = Lockstep(PRESETS["ar"], models, seed=seed, max_tokens=3).run()
    max_tokens = 3 - losses
    opponent = Opponent(COUPLED[method], models, seed=seed, max_tokens=max_tokens, losses=losses)
    assert opponent.likeliest() == {own[:max_tokens]: 1}
    assert opponent.states > 5, "there was much to choose"


def test_drafts_taken_for_live_after_a_text_that_is_gone_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Were the hash not compared, a draft that comes late would be judged in place of a later
    one."""
    monkeypatch.setattr(
        PendingDrafts,
        "follows_text",
        lambda self, draft: draft.base <= len(self._committed) + len(self),
    )
    with pytest.raises(ProtocolError):
        check_exact(*METHODS["picospec, the cloud draws"])
