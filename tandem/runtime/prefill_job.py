"""The job that computes keys and values of a text, and no logits."""

from collections.abc import Sequence

from tandem.backends.interface import ForwardRequest, Logits, Session
from tandem.runtime.engine_jobs import Job


class PrefillJob(Job[int]):
    """Feeds tokens after the first `keep` of a session, which stays its owner's; the result is the
    session's length."""

    def __init__(self, session: Session, keep: int, token_ids: Sequence[int]) -> None:
        self._session = session
        self._keep = keep
        self._token_ids = tuple(token_ids)

    def request(self) -> ForwardRequest:
        self._session.rollback(self._keep)
        return ForwardRequest(self._session, self._token_ids, logits_to_keep=0)

    def take(self, logits: Logits) -> bool:
        return True

    def result(self) -> int:
        return self._session.length
