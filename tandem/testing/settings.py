"""Settings of the services of this room: those of the product, and how long a pass lasts."""

import os

from pydantic import Field

from tandem.services.drafter.config import DrafterSettings
from tandem.services.verifier.config import VerifierSettings
from tandem.settings import ModelSettings


def _from_environment(variable: str) -> float:
    return float(os.environ.get(variable, "0"))


class PaceSettings(ModelSettings):
    """How long a pass lasts; as `PacedEngine` has it.

    The defaults come from variables that are no settings of a service, so that those which have no
    passes do not refuse them."""

    pace_first_s: float = Field(
        default_factory=lambda: _from_environment("PACE_FIRST_S"),
        ge=0,
        description="Minimum seconds of a pass over one token.",
    )
    pace_further_s: float = Field(
        default_factory=lambda: _from_environment("PACE_FURTHER_S"),
        ge=0,
        description="Additional seconds for each further token of the longest request in the pass.",
    )
    pace_batch_s: float = Field(
        default=0.0,
        ge=0,
        description="Additional seconds for each token of the other requests in the pass.",
    )


class PacedDrafterSettings(DrafterSettings, PaceSettings):
    """Settings of `tandem.testing.drafter`."""


class PacedVerifierSettings(VerifierSettings, PaceSettings):
    """Settings of `tandem.testing.verifier`."""

    pace_cloud_draft_s: float = Field(
        default=0.0,
        ge=0,
        description="Minimum seconds of a pass of the model of `cloud_draft`. Paced passes of this"
        " model and of the target take turns, as on one device.",
    )
