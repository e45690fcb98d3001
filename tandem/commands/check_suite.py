"""Checks of a running suite, from the outside: it answers, and its two ends fit each other."""

from typing import Any

from tandem.commands.check_models import ONE_VOCABULARY, context_checks, describe, misfits
from tandem.commands.checks import Check
from tandem.generation.client import AggregatorClient
from tandem.net.access import ClientAccess
from tandem.net.process import run_loop
from tandem.net.status import Rejected

TIMEOUT_S = 10.0


def suite_checks(endpoint: str, access: ClientAccess) -> list[Check]:
    """Check the aggregator at `endpoint`, its drafter, and the drafter's verifier."""
    try:
        return judge_suite(endpoint, run_loop(describe_suite(endpoint, access)))
    except Rejected as error:
        found = f"{endpoint}: {error.code.name} {error}"
        if error.code.name in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
            todo = "set a valid key with the scope 'generate' (--call-key-file)"
            return [Check("endpoint", False, found, todo)]
        todo = "start a suite ('tandem up'), or set the address of its aggregator"
        return [Check("endpoint", False, found, todo)]


async def describe_suite(endpoint: str, access: ClientAccess | None = None) -> Any:
    """Return the aggregator's DescribeResponse. Without `access` the connection is plain. Raises
    Rejected."""
    async with AggregatorClient(endpoint, access=access) as client:
        return await client.describe(TIMEOUT_S)


def judge_suite(endpoint: str, described: Any) -> list[Check]:
    """Check what an aggregator says about itself and about both its ends."""
    draft = described.draft
    target = described.target
    checks = [
        Check("endpoint", True, f"{endpoint}; presets {', '.join(described.presets)}"),
        Check("edge", True, f"{draft.model_name}: {describe(draft)}"),
        *map(_cloud_check, described.clouds),
    ]
    if not described.HasField("target"):
        todo = "start the verifier, or set its address at the drafter"
        return [*checks, Check("cloud", False, described.cloud_error, todo)]
    differences = misfits(draft, target)
    return [
        *checks,
        Check("cloud", True, f"{target.model_name}: {describe(target)}"),
        Check("both ends", not differences, "; ".join(differences) or "fit", ONE_VOCABULARY),
        *context_checks(draft, target),
    ]


def _cloud_check(cloud: Any) -> Check:
    """Check one of several clouds, as the drafter sees it."""
    if not cloud.serving:
        todo = "start this verifier, or take its address out of the drafter's TANDEM_VERIFIER"
        return Check(cloud.address, False, "does not answer, or does not serve", todo)
    found = f"{cloud.model_name}: round trip {1e3 * cloud.round_trip_s:.0f} ms"
    return Check(cloud.address, True, f"{found}; {cloud.own_sessions} sessions of this edge")
