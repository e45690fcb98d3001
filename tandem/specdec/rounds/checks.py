"""What an edge checks of a cloud's frames of rounds before they change anything."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.core.errors import ProtocolError
from tandem.core.tokens import PrefixedTokens
from tandem.specdec.checks import check_base, check_prefix, check_shape, check_token
from tandem.specdec.events import EdgeRequest
from tandem.specdec.rounds.messages import EarlyVerdict, FullDistribution


def check_early_verdict(
    verdict: EarlyVerdict,
    request: EdgeRequest,
    committed: PrefixedTokens,
    sent: Sequence[int],
) -> None:
    """Check that an early verdict was asked for, and judges drafts that were sent (token ids
    `sent`), as the preset says. Raises as `check_committed`."""
    preset = request.preset
    if not preset.exits:
        raise ProtocolError("no early exits asked for", "EarlyVerdict")
    check_base(verdict, committed)
    _check_judged(verdict, len(sent))
    if isinstance(verdict.outcome, int):
        check_token(verdict.outcome, request, "EarlyVerdict")
    elif not verdict.rejected or preset.cloud_draws:
        raise ProtocolError("nothing to draw", "an early verdict with a distribution to draw from")
    check_prefix(verdict, committed, ())


def check_full_distribution(
    message: FullDistribution, request: EdgeRequest, committed: PrefixedTokens
) -> None:
    """Check that this is a distribution at the position that is being drawn."""
    check_base(message, committed)
    check_shape(message.target_probs, request, "FullDistribution")
    check_prefix(message, committed, ())


def _check_judged(verdict: EarlyVerdict, sent: int) -> None:
    judged = verdict.accepted + verdict.rejected
    if verdict.accepted < 0 or not 1 <= judged <= sent:
        raise ProtocolError(f"{sent} drafts sent", f"an early verdict on {judged}")
