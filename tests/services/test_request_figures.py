"""What the drafter's metrics say of a request, by how far it came."""

import pytest

from tandem.net.frame_stream import Traffic
from tandem.services.drafter.request_figures import count_request
from tandem.specdec.edge import EdgeMachine
from tandem.specdec.liveness import Liveness, LostCloud
from tandem.specdec.messages import Opened
from tandem.telemetry.metrics import UNKNOWN_MODEL, Metrics, new_registry
from tests.virtual_time.cases import model_pair, preset
from tests.virtual_time.edge_frames import TIMES, frame_of
from tests.virtual_time.lockstep import request_for


@pytest.mark.parametrize("reached", [True, False])
def test_a_request_that_reached_no_target_brings_no_histograms(reached: bool) -> None:
    """They would be dozens of series for each preset, of a target that nobody knows."""
    metrics = Metrics(new_registry(), "device")
    edge = EdgeMachine(
        request_for(preset("coupled"), model_pair(8)), Liveness(LostCloud.WAIT, TIMES, now=0.0)
    )
    edge.connect(0.0)
    if reached:
        edge.receive(Opened(*frame_of(edge), 8, frozenset(), "scripted"), 0.0)
    name = edge.target_name or UNKNOWN_MODEL
    count_request(metrics.method("coupled", name), edge, Traffic())
    labels = {"preset": "coupled", "model_name": name, "side": "device"}
    value = metrics.registry.get_sample_value
    assert value("tandem_uplink_bytes_total", labels) == 0
    assert value("tandem_draft_window_tokens_count", labels) == (1 if reached else None)
