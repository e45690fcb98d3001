"""`python -m services.verifier`: the verifier as a process."""

from __future__ import annotations

from services.verifier.config import VerifierSettings
from services.verifier.servicer import VerifierLimits, VerifierServicer
from tandem.engine.model_source import find_source
from tandem.engine.served_model import documents_of, paced
from tandem.index.reranking import find_rescoring
from tandem.rpc.process import run_service
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.tracing import open_tracing


def build(settings: VerifierSettings, metrics: Metrics) -> VerifierServicer:
    """The servicer with its engine loaded."""
    find_source(settings.model, settings.revision)
    # Here, so that bad settings and a wrong folder are refused without waiting for torch.
    from tandem.engine.load import find_tokenizer, load_engine

    tracing = open_tracing(settings.trace_endpoint, settings.trace_sample, "verifier")
    engine = load_engine(
        settings.model,
        settings.device,
        settings.dtype,
        settings.threads,
        settings.revision,
        settings.exits,
    )
    tokenizer = find_tokenizer(settings.model, settings.revision)
    rescore = find_rescoring(settings.reranker, settings.device, settings.threads)
    documents = documents_of(settings, settings.model, engine, tokenizer, rescore)
    return VerifierServicer(
        paced(settings, engine),
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


if __name__ == "__main__":
    run_service(VerifierSettings, build, side="cloud")
