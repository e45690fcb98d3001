"""`python -m services.drafter`: the drafter as a process."""

from __future__ import annotations

from services.drafter.config import DrafterSettings
from services.drafter.servicer import DrafterLimits, DrafterServicer
from tandem.engine.base import Engine, Tokenizer
from tandem.engine.model_source import find_source
from tandem.engine.served_model import documents_of, paced
from tandem.index.reranking import find_rescoring
from tandem.protocol.liveness import LivenessTimes
from tandem.rpc.access import client_access
from tandem.rpc.process import run_service
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.tracing import open_tracing


def build(settings: DrafterSettings, metrics: Metrics) -> DrafterServicer:
    """The servicer with its engine and tokenizer loaded."""
    access = client_access(settings)  # refused without waiting for torch
    tracing = open_tracing(settings.trace_endpoint, settings.trace_sample, "drafter")
    find_source(settings.model, settings.revision)  # a wrong folder too
    engine, tokenizer = _load(settings)
    limits = DrafterLimits(
        settings.max_sessions,
        settings.kv_budget_bytes,
        settings.max_message_bytes,
        LivenessTimes(settings.ping_after_s, settings.dead_after_s, settings.give_up_after_s),
    )
    rescore = find_rescoring(settings.reranker, settings.device, settings.threads)
    documents = documents_of(settings, settings.model, engine, tokenizer, rescore)
    return DrafterServicer(
        paced(settings, engine),
        tokenizer,
        settings.verifier,
        limits,
        metrics,
        access,
        documents,
        tracing,
    )


def _load(settings: DrafterSettings) -> tuple[Engine, Tokenizer]:
    """The draft engine and the tokenizer of what it drafts for."""
    from tandem.engine.load import load_engine, load_tokenizer
    from tandem.engine.pairing import fit_draft, load_target_tokenizer

    engine = load_engine(
        settings.model,
        settings.device,
        settings.dtype,
        settings.threads,
        settings.revision,
        drafts=True,
    )
    tokenizer = load_tokenizer(settings.model, settings.revision)
    if settings.target_tokenizer is None:
        return engine, tokenizer
    target_tokenizer = load_target_tokenizer(settings.target_tokenizer)
    return fit_draft(engine, tokenizer, target_tokenizer), target_tokenizer


if __name__ == "__main__":
    run_service(DrafterSettings, build, side="device")
