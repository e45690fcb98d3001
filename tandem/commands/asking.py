"""Putting one request to a suite: the stream shown as it grows, refusals as one line.

Invariant: leaving early, by Ctrl-C or because nobody reads the output any more, cancels the request
on every service. Must not import torch.
"""

from __future__ import annotations

import re
from typing import Any, Protocol

from tandem.commands.figures_line import figures_line
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
    assert result.summary is not None
    told = answer_figures(result)
    return figures_line({**told, "finish_reason": result.summary.finish_reason})


def _advice(endpoint: str) -> str:
    return f"check it with 'tandem doctor --endpoint {endpoint}'"
