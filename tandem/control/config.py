"""Every number that the controller of `auto`, the window of `stream` and the pass budget were given
rather than measured."""

from __future__ import annotations

from dataclasses import dataclass

TINY = 1e-9
"""Keeps quotients finite; decides nothing."""


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """One instance serves all sessions. Each field says its unit and why it has its value."""

    # Readings of times.

    readings: int = 9
    """Readings. A time is the mean of the middle third of so many: three slow ones, a process's
    first ones for example, do not move it, and a change is believed after half of them."""
    doubt: float = 0.3
    """Share by which a time may be wrong that is not measured yet; less with each reading."""
    half_life_s: float = 300.0
    """Seconds after which a reading counts half; after twice that it is forgotten. Machines and
    links change within minutes, and all is measured again within an answer."""
    jump: float = 1.5
    """Times as long or short as before: more than passes differ by from one to the next."""
    far: float = 3.0
    """A pass that takes so many times as long as expected had to wait for something."""
    trips: int = 32
    fresh_trips_s: float = 2.0
    few_trips: int = 4
    """The shortest round trip of the last two seconds is believed, or of the last four: others
    waited for a pass."""
    ping_every_s: float = 1.0
    """Seconds between pings, which tell the round trip where drafts do not."""
    slope_keep: float = 0.98
    """What each pass keeps of the weight of those before it in the slope over its length."""
    slope_prior: float = 1.0
    slope_warm: float = 20.0
    """Squared distances in rows that the prior share and that of earlier answers count for."""

    # What is believed before it was measured.

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
    frame_bytes: float = 30.0
    token_bytes: float = 3.0
    """Of a message without payload, and of a draft in it, as `bench bytes` measures."""

    # Acceptance.

    prior_acceptance: float = 0.7
    """Share of drafts. What is believed before any was judged; usual for a distilled pair."""
    acceptance_tokens: float = 32.0
    """Drafts. Acceptance follows the text: so many judged drafts ago counts a third. Two
    sentences."""
    few_tokens: int = 4
    """Tokens of a first look. So many drafts weigh as much as the prior, a trial ends with so many
    judged, and for so many tokens the cloud decodes alone to be measured: fewer are chance."""
    warm_tokens: float = 16.0
    """Drafts that the acceptance of earlier answers counts for: less than a sentence of this
    one."""
    surest: float = 0.98
    """Share of drafts. Acceptance is never believed higher."""
    hope: float = 0.995
    """Of a draft step's time, for each token without drafts, in presets that only fit a window."""

    # Schedules.

    lengths: tuple[int, ...] = (2, 4, 8, 16)
    """Tokens. Windows and rounds that are compared; between them the cost is flat."""
    rare: float = 0.02
    """Probability. What happens less often is left out of a cost."""
    wait_worth: float = 1.3
    """Waiting for a draft pays up to so many times what that draft saves by itself, since more
    come after it. Simulated on the demo pair: 1 to 1.6 cost as much time, 1 up to a tenth more
    passes."""
    branch_steps: int = 8
    branches_slow: float = 1.3
    """Drafting for other outcomes pays where so many draft steps take longer than a pass, else
    drafts come in time anyway; and while it makes no step so many times as long."""
    tie: float = 0.02
    """What time counts between plans that are as good by an objective that leaves it out."""
    switch_gain: float = 0.05
    """Share of the time by which another schedule must be better than the one in use: estimates
    are noisy, and a change loses what is in flight."""
    choose_every_s: float = 0.03
    """Seconds between two choices at least: a choice takes 0.3 ms of the edge's event loop,
    twice that where it looks for a trial."""
    stretch_tokens: int = 12
    """Tokens in a row that tell what a schedule really takes: less is mostly luck with drafts."""
    chance: float = 0.12
    """Logarithm of the ratio to what was expected that may be chance in such stretches."""

    # Trials.

    trial_share: float = 0.015
    """Share of an answer's time that trials may lose. The gate for `auto` against the cloud alone
    is 2 %; it leaves room for a choice that was wrong."""
    short_answer_tokens: int = 50
    """Tokens. A shorter answer bears no trial where earlier ones told what drafts are worth; where
    nothing is known, trials may count on so many before they came."""

    # Passes that sessions share, at the cloud.

    feeding_gain: float = 1.1
    """A draft must be worth so many times its cost: the estimates are noisy."""
    usual_tokens: float = 8.0
    """Drafts of a session that the usual acceptance counts for."""
    usual_keep: float = 0.998
    """What each judged draft keeps of the weight of those before it in the usual acceptance."""
    follow: float = 0.3
    """Weight of a pass in the sessions and the tokens of a pass."""
    follow_yield: float = 0.05
    """Weight of a session's share of a pass in what sessions get of one."""


DEFAULT_CONFIG = ControllerConfig()
