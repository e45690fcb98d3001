"""Values of flags: addresses and links."""

from __future__ import annotations

from typing import Any

import click
import pytest

from tandem.commands.options import (
    ADDRESS,
    address_text,
    link_shape,
)
from tandem.core.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:50050", ("127.0.0.1", 50050)),
        ("edge.example:0", ("edge.example", 0)),
        ("[::1]:7", ("::1", 7)),
    ],
)
def test_an_address_and_back(text: str, address: tuple[str, int]) -> None:
    assert ADDRESS.convert(text, None, None) == address
    assert address_text(address) == text


@pytest.mark.parametrize("text", ["", "host", ":1", "host:", "host:x", "host:-1", "host:65536"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not HOST:PORT"):
        ADDRESS.convert(text, None, None)


def link_flags(**given: Any) -> dict[str, Any]:
    return {
        "rtt_ms": 0.0,
        "jitter_ms": 0.0,
        "mbps": None,
        "mbps_up": None,
        "mbps_down": None,
        "delay_up_ms": None,
        "delay_down_ms": None,
        "loss": 0.0,
        "loss_burst": 1.0,
    } | given


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"rtt_ms": -1}, "rtt_ms"),
        ({"mbps": 0}, "mbps"),
        ({"mbps_up": 0}, "mbps_up"),
        ({"mbps_down": float("inf")}, "mbps_down"),
        ({"delay_up_ms": -1}, "delay_up_ms"),
        ({"jitter_ms": float("nan")}, "jitter_ms"),
        ({"loss": 60}, "loss"),
        ({"loss": 1, "loss_burst": 0.5}, "loss_burst"),
    ],
)
def test_a_bad_link_is_refused_by_its_flag(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        link_shape(link_flags(**given))
    assert refused.value.field == field


def test_a_bad_time_of_a_link_is_shown_in_the_unit_of_its_flag() -> None:
    with pytest.raises(InvalidArgument) as refused:
        link_shape(link_flags(rtt_ms=-3.0))
    assert refused.value.why == "must be finite and not negative, is -3 ms"
