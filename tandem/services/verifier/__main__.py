"""`python -m tandem.services.verifier`: the verifier as a process."""

from tandem.backends.factory import load_served
from tandem.backends.model_source import Parallelism
from tandem.index.reranking import find_rescoring
from tandem.net.process import run_service
from tandem.net.served_sessions import quota_of
from tandem.net.stream_limits import stream_limits
from tandem.runtime.pass_times import measure_pass_times
from tandem.runtime.prefix_cache import prefix_limits
from tandem.services.verifier.config import VerifierSettings
from tandem.services.verifier.servicer import VerifierLimits, VerifierServicer
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.tracing import open_tracing
from tandem.testing.paced import pace_engine
from tandem.two_sided.interface import Documents


def build(settings: VerifierSettings, metrics: Metrics) -> VerifierServicer:
    """Return the servicer with its engine loaded."""
    tracing = open_tracing(settings.trace_endpoint, settings.trace_sample, "verifier")
    model = load_served(
        settings,
        settings.model,
        exits=settings.exits,
        parallel=Parallelism(
            settings.tensor_parallel, settings.pipeline_parallel, settings.executor
        ),
        kv_budget_bytes=settings.kv_budget_bytes,
        batch_invariant=settings.batch_invariant,
    )
    model = pace_engine(model, settings)
    rescore = find_rescoring(settings.reranker, settings.device, settings.threads)
    limits = VerifierLimits(
        max_sessions=settings.max_sessions,
        kv_budget_bytes=settings.kv_budget_bytes,
        stuck_after_s=settings.stuck_after_s,
        streams=stream_limits(settings),
        quota=quota_of(settings),
        prefixes=prefix_limits(settings),
        max_draft_length=settings.max_draft_length,
        document_kv_export=settings.document_kv_export,
        price_cloud_second=settings.price_cloud_second,
    )
    return VerifierServicer(
        model.engine,
        limits,
        metrics,
        device=settings.device,
        dtype=settings.dtype,
        documents=Documents.from_settings(settings, model, rescore),
        tracing=tracing,
        default_sampling=model.default_sampling,
        pass_times=measure_pass_times(model.engine),
    )


if __name__ == "__main__":
    run_service(VerifierSettings, build, side="cloud")
