"""A delay that sways."""

from __future__ import annotations

import pytest

from lab.simulation.sinusoidal_link import SinusoidalLink
from tandem.core.errors import InvalidArgument
from tandem.netem.link_model import LinkSettings


def test_a_swaying_delay_is_a_sine_of_time() -> None:
    link = SinusoidalLink(LinkSettings(delay_s=0.1), amplitude_s=0.02, period_s=8.0)
    delays = [link.send(100, now) - now for now in (0.0, 2.0, 4.0, 6.0, 8.0)]
    assert delays == pytest.approx([0.1, 0.12, 0.1, 0.08, 0.1])
    with pytest.raises(InvalidArgument, match="period_s"):
        SinusoidalLink(LinkSettings(), 0.1, 0.0)
