"""The decisions of a controller: when drafts travel and when they are judged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Control(StrEnum):
    """The rule that decides how far ahead the edge drafts; the schedule's window and chunk are the
    limits."""

    FIXED = "fixed"
    LATENCY_AWARE = "latency_aware"
    """PicoSpec: a chunk ends where it stops paying for itself, or takes too long."""
    LEAST_COST = "least_cost"
    """Whatever is expected to cost least: the cloud alone, or a stream."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """When tokens travel and when they are judged.

    `window`: tokens that may be in flight; 0 means the edge drafts nothing. `chunk`: tokens sent at
    once. `token_by_token`: send each token of a chunk as soon as it is drafted.
    `verify_on_arrival`: judge what has come, not whole chunks. `bonus`: after full acceptance with
    nothing in flight the cloud adds a token of its own. `decode_when_idle`: the cloud goes on while
    no draft waits. `prepare_on_arrival`: the idle cloud feeds the drafts of a chunk that is not
    whole yet to the target, once a chunk, and judges them with the whole chunk (PicoSpec's
    PreVerify, §3.2)."""

    window: int
    chunk: int
    verify_on_arrival: bool = False
    bonus: bool = True
    decode_when_idle: bool = False
    token_by_token: bool = False
    prepare_on_arrival: bool = False

    @property
    def in_rounds(self) -> bool:
        """True if one chunk at a time is in flight, after which the cloud may add a token."""
        return self.window == self.chunk and not self.decode_when_idle

    @property
    def stop_and_wait(self) -> bool:
        """True if a verdict judges everything that is in flight."""
        return self.in_rounds and not self.verify_on_arrival

    @property
    def words(self) -> str:
        """The schedule in words, for people."""
        if not self.window:
            return CLOUD_ALONE
        if self.stop_and_wait:
            return f"rounds of {self.chunk}"
        if self.decode_when_idle:
            return f"stream, window {self.window}"
        return f"chunks of {self.chunk}, window {self.window}"


CLOUD_ALONE = "the large model alone"
CLOUD_DRAFTS = "the cloud with its own drafts"


def cloud_alone(limits: Schedule) -> Schedule:
    """Return the schedule in which nothing is drafted."""
    return replace(limits, window=0, chunk=0)
