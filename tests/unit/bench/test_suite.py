"""Processes of a suite, with the lightest ones there are."""

import os

import pytest

from bench.machine import pinned, usable_cores
from bench.suite import LinkSteering, PinnedProcess, SuiteFailed, clean_environment


def test_a_link_process_is_steered_and_ends() -> None:
    with PinnedProcess("bench.link_process", ("127.0.0.1:9",), usable_cores()[0]) as process:
        host, port = process.address.rsplit(":", 1)
        assert host == "127.0.0.1"
        assert int(port) > 0
        assert process.cpu_s() > 0
        link = LinkSteering(process.words[2])
        link.set(0.03, 20.0)
        link.set(0.0, None)
        with pytest.raises(SuiteFailed, match="rtt_s"):
            link.set(-1.0, 20.0)
    with pytest.raises(ConnectionRefusedError):
        link.set(0.0, None)


def test_a_process_that_does_not_start_says_why() -> None:
    with (
        pytest.raises(SuiteFailed, match=r"services\.aggregator did not start: .*port"),
        PinnedProcess("services.aggregator", ("--port", "70000"), usable_cores()[0]),
    ):
        pass


def test_services_do_not_see_the_callers_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_MODEL", "elsewhere")
    environment = clean_environment()
    assert "TANDEM_MODEL" not in environment
    assert environment["OMP_NUM_THREADS"] == "1"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no core pinning on this system")
def test_pinning_ends_with_its_context() -> None:
    before = os.sched_getaffinity(0)
    with pinned(usable_cores()[0]):
        assert os.sched_getaffinity(0) == {usable_cores()[0]}
    assert os.sched_getaffinity(0) == before
