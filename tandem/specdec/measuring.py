"""What the controller of a request's schedule hears of its conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tandem.control.controller import Controller, controller_for
from tandem.specdec.choices import CloudDrafts
from tandem.specdec.events import Drafted, EdgeRequest
from tandem.specdec.messages import Committed, Drafts, Opened, Work
from tandem.specdec.observers import EdgeObserver, Settled


def controller_of(request: EdgeRequest) -> Controller:
    """Return the controller that the request's preset asks for."""
    preset = request.preset
    return controller_for(
        preset.control,
        preset.schedule,
        max_tokens=request.max_tokens,
        prompt_tokens=len(request.prompt_ids),
        warm_start=request.warm_start,
    )


class Measuring(EdgeObserver):
    """Tells a controller what happens to drafts, and when."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def on_connected(self, now: float) -> None:
        self._controller.connected(now)

    def on_opened(self, opened: Opened) -> None:
        self._controller.opened(
            opened.row_share,
            drafts_in_cloud=opened.cloud_drafts is not CloudDrafts.NONE,
        )

    def on_pinged(self, now: float) -> None:
        self._controller.pinged(now)

    def on_ponged(self, trip_s: float | None, now: float) -> None:
        self._controller.ponged(trip_s, now)

    def on_drafted(
        self,
        drafts: Sequence[Drafted],
        positions: int,
        draft_s: float,
        now: float,
        *,
        usual: bool,
    ) -> None:
        if steps := positions - sum(drafted.remembered for drafted in drafts):
            self._controller.drafted(steps, draft_s, now, usual)

    def on_sent(self, frame: Drafts, now: float) -> None:
        self._controller.sent(frame.base, now)

    def on_discarded(self) -> None:
        self._controller.discarded()

    def on_committed(
        self, message: Committed, settled: Settled, drafts: Sequence[Drafted], now: float
    ) -> None:
        cost = pass_cost(message.work)
        if not (message.accepted or settled.refused):
            self._controller.took_tokens(len(message.token_ids), cost, now)
            return
        of_model = [not drafted.remembered for drafted in drafts]
        end = message.accepted + settled.refused
        self._controller.judged(
            end=message.base + end,
            accepted=sum(of_model[: message.accepted]),
            rejected=int(settled.refused and of_model[message.accepted]),
            tokens=message.accepted + max(len(message.token_ids), settled.refused),  # one is drawn
            work=cost,
            now=now,
        )

    def on_token(self, token_id: int, drafted: Drafted | None) -> None:
        if drafted is None:
            self._controller.overtaken(None)
        elif not drafted.remembered:
            self._controller.overtaken(drafted.token_id == token_id)


def pass_cost(work: Work) -> Work:
    """Return a cost as controllers count it: drafts are rows of a pass, whoever made them."""
    if not work.cloud_drafts:
        return work
    return replace(work, drafts=work.drafts + work.cloud_drafts)
