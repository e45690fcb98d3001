"""Which words are addresses of services."""

from __future__ import annotations

import pytest

from tandem.net.addresses import addresses_of, check_addresses


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1:50051",
        "[::1]:50051",
        "verifier:50051",
        "a.example.com:50051, b.example.com:50051",
        "dns:///verifiers.eu.example.com:50051",
        "ipv4:10.0.0.1:50051,10.0.0.2:50051",
        "unix:/run/tandem.sock",
    ],
)
def test_what_can_be_called(text: str) -> None:
    assert check_addresses(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "nowhere",
        "50051",
        ":50051",
        "host:",
        "host:port",
        "http://host:1",
        "a:1,b",
        "::1",
        "",
        " , ",
    ],
)
def test_what_grpc_would_take_for_a_host(text: str) -> None:
    with pytest.raises(ValueError, match="must be HOST:PORT"):
        check_addresses(text)


def test_several_are_told_apart_and_replicas_are_one() -> None:
    assert addresses_of("a:1, b:2,a:1") == ["a:1", "b:2"]
    assert addresses_of("ipv4:10.0.0.1:1,10.0.0.2:1") == ["ipv4:10.0.0.1:1,10.0.0.2:1"]
