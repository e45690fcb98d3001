"""Rounds of one request, as its caller and its trace are told of them. Invariant: whoever does not
ask pays nothing."""

import time

from tandem.specdec.edge import EdgeStats
from tandem.specdec.messages import CloudMessage, Verdict
from tandem.telemetry.tracing import Span
from tandem_api.common.v1 import generation_pb2 as pb

_GROWING = ("drafted", "round_s", "draft_s", "verify_s", "queue_s")
"""Totals of `EdgeStats` whose growth is told of a round."""


class RoundReports:
    """Rounds of one request as its caller is told of them: what the totals grew by between two
    verdicts."""

    def __init__(self, stats: EdgeStats) -> None:
        self._stats = stats
        self._before = dict.fromkeys(_GROWING, 0.0)
        self._ended: list[pb.RoundFigures] = []

    def ended(self, verdict: Verdict, in_flight: int) -> None:
        totals = {name: getattr(self._stats, name) for name in _GROWING}
        grown = {name: totals[name] - self._before[name] for name in _GROWING}
        self._before = totals
        drafted = int(grown.pop("drafted"))
        resumes = self._stats.resumes
        figures = pb.RoundFigures(drafted=drafted, accepted=verdict.accepted, **grown)
        figures.in_flight = in_flight
        figures.resumes = resumes
        self._ended.append(figures)

    def take(self) -> list[pb.RoundFigures]:
        ended, self._ended = self._ended, []
        return ended


class RoundSpans:
    """Rounds of one request as spans: from the first draft after a verdict to the next verdict.
    Costs nothing where the request is not traced."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._began_s: float | None = None

    def drafting(self) -> None:
        if self._began_s is None:
            self._began_s = time.monotonic()

    def heard(self, message: CloudMessage) -> None:
        if not isinstance(message, Verdict) or self._began_s is None:
            return
        self._span.record(
            "draft round",
            time.monotonic() - self._began_s,
            base=message.base,
            accepted=message.accepted,
            verify_s=message.work.verify_s,
            queue_s=message.work.queue_s,
        )
        self._began_s = None
