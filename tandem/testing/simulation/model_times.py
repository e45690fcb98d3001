"""How long models take in virtual time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelTimes:
    """Seconds per draft step, per pass over one token, and per further token in it, whichever
    session it is of. `slowed`: where both sides share processors, a step or pass that begins beside
    one of the other side takes so many times as long. `exit_s`: what each early exit that is read
    adds to a pass; `branch_s`: what each further branch adds to a draft step. `layers_s`: where the
    target is split, a pass of its first layers at the edge, whose hidden states have `hidden_size`
    numbers; the pass in the cloud is then that of the others. `cloud_draft_s`: a step of the draft
    model in the cloud, where presets have one; None: a fifth of `draft_s`. A pass waits for the
    sessions that draft there. `offers_cloud_drafts`: whether it is there for presets that may have
    drafts of the cloud, and demand none. `loaded`: so many times as long all takes that begins
    while other load is there, which comes after each `load_every_s` seconds and stays as long; 0:
    there is none."""

    draft_s: float = 0.024
    verify_first_s: float = 0.072
    verify_further_s: float = 0.003
    slowed: float = 1.0
    layers_s: float = 0.0
    hidden_size: int = 1
    exit_s: float = 0.0
    branch_s: float = 0.0
    cloud_draft_s: float | None = None
    offers_cloud_drafts: bool = False
    loaded: float = 1.0
    load_every_s: float = 0.0

    @property
    def cloud_step_s(self) -> float:
        """A step of the draft model in the cloud."""
        return self.draft_s / 5 if self.cloud_draft_s is None else self.cloud_draft_s

    def pass_s(self, tokens: int) -> float:
        """Return the duration of a pass of the target over `tokens` tokens."""
        return self.verify_first_s + (tokens - 1) * self.verify_further_s

    def slowed_at(self, moment_s: float, *, beside: bool) -> float:
        """Return how many times as long a step or pass takes that begins at a moment, `beside` one
        of the other side or not."""
        there = self.load_every_s > 0 and int(moment_s / self.load_every_s) % 2 == 1
        return (self.loaded if there else 1.0) * (self.slowed if beside else 1.0)
