"""Which pair an experiment takes, and the step times that are declared for one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lab.bench.harness.baselines import declared_cloud_step_s

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Pacing:
    """Declared step times of an emulated pair, in seconds."""

    draft_s: float
    verify_first_s: float
    verify_further_s: float

    @property
    def cloud_draft_s(self) -> float:
        """A step of the draft model in the cloud, where there is one."""
        return declared_cloud_step_s(self.draft_s)

    def to_json(self) -> dict[str, float]:
        return {
            "draft_s": self.draft_s,
            "verify_first_s": self.verify_first_s,
            "verify_further_s": self.verify_further_s,
        }


@dataclass(frozen=True, slots=True)
class Models:
    """Folders or names of a pair, the back ends that compute it, and their `--dtype`."""

    draft: str = str(ROOT / "models" / "demo-draft")
    target: str = str(ROOT / "models" / "demo-target")
    draft_engine: str = "auto"
    target_engine: str = "auto"
    draft_dtype: str = "float32"
    target_dtype: str = "float32"
    device: str = "cpu"
    """Of both, but for GGUF files, which are computed where llama.cpp was built for."""
