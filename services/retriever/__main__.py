"""`python -m services.retriever`: the retriever as a process."""

from __future__ import annotations

from services.retriever.config import RetrieverSettings
from services.retriever.forgetting import Forgetting
from services.retriever.servicer import RetrieverLimits, RetrieverServicer
from tandem.index.chunking import Chunking
from tandem.rpc.access import client_access
from tandem.rpc.connection import Connection
from tandem.rpc.own_side import parse_networks
from tandem.rpc.process import run_service
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.tracing import open_tracing


def build(settings: RetrieverSettings, metrics: Metrics) -> RetrieverServicer:
    """The servicer with its folder opened."""
    from tandem.index.document_index import open_index  # bad settings are refused without waiting
    from tandem.index.reranking import load_reranker

    tracing = open_tracing(settings.trace_endpoint, settings.trace_sample, "retriever")
    forgetting = _forgetting(settings)
    chunking = None
    if settings.chunk_tokens:
        chunking = Chunking(settings.chunk_tokens, settings.overlap_tokens)
    reranker = None
    if settings.reranker is not None:
        reranker = load_reranker(settings.reranker, settings.device, settings.threads)
    index = open_index(
        settings.folder, settings.embedding, chunking, reranker, settings.device, settings.threads
    )
    limits = RetrieverLimits(settings.max_searches, settings.max_ingests)
    networks = parse_networks(settings.own_side)
    return RetrieverServicer(index, settings.role, networks, limits, metrics, tracing, forgetting)


def _forgetting(settings: RetrieverSettings) -> Forgetting | None:
    targets = [target.strip() for target in settings.decoder.split(",") if target.strip()]
    if not targets:
        return None
    access, most = client_access(settings), settings.max_message_bytes
    return Forgetting(Connection(target, most, access) for target in targets)


if __name__ == "__main__":
    run_service(RetrieverSettings, build, side=lambda settings: settings.role)
