"""Processes of a suite, with the lightest ones there are."""

import pytest

from lab.bench.harness.models import Models, Pacing
from lab.bench.harness.suite import (
    LinkController,
    PinnedProcess,
    SuiteFailed,
    clean_environment,
    cloud_draft_flags,
)
from lab.machine import usable_cores


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


def test_services_do_not_see_the_callers_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_MODEL", "elsewhere")
    environment = clean_environment()
    assert "TANDEM_MODEL" not in environment
    assert environment["OMP_NUM_THREADS"] == "1"


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
