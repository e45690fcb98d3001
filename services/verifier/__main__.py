"""`python -m services.verifier`: the verifier as a process."""

from __future__ import annotations

from services.verifier.config import VerifierSettings
from services.verifier.servicer import VerifierLimits, VerifierServicer
from tandem.engine.paced import PacedEngine
from tandem.rpc.process import run_service
from tandem.telemetry.metrics import Metrics


def build(settings: VerifierSettings, metrics: Metrics) -> VerifierServicer:
    """The servicer with its engine loaded."""
    from tandem.engine.load import load_engine  # bad settings are refused without waiting for torch

    paced = settings.pace_first_s > 0 or settings.pace_further_s > 0
    engine = load_engine(
        settings.model,
        settings.device,
        settings.dtype,
        settings.threads,
        settings.revision,
        settings.exits,
    )
    return VerifierServicer(
        PacedEngine(engine, settings.pace_first_s, settings.pace_further_s) if paced else engine,
        VerifierLimits(settings.max_sessions, settings.kv_budget_bytes, settings.max_draft_length),
        metrics,
        settings.device,
        settings.dtype,
    )


if __name__ == "__main__":
    run_service(VerifierSettings, build, side="cloud")
