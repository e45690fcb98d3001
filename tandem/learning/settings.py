"""Settings of a drafter that may learn."""

from pathlib import Path

from pydantic import Field

from tandem.settings import ServiceSettings
from tandem.specdec.logprobs import MAX_TOP_LOGPROBS


class LearningSettings(ServiceSettings):
    """Settings of learning."""

    learn: bool = Field(
        default=False,
        description="Let the draft model learn from what the target answers, on this device,"
        " while no request is open. Answers stay the same; drafts are accepted more"
        " often. Keeps texts of answers in `learn_folder`. Engine torch only.",
        json_schema_extra={"group": "Learning", "usual": True},
    )
    learn_folder: Path | None = Field(
        default=None,
        description="Folder for what is learned, private to the user of this process. Unset:"
        " tandem/learning in $XDG_STATE_HOME or ~/.local/state.",
        json_schema_extra={"group": "Learning"},
    )
    learn_bytes: int = Field(
        default=4 * 2**20,
        ge=2**16,
        le=2**30,
        description="Maximum size of the texts kept to learn from, for each tenant, in bytes."
        " The oldest ones are dropped first.",
        json_schema_extra={"group": "Learning"},
    )
    learn_logprobs: int = Field(
        default=8,
        ge=0,
        le=MAX_TOP_LOGPROBS,
        description="Top log-probabilities that are asked for with each sampled token, to learn"
        " from; 8 bytes each. 0: none.",
        json_schema_extra={"group": "Learning"},
    )
