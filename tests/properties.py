"""How property tests are run: the same examples each time, and few, in `make test`; by
TANDEM_EXAMPLES more of them, drawn anew."""

import os

from hypothesis import HealthCheck, settings

FEW = 20
EXAMPLES = int(os.environ.get("TANDEM_EXAMPLES", FEW))

settings.register_profile(
    "gate",
    max_examples=EXAMPLES,
    derandomize=EXAMPLES <= FEW,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("gate")


def share(part: float) -> settings:
    """For tests whose examples cost more: this part of the examples, one at least."""
    return settings(max_examples=max(1, round(EXAMPLES * part)))
