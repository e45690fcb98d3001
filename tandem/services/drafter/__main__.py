"""`python -m tandem.services.drafter`: the drafter as a process."""

from tandem.backends.factory import Loader, load_first_layers, load_model, load_served
from tandem.backends.model_source import only_drafts
from tandem.core.errors import InvalidArgument
from tandem.index.reranking import find_rescoring
from tandem.learning.drafter import learning_of
from tandem.net.access import client_access, loaded
from tandem.net.admission import quota_of
from tandem.net.process import prometheus_server, run_service
from tandem.net.stream_limits import stream_limits
from tandem.net.tenant import tenant_ids
from tandem.runtime.pass_times import measure_pass_times
from tandem.runtime.prefix_cache import prefix_limits
from tandem.runtime.tenant_memories import TenantMemories
from tandem.services.drafter.cloud.listed import clouds_in
from tandem.services.drafter.config import DrafterSettings, memory_limits
from tandem.services.drafter.public_prompts import load_public_prompts
from tandem.services.drafter.servicer import DrafterLimits, DrafterServicer
from tandem.services.drafter.split_edge import SplitEdge
from tandem.specdec.liveness import LivenessTimes
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.tracing import open_tracing
from tandem.two_sided.interface import Documents


def build(
    settings: DrafterSettings, metrics: Metrics, load: Loader = load_model
) -> DrafterServicer:
    """Build the servicer, with its engine and tokenizer loaded; `load` loads each model."""
    access = client_access(settings)  # refused without waiting for torch
    file = settings.verifiers_file
    public_file = settings.public_prompts_file
    verifiers = file and loaded("verifiers_file", lambda: clouds_in(file))
    tracing = open_tracing(settings.trace_endpoint, settings.trace_sample, "drafter")
    tokenizer = settings.target_tokenizer
    model = load_served(
        settings, settings.model, drafts=True, target_tokenizer=tokenizer, load=load
    )
    if model.tokenizer is None:
        raise InvalidArgument("model", f"{settings.model} has no tokenizer")
    spoken = model.tokenizer
    public_prompts = (
        loaded("public_prompts_file", lambda: load_public_prompts(public_file, spoken))
        if public_file
        else None
    )
    limits = DrafterLimits(
        max_sessions=settings.max_sessions,
        kv_budget_bytes=settings.kv_budget_bytes,
        stuck_after_s=settings.stuck_after_s,
        streams=stream_limits(settings),
        quota=quota_of(settings),
        prefixes=prefix_limits(settings),
        max_message_bytes=settings.max_message_bytes,
        liveness=LivenessTimes(
            ping_after_s=settings.ping_after_s,
            dead_after_s=settings.dead_after_s,
            give_up_after_s=settings.give_up_after_s,
        ),
    )
    rescore = find_rescoring(settings.reranker, settings.device, settings.threads or 1)
    return DrafterServicer(
        engine=model.engine,
        tokenizer=model.tokenizer,
        verifier=verifiers or settings.verifier,
        limits=limits,
        metrics=metrics,
        access=access.to_cloud(),
        documents=Documents.from_settings(
            settings, model, rescore, only_drafts=_only_drafts(settings)
        ),
        tracing=tracing,
        prometheus=prometheus_server(settings),
        instance=settings.prometheus_instance,
        tenants=tenant_ids(access),
        public_prompts=public_prompts,
        split=_split(settings, load),
        memory=TenantMemories.of(memory_limits(settings), model.engine),
        hook=learning_of(settings, model.engine, metrics, model.content_hash),
        pass_times=measure_pass_times(model.engine),
    )


def _only_drafts(settings: DrafterSettings) -> bool:
    return settings.engine == "lookup" or only_drafts(settings.model)


def _split(settings: DrafterSettings, load: Loader) -> SplitEdge | None:
    """Load the target's first layers, where the drafter is to run them."""
    if settings.split_model is None:
        return None
    layers = load_first_layers(settings, settings.split_model, settings.split_layers, load)
    engine = layers.engine
    return SplitEdge(settings.split_layers, lambda: engine, settings.stuck_after_s)


if __name__ == "__main__":
    run_service(DrafterSettings, build, side="device")
