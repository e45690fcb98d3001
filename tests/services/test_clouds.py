"""What a drafter knows of its clouds: by what they say of themselves, and by a file."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import replace
from pathlib import Path

import pytest
from grpc import StatusCode

from tandem.backends.interface import KV_BLOCK
from tandem.commands.keys import PUBLIC, replace_file
from tandem.core.errors import InvalidArgument
from tandem.net.access import ClientAccess
from tandem.net.status import Rejected
from tandem.net.tenant import Tenant
from tandem.routing.router import CloudReport, MoveReason
from tandem.services.drafter.cloud.clouds import Clouds, report_of
from tandem.services.drafter.cloud.listed import ListedCloud, clouds_in
from tandem.services.drafter.cloud.route import RELIEVE_EVERY_S, CloudRoute
from tandem.telemetry.metrics import Metrics, new_registry
from tandem_api.common.v1 import sampling_pb2
from tandem_api.verifier.v1 import verifier_pb2

WAIT_S = 60.0
A, B, C = (f"127.0.0.1:{port}" for port in (1, 2, 3))  # where nobody listens


def clouds_of_file(path: Path, *addresses: str) -> Clouds:
    write(path, *addresses)
    return Clouds(
        clouds_in(path), 2**16, ClientAccess(), Metrics(new_registry(), "device").clouds()
    )


def write(path: Path, *addresses: str) -> None:
    replace_file(path, "".join(f"{address}\n" for address in addresses).encode(), PUBLIC)


async def until_listed(clouds: Clouds, *addresses: str) -> None:
    """Sessions that come meanwhile have always one to go to."""
    async with asyncio.timeout(WAIT_S):
        while {each.address for each in clouds.status()} != {*addresses}:
            assert clouds.addresses[clouds.routing.choose(1)] in (A, B, C)
            await asyncio.sleep(0)


async def test_while_a_file_replaces_all_clouds_there_is_one_to_go_to(tmp_path: Path) -> None:
    clouds = clouds_of_file(tmp_path / "clouds", A)
    clouds.begin()
    try:
        write(tmp_path / "clouds", B, C)
        await until_listed(clouds, B, C)
    finally:
        await clouds.close()


async def test_refusals_are_of_addresses_and_not_of_numbers(tmp_path: Path) -> None:
    """A cloud that a file names in the place of one that refused has not refused."""
    clouds = clouds_of_file(tmp_path / "clouds", A, B)
    clouds.begin()
    try:
        route = CloudRoute(clouds, 1, Tenant("caller"))
        route.connect()
        assert route.failed(StatusCode.FAILED_PRECONDITION, 1.0), "the other one is left"
        route.connect()
        write(tmp_path / "clouds", C)
        await until_listed(clouds, C)
        assert route.failed(StatusCode.FAILED_PRECONDITION, 2.0), "the new one is left"
        route.connect()
        assert route.address == C
        assert not route.failed(StatusCode.FAILED_PRECONDITION, 3.0)
    finally:
        await clouds.close()


async def test_what_a_cloud_keeps_is_not_looked_for_at_another_of_its_number(
    tmp_path: Path,
) -> None:
    clouds = clouds_of_file(tmp_path / "clouds", A)
    text = range(4 * KV_BLOCK)
    clouds.left(Tenant("caller"), text, 0)
    assert clouds.keeping(Tenant("caller"), text) == 0
    clouds.begin()
    try:
        for addresses in ((B,), (B, C)):
            write(tmp_path / "clouds", *addresses)
            await until_listed(clouds, *addresses)
        assert clouds.addresses[0] == C
        assert clouds.keeping(Tenant("caller"), text) is None
    finally:
        await clouds.close()


async def test_where_a_tenant_s_text_was_left_is_nothing_to_another_of_the_same_caller(
    tmp_path: Path,
) -> None:
    """Which cloud a session goes to would tell what another one asked."""
    clouds = clouds_of_file(tmp_path / "clouds", A, B)
    text = range(4 * KV_BLOCK)
    clouds.left(Tenant("edge", b"alice"), text, 1)
    assert clouds.keeping(Tenant("edge", b"alice"), text) == 1
    assert clouds.keeping(Tenant("edge", b"bob"), text) is None
    assert clouds.keeping(Tenant("edge"), text) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize("field", ["queue_s", "pass_s", "price"])
def test_what_no_cloud_can_mean_is_no_answer(field: str, value: float) -> None:
    """Compared with it, every other cloud would be the better, or none."""
    told = verifier_pb2.DescribeResponse(sessions_open=2)
    setattr(told, field, value)
    with pytest.raises(InvalidArgument) as refused:
        report_of(CloudReport(0.1), told)
    assert refused.value.field == field
    setattr(told, field, 0.5)
    report = report_of(CloudReport(0.1), told)
    assert (report.round_trip_s, report.sessions, getattr(report, field)) == (0.1, 2, 0.5)


class SilentClouds(Clouds):
    """Which take all the time that they get."""

    timeouts_s: list[float]

    async def _describe(self, cloud: int, timeout_s: float) -> sampling_pb2.ModelDescription:
        self.timeouts_s.append(timeout_s)
        raise Rejected(StatusCode.DEADLINE_EXCEEDED, "silent")


async def test_no_silent_cloud_gets_more_than_its_part_of_the_time(tmp_path: Path) -> None:
    """Or a caller's own deadline would pass, and it would never hear why."""
    listed = [ListedCloud(A), ListedCloud(B), ListedCloud(C)]
    series = Metrics(new_registry(), "device").clouds()
    clouds = SilentClouds(listed, 2**16, ClientAccess(), series)
    clouds.timeouts_s = []
    with pytest.raises(Rejected) as refused:
        await clouds.describe(3.0)
    assert all(address in str(refused.value) for address in (A, B, C))
    first_s, second_s, last_s = clouds.timeouts_s
    assert first_s <= 1.0
    assert second_s <= 1.5
    assert last_s <= 3.0


@pytest.mark.parametrize("far", [False, True])
async def test_a_busy_cloud_is_left_by_one_session_after_the_other(far: bool) -> None:
    """A far one by all at once."""
    clouds = Clouds(
        [ListedCloud(A), ListedCloud(B)],
        *(2**16, ClientAccess(), Metrics(new_registry(), "device").clouds()),
    )
    near = CloudReport(0.02, model="m", pass_s=0.07)
    begun_s = time.monotonic()
    clouds.routing.reported(0, near, begun_s)
    routes = [CloudRoute(clouds, session, Tenant("caller")) for session in (1, 2)]
    for route in routes:
        route.connect()
        assert route.admits("m")
    worse = replace(near, round_trip_s=0.32) if far else replace(near, queue_s=0.3)
    for _ in range(5):
        clouds.routing.reported(0, worse, begun_s)
    clouds.routing.reported(1, near, begun_s)
    now = begun_s + 60.0
    first, second = routes
    assert first.why_leave(now) is second.why_leave(now) is MoveReason.BETTER
    first.leaves(MoveReason.BETTER, now)
    assert second.why_leave(now + 0.1) is (MoveReason.BETTER if far else None)
    assert second.why_leave(now + RELIEVE_EVERY_S) is MoveReason.BETTER
    await clouds.close()
