"""Putting one request to a suite: the stream shown as it grows, refusals as one line.

Invariant: leaving early, by Ctrl-C or because nobody reads the output any more, cancels the request
on every service. Must not import torch.
"""

from __future__ import annotations

import re
from typing import Any, Protocol

from tandem.core.errors import InvalidArgument, TandemError
from tandem.rpc.access import ClientAccess
from tandem.rpc.aggregator_client import AggregatorClient, Generated
from tandem.rpc.figures import answer_figures
from tandem.rpc.generation import GenerationRequest
from tandem.rpc.status import Rejected


class View(Protocol):
    """Something that shows an answer while it grows."""

    def update(self, result: Generated) -> None: ...


class Silent:
    """Shows nothing."""

    def update(self, result: Generated) -> None:
        pass


async def ask(
    endpoint: str,
    request: GenerationRequest,
    timeout_s: float,
    view: View,
    access: ClientAccess | None = None,
) -> Generated:
    """The finished answer; without `access` over a plain connection. Raises InvalidArgument for a
    bad request, else TandemError."""
    result = Generated()
    try:
        async with AggregatorClient(endpoint, access=access) as client:
            async for result in client.stream(request, timeout_s):
                view.update(result)
    except Rejected as error:
        raise explain(error, endpoint, timeout_s) from error
    if result.summary is None:
        raise TandemError(f"{endpoint} ended the answer without a summary; {_advice(endpoint)}")
    return result


def explain(error: Rejected, endpoint: str, timeout_s: float) -> TandemError:
    """What a status means for whoever typed the command."""
    details = str(error) or error.code.name
    match error.code.name:
        case "INVALID_ARGUMENT":
            field, colon, why = details.partition(": ")
            if colon and re.fullmatch(r"\w+", field):
                return InvalidArgument(field, why)
            return InvalidArgument("request", details)
        case "DEADLINE_EXCEEDED":
            return TandemError(
                f"no complete answer within {timeout_s:g} s; raise --timeout or ask for less"
            )
        case "UNAVAILABLE":
            return TandemError(f"{endpoint}: {details}; {_advice(endpoint)}")
        case "UNAUTHENTICATED":
            return TandemError(f"{endpoint}: {details}; give one that it knows: --call-key-file")
    return TandemError(f"{endpoint}: {error.code.name}: {details}")


def answer_object(request: GenerationRequest, result: Generated) -> dict[str, Any]:
    """A finished answer as the object that `tandem generate --json` prints (DESIGN §7)."""
    summary = result.summary
    assert summary is not None
    return {
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": summary.finish_reason,
        "preset": summary.preset,
        "seed": request.seed,
        **answer_figures(result),
    }


def figures(result: Generated) -> str:
    """TTFT, TPOT, acceptance and bytes of a finished answer, in one line."""
    summary = result.summary
    assert summary is not None
    tokens = max(1, summary.tokens)
    parts = [f"{summary.tokens} tokens ({summary.finish_reason}) by {summary.preset}"]
    if result.ttft_s is not None:
        parts.append(f"TTFT {_milliseconds(result.ttft_s)}")
    if result.tpot_s:
        parts.append(f"TPOT {_milliseconds(result.tpot_s)} ({1 / result.tpot_s:.0f} tokens/s)")
    if summary.drafted:
        parts.append(f"acceptance {summary.accepted / summary.drafted:.0%}")
    up, down = summary.uplink_bytes / tokens, summary.downlink_bytes / tokens
    parts.append(f"bytes per token {up:.1f} up, {down:.1f} down")
    parts.append(f"{summary.target_passes / tokens:.2f} target passes per token")
    if summary.predraft_hits + summary.predraft_misses:
        turns = summary.predraft_hits + summary.predraft_misses
        parts.append(f"pre-draft misses {summary.predraft_misses / turns:.0%}")
    if summary.lossy:
        parts.append("lossy: the law of the answer is not quite the target's")
    if result.unverified:
        parts.append(f"{len(result.unverified)} tokens unverified: the cloud was lost")
    return "; ".join(parts)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"


def _advice(endpoint: str) -> str:
    return f"check it with 'tandem doctor --endpoint {endpoint}'"
