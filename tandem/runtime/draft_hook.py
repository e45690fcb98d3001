"""The one hook of a drafter: what may change how the draft model drafts for an answer, and hears
what its target said. These do nothing; override what yours needs.

An answer has one `AnswerHook`, whose methods are called on the event loop, in the order in which
they are listed, but for `on_broken`."""

from __future__ import annotations

from collections.abc import Callable

from tandem.backends.interface import Session
from tandem.net.tenant import Tenant
from tandem.runtime.prefix_cache import KeptText
from tandem.runtime.served_engine import ServedEngine
from tandem.specdec.edge import EdgeMachine
from tandem.specdec.events import Commit, EdgeRequest
from tandem.specdec.observers import EdgeObserver


class AnswerHook(EdgeObserver):
    """One answer of the drafter. It hears what every observer at the edge hears, and more."""

    __slots__ = ()

    @property
    def on_broken(self) -> Callable[[], None] | None:
        """What to call, on the engine thread, if the draft model gives no distribution; None where
        nothing but the model itself is to blame."""
        return None

    def asking(self, request: EdgeRequest) -> EdgeRequest:
        """Return the request as the cloud is sent it."""
        return request

    def kept_text(self, text: KeptText) -> KeptText:
        """Return the text by which its keys and values are kept and found."""
        return text

    async def opened(self, session: Session) -> None:
        """The draft model's session is open, and holds nothing yet."""

    def on_commit(self, position: int, commit: Commit) -> None:
        """Tokens from a position of the whole text on are relayed to the caller."""

    def ended(self, machine: EdgeMachine) -> None:
        """The answer has ended, well or not."""


class DraftHook:
    """All answers of a drafter."""

    def start(self, served: ServedEngine) -> None:
        """The drafter begins to serve this engine, on the running loop."""

    async def close(self) -> None:
        """The drafter has answered its last request; its engine still runs."""

    async def begin(self, payer: Tenant, *, keeps: bool) -> AnswerHook:
        """Return the hook of an answer for `payer`. Unless it `keeps`, nothing of it may be kept
        beyond its end."""
        return AnswerHook()
