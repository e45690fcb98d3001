"""Several emulated links steered as one, as one radio carries every connection of a device.

Invariant: all members have the same settings and are cut together. Must not import grpc or torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tandem.netem.link_model import LinkSettings
from tandem.netem.tcp_emulator import LinkStats, TcpLinkEmulator


class Steered(Protocol):
    """What can be done to a link, or to several at once."""

    @property
    def settings(self) -> tuple[LinkSettings, LinkSettings]: ...

    def cut(self) -> None: ...

    def restore(self) -> None: ...

    def drop(self) -> None: ...

    def configure(
        self, up: LinkSettings | None = None, down: LinkSettings | None = None
    ) -> None: ...

    def stats(self) -> LinkStats: ...


class LinkGroup:
    """At least one emulator; what is counted is the sum."""

    def __init__(self, members: Sequence[TcpLinkEmulator]) -> None:
        self._members = tuple(members)

    @property
    def settings(self) -> tuple[LinkSettings, LinkSettings]:
        return self._members[0].settings

    def cut(self) -> None:
        for member in self._members:
            member.cut()

    def restore(self) -> None:
        for member in self._members:
            member.restore()

    def drop(self) -> None:
        for member in self._members:
            member.drop()

    def configure(self, up: LinkSettings | None = None, down: LinkSettings | None = None) -> None:
        for member in self._members:
            member.configure(up, down)

    def stats(self) -> LinkStats:
        found = [member.stats() for member in self._members]
        return LinkStats(
            up_bytes=sum(one.up_bytes for one in found),
            down_bytes=sum(one.down_bytes for one in found),
            up_in_flight_bytes=sum(one.up_in_flight_bytes for one in found),
            down_in_flight_bytes=sum(one.down_in_flight_bytes for one in found),
            connections=sum(one.connections for one in found),
            open_connections=sum(one.open_connections for one in found),
            cut=found[0].cut,
        )
