"""Every number that was given rather than measured: to the controller of `auto`, and to the pass
budgets at the cloud."""

from __future__ import annotations

from dataclasses import dataclass

TINY = 1e-9
"""Keeps quotients finite; decides nothing."""


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """One instance serves all sessions. Each field says its unit and why it has its value; the
    properties follow from fields."""

    # How times are measured.

    readings: int = 9
    """Readings. A time is the mean of the middle third of so many: three slow ones, a process's
    first ones for example, do not move it, and a change is believed after half of them. A round
    trip is the shortest of so many, since others waited for a pass."""
    forget_s: float = 600.0
    """Seconds after which a reading is forgotten. Machines and links change within minutes, and all
    is measured again within an answer."""
    stale_s: float = 60.0
    """Seconds after which the time of a draft step may have changed: nothing measures it where
    nothing is drafted. A trial loses a few tokens: one a minute is less than `trial_share`."""
    half_life_s: float = 300.0
    """Seconds after which a draft of an earlier answer counts half."""
    far: float = 3.0
    """Times as long as expected. What takes longer, once, had to wait for something else."""
    ping_every_s: float = 1.0
    """Seconds between pings, which tell the round trip where drafts do not. Round trips of before
    the last two are old."""

    # What is believed before it was measured.

    prior_row_share: float = 0.05
    """Share of a pass over one token that each further row adds, until passes of different length
    were seen. Graphics processors take less, llama.cpp on a few cores 0.4."""
    prior_draft_share: float = 0.3
    """Share of a pass that a draft step takes."""
    prior_acceptance: float = 0.7
    """Share of drafts; usual for a distilled pair."""
    same_machine_s: float = 0.002
    """Seconds. A shorter round trip means that both models share processors."""
    message_s: float = 0.0005
    """Seconds that processors spend on a message and its answer. Decides where a pass takes a few
    milliseconds."""

    # How much text tells something.

    few_tokens: int = 4
    """Tokens of a first look. So many drafts weigh as much as what is believed before any, or as
    what is usual for others; a trial ends with so many judged, and for so many tokens the cloud
    decodes alone to be measured: fewer are chance."""
    sentence_tokens: int = 16
    """Tokens of a short sentence. What earlier answers say of acceptance counts for so many drafts;
    and twice as many drafts ago, or passes, counts a third."""
    pooled_tokens: int = 500
    """Tokens after which the rate of all sessions has changed: sentences of some thirty sessions
    that share a cloud."""
    short_answer_tokens: int = 50
    """Tokens. Where nothing is known of drafts, a trial may count on so many before they came."""

    # Which schedule is chosen.

    window: int = 16
    """Tokens in flight of the stream. The cloud feeds no more of them to a pass than pay, so the
    window has to be long enough for the round trip, and nothing else: a window of 4 to choose
    beside it left 54 cells of `bench auto` as they were."""
    negligible: float = 0.02
    """Probability, or share. Drafts are never believed surer than the rest, and a stream that gains
    less is left."""
    switch_gain: float = 0.05
    """Share by which something must be better than what it takes the place of, another schedule or
    a draft in a pass that others share: estimates are noisy, and a change loses what is in
    flight."""
    gain_over_cloud_drafts: float = 0.4
    """The share where the cloud drafts itself: what that gains is known less well, and each of
    several sessions that leaves it slows down those that stay. Where other load comes and goes each
    second (acceptance 0.8), `auto` was 9 to 10 % slower with 0.25 to 0.3 than with this."""
    trial_share: float = 0.015
    """Share of an answer's time that trials may lose. The gate for `auto` against the cloud alone
    is 2 %; it leaves room for a choice that was wrong."""
    reading_share: float = 0.02
    """Share of the longest answer's time that a draft model may take to read the prompt for a
    trial, where it reads on the processors that the cloud computes with. With a draft of 14 million
    parameters that is nothing, with one of half a billion a tenth of a short answer."""
    try_share: float = 0.01
    """Share of a cloud's passes that drafts may cost which are tried although they are not expected
    to pay, before any of them is accepted."""
    decide_every_s: float = 0.06
    """Seconds between two decisions at least: one takes the edge's event loop, on the processors
    that a cloud on the same machine computes with."""

    # Passes that sessions share.

    follow: float = 0.3
    """Weight of the last pass in how many sessions there are, and tokens of each: sessions come and
    go all at once."""

    @property
    def keep(self) -> float:
        """Factor by which a draft, or a pass, reduces the weight of those before it."""
        return 1 - 1 / (2 * self.sentence_tokens)

    @property
    def pooled_keep(self) -> float:
        """Factor by which a token reduces the weight in the rate of all sessions."""
        return 1 - 1 / self.pooled_tokens

    @property
    def surest(self) -> float:
        """The highest acceptance that is believed."""
        return 1 - self.negligible


DEFAULT_CONFIG = ControllerConfig()
