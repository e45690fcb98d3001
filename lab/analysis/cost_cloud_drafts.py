"""The cost of a cloud that drafts for itself: its draft model and its target take turns, and both
take all sessions of the verifier at once, as servers with speculative decoding do. Invariant: pure
arithmetic on values."""

from dataclasses import dataclass

from tandem.control.conditions import PairTimes


@dataclass(frozen=True, slots=True)
class CloudRound:
    """Draft steps of all sessions and the pass that judges them. `tokens`: of each session."""

    drafts: int
    tokens: float
    seconds: float
    sessions: int

    @property
    def tokens_per_s(self) -> float:
        """Of all sessions together."""
        return self.sessions * self.tokens / self.seconds


def best_cloud_round(
    pair: PairTimes, step_s: float, *, acceptance_rate: float, sessions: int, most: int
) -> CloudRound:
    """Return the round of most tokens per second, with up to `most` drafts; of none it is the
    target alone.

    Args:
        pair: the times of a pass; its draft step is the edge's, which drafts nothing here.
        step_s: seconds of a draft step in the cloud, of any number of sessions.
        acceptance_rate: of each draft, given those before it.
        sessions: that share the verifier.
        most: drafts of a session in a row."""
    rounds = (
        CloudRound(
            drafts=count,
            tokens=sum(acceptance_rate**place for place in range(count + 1)),
            seconds=count * step_s + pair.verify_s(sessions * (1 + count) - 1),
            sessions=sessions,
        )
        for count in range(most + 1)
    )
    return max(rounds, key=lambda one: one.tokens_per_s)
