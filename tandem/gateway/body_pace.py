"""How fast one tenant's request bodies are read. Reading, parsing and refusing a body hold the
event loop in proportion to its bytes, so a tenant who sends large ones without pause would slow
everybody's answers, even if all that he asks for is refused."""

from __future__ import annotations

BURST_S = 1.0
"""What a tenant did not send for so long may come at once."""


class BodyPace:
    """Per tenant, a rate with a burst (the generic cell rate algorithm); `bytes_per_s` 0 is no
    limit. Holds as many tenants as sent something within the last `BURST_S`, or wait."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._paid_s: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._paid_s)

    def delay_s(self, tenant: str, size: int, now: float) -> float:
        """Count `size` bytes of the tenant's, and return for how long no more are to be read."""
        if not self._bytes_per_s:
            return 0.0
        if len(self._paid_s) > 1:  # in the order of their last bytes, so that this ends soon
            self._forget(now)
        begin_s = max(self._paid_s.pop(tenant, 0.0), now - BURST_S)
        paid_s = self._paid_s[tenant] = begin_s + size / self._bytes_per_s
        return max(0.0, paid_s - now)

    def _forget(self, now: float) -> None:
        for tenant, paid_s in list(self._paid_s.items()):
            if paid_s > now - BURST_S:
                return
            del self._paid_s[tenant]
