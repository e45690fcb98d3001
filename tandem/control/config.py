"""Every number that the controller of `auto` was given rather than measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """One instance serves all sessions. Each field says its unit and why it has its value."""

    readings: int = 9
    """Readings. A time is the mean of the middle third of so many: three slow ones, a process's
    first ones for example, do not move it, and a change is believed after half of them."""
    doubt: float = 0.3
    """Share by which a time may be wrong that is not measured yet; less with each reading."""
    half_life_s: float = 300.0
    """Seconds after which a reading counts half; after twice that it is forgotten. Machines and
    links change within minutes, and all is measured again within an answer."""
    acceptance_tokens: float = 32.0
    """Drafts. Acceptance follows the text: so many judged drafts ago counts a third. Two
    sentences."""
    prior_acceptance: float = 0.7
    """Share of drafts. What is believed before any was judged; usual for a distilled pair."""
    few_tokens: int = 4
    """Tokens of a first look. So many drafts weigh as much as the prior, a trial ends with so many
    judged, and for so many tokens the cloud decodes alone to be measured: fewer are chance."""
    warm_tokens: float = 16.0
    """Drafts that the acceptance of earlier answers counts for: less than a sentence of this
    one."""
    prior_row_share: float = 0.05
    """Share of a pass over one token that each further row adds, until passes of different length
    were seen. Graphics processors take less, llama.cpp on a few cores 0.4."""
    prior_draft_share: float = 0.3
    """Share of a pass that a draft step takes before one was measured."""
    same_machine_s: float = 0.002
    """Seconds. A shorter round trip means that both models share processors…"""
    same_machine_slows: float = 1.2
    """…and until it was seen, a pass is believed to take so many times as long beside drafting."""
    message_s: float = 0.0005
    """Seconds that processors spend on a message and its answer. Decides where a pass takes a few
    milliseconds."""
    switch_gain: float = 0.05
    """Share of the time by which another schedule must be better than the one in use: estimates
    are noisy, and a change loses what is in flight."""
    trial_share: float = 0.015
    """Share of an answer's time that trials may lose. The gate for `auto` against the cloud alone
    is 2 %; it leaves room for a choice that was wrong."""
    short_answer_tokens: int = 50
    """Tokens. A shorter answer bears no trial where earlier ones told what drafts are worth; where
    nothing is known, trials may count on so many before they came."""
    stretch_tokens: int = 12
    """Tokens in a row that tell what a schedule really takes: less is mostly luck with drafts."""
    chance: float = 0.12
    """Logarithm of the ratio to what was expected that may be chance in such stretches."""
    choose_every_s: float = 0.03
    """Seconds between two choices at least: a choice takes 0.3 ms of the edge's event loop,
    twice that where it looks for a trial."""


DEFAULT_CONFIG = ControllerConfig()
