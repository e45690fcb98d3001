"""Checks of what the other side sent, before any state of this one changes.

Invariant: each failure is an InvalidArgument that names the field (or ProtocolError, or
PrefixMismatch), and leaves the machine as it was. Must not import asyncio, grpc, torch or time.
"""

from __future__ import annotations

from tandem.core.errors import InvalidArgument, ProtocolError
from tandem.protocol.aggregation_messages import SideDraftFrame, TargetFrame
from tandem.protocol.agreements import Agreement, AtAggregator, OneSide
from tandem.protocol.phase import Phase
from tandem.protocol.prefixes import PrefixedTokens


def check_settled(committed: PrefixedTokens, base: int, prefix: int, settled: int) -> None:
    """Up to where the sender knows its text to be final it must be the text here."""
    if base <= min(settled, len(committed)):
        committed.check(base, prefix)


def check_side_draft(frame: SideDraftFrame, agreement: Agreement, length_limit: int) -> None:
    """A draft for a position of the answer, with as much of its law as was agreed on."""
    if frame.base >= length_limit:
        raise InvalidArgument("base", f"{frame.base} lies beyond the answer")
    if not agreement.rule.accepts(frame.law):
        raise InvalidArgument("law", "is not what was agreed on")


def check_target(
    frame: TargetFrame, agreement: Agreement | None, committed: PrefixedTokens, phase: Phase
) -> Agreement:
    """It comes from the side that decides, and goes on where the text here ends. Returns how the
    sides agree."""
    if agreement is None or (isinstance(agreement, AtAggregator) and agreement.here):
        raise ProtocolError(phase, "TargetFrame", "this side decides")
    if not isinstance(agreement, AtAggregator) and not (
        isinstance(agreement, OneSide) and agreement.hears()
    ):
        raise ProtocolError(phase, "TargetFrame", "no side tells the other")
    if frame.base != len(committed):
        raise InvalidArgument("base", f"{frame.base} where {len(committed)} is due")
    committed.check(frame.base, frame.prefix)
    return agreement
