"""What a drafter knows of its clouds, and where a session goes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from grpc import StatusCode

from tandem.commands.keys import PUBLIC, replace_file
from tandem.net.access import ClientAccess
from tandem.net.status import Rejected
from tandem.services.drafter.cloud.clouds import Clouds
from tandem.services.drafter.cloud.link import CloudLink
from tandem.services.drafter.cloud.listed import clouds_in
from tandem.specdec.messages import GoingAway, Opened
from tandem.telemetry.metrics import Metrics, new_registry
from tandem_api.common.v1 import sampling_pb2

WAIT_S = 60.0
A, B, C = (f"127.0.0.1:{port}" for port in (1, 2, 3))  # where nobody listens
REPLICAS = "ipv4:127.0.0.1:1,127.0.0.1:2"
FRAME = 7, 5, 0


def clouds_with(*addresses: str) -> Clouds:
    series = Metrics(new_registry(), "device").clouds()
    return Clouds(addresses, 2**16, ClientAccess(), series)


def clouds_of_file(path: Path, *addresses: str) -> Clouds:
    write(path, *addresses)
    series = Metrics(new_registry(), "device").clouds()
    return Clouds(clouds_in(path), 2**16, ClientAccess(), series)


def write(path: Path, *addresses: str) -> None:
    replace_file(path, "".join(f"{address}\n" for address in addresses).encode(), PUBLIC)


async def until_listed(clouds: Clouds, *addresses: str) -> None:
    """Sessions that come meanwhile have always one to go to."""
    async with asyncio.timeout(WAIT_S):
        while clouds.order.addresses != addresses:
            assert clouds.order.choose() in (A, B, C)
            await asyncio.sleep(0)


def link_to(clouds: Clouds) -> tuple[CloudLink, list[str]]:
    """A session's link, and where its streams went."""
    went: list[str] = []

    def opened(connection: Any, on_frame: Any, on_end: Any) -> Any:
        went.append(connection.target)

    return CloudLink(clouds, opened), went


def connect(link: CloudLink) -> None:
    link.open_stream(lambda message, size_bytes: None, lambda error: None)


def opened_by(model_name: str) -> Opened:
    return Opened(*FRAME, 4, frozenset(), model_name)


async def test_while_a_file_replaces_all_clouds_there_is_one_to_go_to(tmp_path: Path) -> None:
    clouds = clouds_of_file(tmp_path / "clouds", A)
    clouds.begin()
    try:
        write(tmp_path / "clouds", B, C)
        await until_listed(clouds, B, C)
    finally:
        await clouds.close()


async def test_each_cloud_that_has_not_refused_is_tried_once(tmp_path: Path) -> None:
    """One that a file names in the place of one that refused has not refused."""
    clouds = clouds_of_file(tmp_path / "clouds", A, B)
    clouds.begin()
    try:
        link, went = link_to(clouds)
        connect(link)
        assert link.failed(StatusCode.RESOURCE_EXHAUSTED), "the other one is left"
        connect(link)
        write(tmp_path / "clouds", C, B)
        await until_listed(clouds, C, B)
        assert link.failed(StatusCode.FAILED_PRECONDITION), "the new one is left"
        connect(link)
        assert went == [A, B, C]
        assert not link.failed(StatusCode.FAILED_PRECONDITION)
        connect(link)
        assert went == [A, B, C, B], "all did: it is asked again in turn"
        link.end()
    finally:
        await clouds.close()


@pytest.mark.parametrize("code", [StatusCode.INVALID_ARGUMENT, StatusCode.DEADLINE_EXCEEDED])
async def test_what_any_cloud_would_refuse_no_other_one_is_asked(code: StatusCode) -> None:
    link, went = link_to(clouds_with(A, B))
    connect(link)
    assert not link.failed(code)
    connect(link)
    assert went == [A, A]


async def test_a_fault_of_the_conversation_moves_nobody() -> None:
    link, went = link_to(clouds_with(A, B))
    connect(link)
    connect(link)
    assert went == [A, A]


async def test_a_lost_cloud_is_left_and_new_sessions_do_not_go_there() -> None:
    clouds = clouds_with(A, B)
    link, went = link_to(clouds)
    connect(link)
    assert link.failed(StatusCode.UNAVAILABLE)
    other, went_too = link_to(clouds)
    connect(other)
    connect(link)
    assert (went, went_too) == ([A, B], [B])


async def test_a_cloud_that_goes_away_is_left_but_not_a_name_with_replicas() -> None:
    going = GoingAway(*FRAME)
    link, went = link_to(clouds_with(A, B))
    connect(link)
    link.heard(going, 1.0)
    connect(link)
    assert went == [A, B]
    link, went = link_to(clouds_with(REPLICAS, B))
    connect(link)
    link.heard(going, 1.0)
    connect(link)
    assert went == [REPLICAS, REPLICAS]


async def test_another_model_may_not_continue_a_text() -> None:
    link, _ = link_to(clouds_with(A, B))
    connect(link)
    assert link.admits(opened_by("a"))
    connect(link)
    assert not link.admits(opened_by("b"))
    assert link.admits(opened_by("a"))


async def test_a_single_cloud_is_asked_again_and_again() -> None:
    link, went = link_to(clouds_with(A))
    for code in (StatusCode.UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED):
        connect(link)
        assert not link.failed(code)
    connect(link)
    assert went == [A, A, A]


class SilentClouds(Clouds):
    """Which take all the time that they get."""

    timeouts_s: list[float]

    async def _describe(self, cloud: str, timeout_s: float) -> sampling_pb2.ModelDescription:
        self.timeouts_s.append(timeout_s)
        raise Rejected(StatusCode.DEADLINE_EXCEEDED, "silent")


async def test_no_silent_cloud_gets_more_than_its_part_of_the_time() -> None:
    """Or a caller's own deadline would pass, and it would never hear why."""
    series = Metrics(new_registry(), "device").clouds()
    clouds = SilentClouds((A, B, C), 2**16, ClientAccess(), series)
    clouds.timeouts_s = []
    with pytest.raises(Rejected) as refused:
        await clouds.describe(3.0)
    assert all(address in str(refused.value) for address in (A, B, C))
    first_s, second_s, last_s = clouds.timeouts_s
    assert first_s <= 1.0
    assert second_s <= 1.5
    assert last_s <= 3.0


async def test_who_refused_is_asked_again_once_the_only_other_one_is_lost() -> None:
    """It may have room by now; the one that is lost may never come back."""
    link, went = link_to(clouds_with(A, B))
    connect(link)
    assert link.failed(StatusCode.UNAVAILABLE)
    connect(link)
    assert link.failed(StatusCode.RESOURCE_EXHAUSTED)
    connect(link)
    assert link.failed(StatusCode.UNAVAILABLE)
    connect(link)
    assert went == [A, B, A, B]


async def test_a_cloud_that_is_named_no_more_bounds_no_draft(tmp_path: Path) -> None:
    """A session that is there still may open another stream to it."""
    clouds = clouds_of_file(tmp_path / "clouds", A)
    clouds.begin()
    try:
        link, _ = link_to(clouds)
        connect(link)
        write(tmp_path / "clouds", B)
        await until_listed(clouds, B)
        clouds.takes(B, 32)
        await asyncio.sleep(0.2)
        assert link.admits(replace(opened_by("a"), max_draft_length=2))
        assert clouds.longest_draft == 32
    finally:
        await clouds.close()
