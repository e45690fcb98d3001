"""What callers got of answers whose text is known beforehand, and what is wrong with it.

Invariant: a text is right when it is the undisturbed run's, token for token; one that ended with a
status must be the beginning of it. So a token that is lost, repeated or different counts, and a
request that was refused or broken off counts only for how long its caller was kept in the dark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

OK = "ok"


@dataclass(slots=True)
class Answered:
    """One request by one caller. Times by time.monotonic; `status` is OK or how it failed, `why`
    in which words."""

    caller: int
    request: int
    began_s: float
    ended_s: float = inf
    status: str = ""
    token_ids: list[int] = field(default_factory=list)
    arrivals_s: list[float] = field(default_factory=list)
    links_lost: int = 0
    loss_noticed_s: float = 0.0
    resumes: int = 0
    why: str = ""

    def arrived(self, token_ids: Sequence[int], at_s: float) -> None:
        """Take all tokens that have come so far, and note the time if some are new."""
        if len(token_ids) > len(self.token_ids):
            self.arrivals_s.append(at_s)
        self.token_ids = list(token_ids)


FOR_A_FAULT = (OK, "UNAVAILABLE", "CANCELLED")
"""How an answer may end while things break."""


def improper_ends(answers: Iterable[Answered]) -> list[Answered]:
    """Return the answers whose status blames the request or the code, as no fault may."""
    return [answer for answer in answers if answer.status not in FOR_A_FAULT]


def wrong_tokens(answer: Answered, whole: Sequence[int]) -> int:
    """Return how many tokens of an answer are not the undisturbed run's, or are missing."""
    pairs = zip(answer.token_ids, whole, strict=False)
    same = next((n for n, (token, right) in enumerate(pairs) if token != right), None)
    if same is None:
        same = min(len(answer.token_ids), len(whole))
    wanted = len(whole) if answer.status == OK else 0
    return max(len(answer.token_ids), wanted) - same


def all_wrong_tokens(
    answers: Iterable[Answered], undisturbed: Mapping[int, Sequence[int]]
) -> dict[int, int]:
    """Return the number of wrong tokens by request, of those that have any."""
    wrong: dict[int, int] = {}
    for answer in answers:
        if count := wrong_tokens(answer, undisturbed[answer.request]):
            wrong[answer.request] = wrong.get(answer.request, 0) + count
    return wrong


def noticed_s(
    answers: Iterable[Answered], began_s: float, until_s: float, of_cloud: bool
) -> float | None:
    """Return the longest time in seconds for which somebody did not notice a fault that began at
    `began_s`; the next one begins at `until_s`. A caller notices it when its request fails; where
    the fault was `of_cloud`, the edge does when it takes the cloud for lost. None where nobody had
    to notice."""
    under_it = [a for a in answers if a.began_s < until_s and a.ended_s >= began_s]
    failed = [a for a in under_it if a.status != OK and a.ended_s < until_s]
    delays_s = [answer.ended_s - max(began_s, answer.began_s) for answer in failed]
    if of_cloud:
        delays_s += [a.loss_noticed_s for a in under_it if a.status == OK and a.links_lost]
    return max(delays_s, default=None)


def tokens_again_s(answers: Iterable[Answered], callers: Iterable[int], over_s: float) -> float:
    """Return the seconds from the end of a fault's cause until every caller has had a token;
    infinite if one has had none."""
    first = dict.fromkeys(callers, inf)
    for answer in answers:
        after = (at for at in answer.arrivals_s if at >= over_s)
        if answer.caller in first:
            first[answer.caller] = min(first[answer.caller], next(after, inf))
    return max(first.values(), default=inf) - over_s
