"""`python -m tandem.services.retriever`: the retriever as a process."""

from tandem.index.chunking import Chunking
from tandem.index.owners import DocumentQuota
from tandem.net.access import client_access
from tandem.net.admission import quota_of
from tandem.net.connection import Connection
from tandem.net.own_side import parse_networks
from tandem.net.process import run_service
from tandem.net.stream_limits import stream_limits
from tandem.services.retriever.config import RetrieverSettings
from tandem.services.retriever.extraction_pool import PoolLimits
from tandem.services.retriever.forgetting import Forgetting
from tandem.services.retriever.servicer import RetrieverLimits, RetrieverServicer
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.tracing import open_tracing


def build(settings: RetrieverSettings, metrics: Metrics) -> RetrieverServicer:
    """Return the servicer with its documents opened."""
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
        place=settings.folder if settings.dsn is None else settings.dsn.get_secret_value(),
        embedding=settings.embedding,
        chunking=chunking,
        reranker=reranker,
        device=settings.device,
        threads=settings.threads,
    )
    limits = RetrieverLimits(
        max_searches=settings.max_searches,
        max_ingests=settings.max_ingests,
        streams=stream_limits(settings),
        quota=quota_of(settings),
        owner_quota=DocumentQuota(settings.owner_max_documents, settings.owner_max_bytes),
        extraction=PoolLimits(
            processes=settings.extraction_processes,
            cpu_s_per_minute=settings.extraction_cpu_s_per_minute,
        ),
    )
    networks = parse_networks(settings.own_side)
    return RetrieverServicer(
        index=index,
        role=settings.role,
        networks=networks,
        limits=limits,
        metrics=metrics,
        tracing=tracing,
        forgetting=forgetting,
    )


def _forgetting(settings: RetrieverSettings) -> Forgetting | None:
    targets = [target.strip() for target in settings.decoder.split(",") if target.strip()]
    if not targets:
        return None
    access = client_access(settings)
    most = settings.max_message_bytes
    return Forgetting(Connection(target, most, access) for target in targets)


if __name__ == "__main__":
    run_service(RetrieverSettings, build, side=lambda settings: settings.role)
