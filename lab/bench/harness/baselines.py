"""What drafting at the edge is compared with: what a cloud does without it.

A cloud that can hold the target can often hold a draft model as well, and no link is in between.
So decoding one token at a time (`ar`) is the weaker baseline, and whichever of these presets is
fastest is the stronger."""

from __future__ import annotations

from collections.abc import Mapping

from tandem.testing.simulation.model_times import ModelTimes

ALONE = "ar"
CLOUD_DRAFT = "cloud-draft"
BASELINES = (ALONE, CLOUD_DRAFT)
"""Presets in which the edge drafts nothing, and the cloud does what it can."""


def best_baseline(speeds: Mapping[str, float]) -> str | None:
    """Return the fastest baseline; None where none was measured. `speeds`: of any presets by name,
    the larger the faster."""
    measured = [name for name in BASELINES if name in speeds]
    return max(measured, key=lambda name: speeds[name]) if measured else None


def declared_cloud_step_s(draft_s: float) -> float:
    """Return the seconds that a draft step in the cloud is declared to take, where one at the edge
    takes `draft_s`."""
    return ModelTimes(draft_s=draft_s).cloud_step_s
