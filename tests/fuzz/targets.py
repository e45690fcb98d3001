"""All targets by name."""

from collections.abc import Mapping

from tests.fuzz.stored_targets import STORED_TARGETS
from tests.fuzz.wire_targets import WIRE_TARGETS, Target

TARGETS: Mapping[str, Target] = {**WIRE_TARGETS, **STORED_TARGETS}
