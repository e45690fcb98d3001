"""`python -m tandem.services.verifier`: the verifier as a process."""

from pathlib import Path

from tandem.backends.factory import Loader, load_cloud_draft, load_model, load_served
from tandem.backends.model_source import LoadedModel, ModelChoice
from tandem.index.reranking import find_rescoring
from tandem.net.admission import quota_of
from tandem.net.process import run_service
from tandem.net.stream_limits import stream_limits
from tandem.runtime.pass_times import measure_pass_times
from tandem.runtime.prefix_cache import prefix_limits
from tandem.services.verifier.cloud_drafts import CloudDraftModel, check_vocabulary
from tandem.services.verifier.config import VerifierSettings, memory_limits, server_choice
from tandem.services.verifier.servicer import VerifierLimits, VerifierServicer
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.tracing import open_tracing
from tandem.two_sided.interface import Documents


def build(
    settings: VerifierSettings, metrics: Metrics, load: Loader = load_model
) -> VerifierServicer:
    """Return the servicer with its engine loaded; `load` loads each model."""
    tracing = open_tracing(settings.trace_endpoint, settings.trace_sample, "verifier")
    model = load_served(
        settings,
        settings.model,
        exits=settings.exits,
        batch_invariant=settings.batch_invariant,
        server=server_choice(settings),
        load=load,
    )
    rescore = find_rescoring(settings.reranker, settings.device, settings.threads or 1)
    limits = VerifierLimits(
        max_sessions=settings.max_sessions,
        kv_budget_bytes=settings.kv_budget_bytes,
        stuck_after_s=settings.stuck_after_s,
        streams=stream_limits(settings),
        quota=quota_of(settings),
        prefixes=prefix_limits(settings),
        max_draft_length=settings.max_draft_length,
        document_kv_export=settings.document_kv_export,
        memory=memory_limits(settings),
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
        cloud_draft=_cloud_draft(settings, model, load),
    )


def _cloud_draft(
    settings: VerifierSettings, target: LoadedModel, load: Loader
) -> CloudDraftModel | None:
    """Load the draft model of the verifier itself, where it is to have one."""
    if settings.cloud_draft is None:
        return None
    name, at, revision = settings.cloud_draft.rpartition("@")
    remote = bool(at) and not Path(settings.cloud_draft).exists()
    choice = ModelChoice(
        source=name if remote else settings.cloud_draft,
        revision=revision if remote else None,
        device=settings.cloud_draft_device or settings.device,
        dtype=settings.cloud_draft_dtype or settings.dtype,
        threads=settings.threads,
        engine=settings.cloud_draft_engine,
        gpu_layers=settings.gpu_layers,
        kv_cells=settings.kv_cells,
    )
    engine = load_cloud_draft(choice, target, load)
    check_vocabulary(engine, target.engine)
    pass_times = measure_pass_times(engine)
    return CloudDraftModel(engine.model_name, lambda: engine, loaded=True, pass_times=pass_times)


if __name__ == "__main__":
    run_service(VerifierSettings, build, side="cloud")
