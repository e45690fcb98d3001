"""PreVerify: the idle cloud feeds the first drafts of a chunk before that is whole (PicoSpec,
§3.2)."""

from __future__ import annotations

from tandem.core.frozen import frozen
from tandem.specdec.judge import DistributionAt, Verification
from tandem.specdec.rules import AcceptanceRule


@frozen
class Preparation:
    """Judges nothing: the pass only reads the targets of `rows` positions from `base` on, for a
    judge of drafts that have not all arrived."""

    base: int
    rows: int
    rule: AcceptanceRule

    def judge(self, distribution_at: DistributionAt) -> Verification:
        """Return the targets, with an empty path. `distribution_at` is as for `Judge`."""
        targets = (
            self.rule.prepare(distribution_at(row), self.base + row) for row in range(self.rows)
        )
        return Verification((), (), tuple(targets))
