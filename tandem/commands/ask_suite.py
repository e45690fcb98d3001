"""Putting one request to a suite: the stream shown as it grows, refusals as one line. Invariant:
leaving early (Ctrl-C, or nobody reads the output) cancels the request on every service."""

from collections.abc import Callable
from typing import Any

from tandem.commands.open_sampling import sampling_of
from tandem.core.errors import TandemError
from tandem.generation.client import AggregatorClient, Generated
from tandem.generation.figures import (
    answer_figures,
    choice_estimates,
    choice_line,
    figures_line,
    plain_line,
)
from tandem.generation.request import GenerationRequest
from tandem.net.access import ClientAccess
from tandem.net.status import Rejected


async def ask(
    endpoint: str,
    request: GenerationRequest,
    timeout_s: float,
    on_growth: Callable[[Generated], None] = lambda result: None,
    access: ClientAccess | None = None,
) -> Generated:
    """Send a request and return the finished answer, after a call of `on_growth` with each stage of
    it. Without `access` the connection is plain. Raises InvalidArgument for a bad request, else
    TandemError."""
    result = Generated()
    try:
        async with AggregatorClient(endpoint, access=access) as client:
            async for result in client.stream(request, timeout_s):
                on_growth(result)
    except Rejected as error:
        raise explain(error, endpoint, timeout_s) from error
    if result.summary is None:
        raise TandemError(f"{endpoint} ended the answer without a summary; {_advice(endpoint)}")
    return result


def explain(error: Rejected, endpoint: str, timeout_s: float) -> TandemError:
    """Return what a status means for whoever typed the command."""
    match error.code.name:
        case "DEADLINE_EXCEEDED":
            return TandemError(
                f"no complete answer within {timeout_s:g} s; raise --timeout or ask for less"
            )
        case "UNAVAILABLE":
            where = "" if endpoint in str(error) else f"{endpoint}: "
            return TandemError(f"{where}{error}; {_advice(endpoint)}")
        case "UNAUTHENTICATED":
            return TandemError(f"{endpoint}: {error}; set a valid key with --call-key-file")
    from tandem.api.errors import typed  # with all services, which a refusal can wait for

    return typed(error, endpoint)


def answer_object(request: GenerationRequest, result: Generated) -> dict[str, Any]:
    """Return a finished answer as the object that `tandem generate --json` prints."""
    summary = result.summary
    assert summary is not None
    return {
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": summary.finish_reason,
        "preset": summary.preset,
        "seed": request.params.seed,
        "sampling": sampling_of(request),
        **answer_figures(result),
    }


def figures(result: Generated, *, verbose: bool = False, explain_choice: bool = False) -> str:
    """Return a plain line about a finished answer. `verbose` adds a line with all figures, and one
    with what the preset chose, if it chooses anything; `explain_choice` adds the estimates behind
    that choice."""
    assert result.summary is not None
    finish_reason = result.summary.finish_reason
    taken = answer_figures(result)
    lines = [plain_line(taken, finish_reason)]
    if verbose:
        lines.append(figures_line(taken, finish_reason))
    if verbose or explain_choice:
        lines.append(choice_line(taken))
    if explain_choice:
        lines.append(choice_estimates(taken) or f"{taken['preset']} chose no schedule")
    return "\n".join(line for line in lines if line)


def _advice(endpoint: str) -> str:
    return f"check it with 'tandem doctor --endpoint {endpoint}'"
