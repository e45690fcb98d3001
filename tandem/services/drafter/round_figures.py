"""Rounds of one request, as its caller and its trace are told of them. Invariant: whoever does not
ask pays nothing."""

import time

from tandem.specdec.edge_stats import EdgeStats
from tandem.specdec.messages import CloudMessage, Committed
from tandem.telemetry.tracing import Span
from tandem_api.common.v1 import generation_pb2 as pb

_GROWING = ("rounds", "drafted", "accepted", "round_s", "draft_s", "verify_s", "queue_s")
"""Totals of `EdgeStats` whose growth is told of a round."""


class RoundReports:
    """Rounds of one request as its caller is told of them: what the totals grew by until drafts
    were settled."""

    def __init__(self, stats: EdgeStats) -> None:
        self._stats = stats
        self._before = dict.fromkeys(_GROWING, 0.0)
        self._ended: list[pb.RoundFigures] = []

    def heard(self, in_flight: int) -> None:
        """Take the end of a round, if the last message of the cloud was one; `in_flight`: drafts
        that are sent now."""
        totals = {name: getattr(self._stats, name) for name in _GROWING}
        grown = {name: totals[name] - self._before[name] for name in _GROWING}
        if not grown.pop("rounds"):
            return
        self._before = totals
        drafted, accepted = int(grown.pop("drafted")), int(grown.pop("accepted"))
        resumes = self._stats.resumes
        figures = pb.RoundFigures(drafted=drafted, accepted=accepted, **grown)
        figures.in_flight = in_flight
        figures.resumes = resumes
        self._ended.append(figures)

    def take(self) -> list[pb.RoundFigures]:
        ended, self._ended = self._ended, []
        return ended


class RoundSpans:
    """Rounds of one request as spans: from the first draft after a round to the answer to it.
    Costs nothing where the request is not traced."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._began_s: float | None = None

    def drafting(self) -> None:
        if self._began_s is None:
            self._began_s = time.monotonic()

    def heard(self, message: CloudMessage) -> None:
        if not isinstance(message, Committed) or self._began_s is None:
            return
        if not message.work.drafts:
            return  # the cloud was ahead of the drafts
        self._span.record(
            "draft round",
            time.monotonic() - self._began_s,
            base=message.base,
            accepted=message.accepted,
            verify_s=message.work.verify_s,
            queue_s=message.work.queue_s,
        )
        self._began_s = None
