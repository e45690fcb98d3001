"""Several emulated links controlled as one, as one radio carries every connection of a device.
Invariant: all members have the same settings and are cut together."""

from collections.abc import Sequence
from dataclasses import asdict

from tandem.netem.link_model import LinkSettings
from tandem.netem.tcp_emulator import LinkStats, TcpLinkEmulator


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
        members = [asdict(member.stats()) for member in self._members]
        counts = {name: sum(one[name] for one in members) for name in members[0] if name != "cut"}
        return LinkStats(**counts, cut=members[0]["cut"])


ControllableLink = TcpLinkEmulator | LinkGroup
"""What can be cut, restored, dropped, configured and counted."""
