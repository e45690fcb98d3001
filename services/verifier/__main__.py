"""`python -m services.verifier`: the verifier as a process."""

from __future__ import annotations

from functools import cache

from services.verifier.config import VerifierSettings
from services.verifier.servicer import VerifierLimits, VerifierServicer
from tandem.engine.document_decoder import Documents, Rescore
from tandem.engine.document_files import open_document_files
from tandem.engine.model_source import find_source
from tandem.engine.paced import PacedEngine
from tandem.rpc.process import run_service
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.tracing import open_tracing


def build(settings: VerifierSettings, metrics: Metrics) -> VerifierServicer:
    """The servicer with its engine loaded."""
    find_source(settings.model, settings.revision)
    # Here, so that bad settings and a wrong folder are refused without waiting for torch.
    from tandem.engine.load import find_tokenizer, load_engine, model_hash

    tracing = open_tracing(settings.trace_endpoint, settings.trace_sample, "verifier")
    paced = settings.pace_first_s > 0 or settings.pace_further_s > 0
    engine = load_engine(
        settings.model,
        settings.device,
        settings.dtype,
        settings.threads,
        settings.revision,
        settings.exits,
    )
    # Once: it reads all of the weights.
    weights = cache(lambda: model_hash(settings.model, settings.dtype, settings.revision))
    documents = Documents(
        find_tokenizer(settings.model, settings.revision),
        settings.document_kv_budget_bytes,
        open_document_files(
            engine,
            settings.document_kv_folder,
            weights,
            settings.document_kv_disk_bytes,
        ),
        _rescore(settings),
        weights,
    )
    return VerifierServicer(
        PacedEngine(engine, settings.pace_first_s, settings.pace_further_s) if paced else engine,
        VerifierLimits(
            settings.max_sessions,
            settings.kv_budget_bytes,
            settings.max_draft_length,
            document_kv_export=settings.document_kv_export,
        ),
        metrics,
        settings.device,
        settings.dtype,
        documents,
        tracing,
    )


def _rescore(settings: VerifierSettings) -> Rescore | None:
    if settings.reranker is None:
        return None
    from tandem.index.reranking import load_reranker

    return load_reranker(settings.reranker, settings.device, settings.threads).score


if __name__ == "__main__":
    run_service(VerifierSettings, build, side="cloud")
