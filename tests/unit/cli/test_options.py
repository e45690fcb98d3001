"""Values of flags: addresses and links."""

from __future__ import annotations

import click
import pytest

from tandem.commands.options import ADDRESS, address_text, link_settings
from tandem.core.errors import InvalidArgument
from tandem.netem.link_model import LinkSettings


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


def test_a_link_is_given_in_milliseconds_and_megabits() -> None:
    assert link_settings(30, 20, 2) == LinkSettings(0.015, 0.002, bytes_per_s=2.5e6)
    assert link_settings(0, None, 0).instant


@pytest.mark.parametrize(
    ("link", "field"),
    [((-1, None, 0), "rtt_ms"), ((0, 0, 0), "mbps"), ((0, None, float("nan")), "jitter_ms")],
)
def test_a_bad_link_is_refused_by_its_flag(
    link: tuple[float, float | None, float], field: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        link_settings(*link)
    assert refused.value.field == field
