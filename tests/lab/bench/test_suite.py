"""Processes of a suite, with the lightest ones there are."""

import os

import pytest

from lab.bench.harness.models import Models, Pacing
from lab.bench.harness.suite import (
    LinkController,
    PinnedProcess,
    SuiteFailed,
    clean_environment,
    cloud_draft_flags,
)
from lab.machine import OthersMeter, pinned, usable_cores


def test_a_link_process_is_steered_and_ends() -> None:
    with PinnedProcess(
        "lab.bench.harness.link_process", ("127.0.0.1:9",), usable_cores()[0]
    ) as process:
        host, port = process.address.rsplit(":", 1)
        assert host == "127.0.0.1"
        assert int(port) > 0
        assert process.cpu_s() > 0
        link = LinkController(process.words[2])
        link.set(0.03, 20.0)
        link.set(0.0, None)
        with pytest.raises(SuiteFailed, match="rtt_s"):
            link.set(-1.0, 20.0)
    with pytest.raises(ConnectionRefusedError):
        link.set(0.0, None)


def test_a_process_that_does_not_start_says_why() -> None:
    with (
        pytest.raises(SuiteFailed, match=r"services\.aggregator did not start: .*port"),
        PinnedProcess("tandem.services.aggregator", ("--port", "70000"), usable_cores()[0]),
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


def test_own_work_is_not_the_work_of_others() -> None:
    others = OthersMeter()
    sum(range(3_000_000))
    share = others.share()
    assert share is None or 0 <= share <= 1.5


def test_a_verifier_drafts_with_the_pair_s_draft_model_as_the_edge_does() -> None:
    """Its steps take the time that is declared for the cloud, a fifth of the edge's."""
    models = Models(draft="small", draft_dtype="int8", device="cuda")
    flags = cloud_draft_flags(models, Pacing(0.024, 0.072, 0.003))
    given = dict(zip(flags[::2], flags[1::2], strict=True))
    assert float(given.pop("--pace-cloud-draft-s")) == pytest.approx(0.0048)
    assert given == {
        "--cloud-draft": "small",
        "--cloud-draft-engine": "auto",
        "--cloud-draft-dtype": "int8",
        "--cloud-draft-device": "cuda",
    }
    of_file = cloud_draft_flags(Models(draft="small.gguf", draft_dtype="float16"))
    assert "--pace-cloud-draft-s" not in of_file
    assert "--cloud-draft-device" not in of_file
