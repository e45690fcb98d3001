"""The job that has a draft model compute a text before it drafts."""

from collections.abc import Sequence

from tandem.backends.interface import ForwardRequest, Logits, Session
from tandem.runtime.engine_jobs import Job


class DraftPrefillJob(Job[int]):
    """Feeds tokens after the first `keep` of a session; the result is the session's length."""

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
