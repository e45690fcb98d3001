"""Starting vLLM's workers with a model, and refusing the models that sessions cannot be kept of.

Only safetensors and code of vLLM's own are accepted. Every failure is an InvalidArgument that says
what is wrong with which part of the choice."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import Any

from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec

from tandem.backends.model_files import check_weights
from tandem.backends.model_source import LoadedModel, ModelChoice, ModelSource, find_source
from tandem.backends.request_checks import check_sessions
from tandem.backends.torch.loading import (
    default_sampling_of,
    eos_token_ids_of,
    find_tokenizer,
    model_hash,
    model_name_of,
)
from tandem.backends.vllm.engine import VllmEngine
from tandem.core.errors import InvalidArgument

MOST_SESSIONS = 256
PASS_TOKENS = 2048
"""Of one pass; longer prompts are fed in pieces, each a sign of progress."""
CPU_PAGE_TOKENS = 32
WORKER = "tandem.backends.vllm.logits_worker.LogitsWorker"


def load_chosen(choice: ModelChoice) -> LoadedModel:
    """Return the model on its workers. `device` must be what this build of vLLM computes on. Raises
    InvalidArgument naming the field."""
    source = find_source(choice.source, choice.revision)
    if source.local:
        check_weights(Path(source.name))
    _check_device(choice.device)
    tokenizer = find_tokenizer(choice.source, choice.revision)
    core = _start(choice, source)
    try:
        engine = _engine(choice, source, core, tokenizer)
        check_sessions(engine, 1e-3 if choice.dtype == "float32" else 0.1)
    except BaseException:
        core.shutdown()
        raise
    content = partial(model_hash, choice.source, choice.dtype, choice.revision)
    defaults = default_sampling_of(source, engine.vocabulary_size)
    return LoadedModel(engine, tokenizer, content, defaults)


def _engine(choice: ModelChoice, source: ModelSource, core: Any, tokenizer: Any) -> VllmEngine:
    logits = int(core.vllm_config.model_config.get_vocab_size())
    ids_only = hashlib.sha256(f"ids only:{logits}".encode()).hexdigest()
    return VllmEngine(
        core,
        model_name=model_name_of(choice.source),
        vocabulary_hash=tokenizer.vocabulary_hash if tokenizer else ids_only,
        vocabulary_size=min(logits, tokenizer.vocabulary_size) if tokenizer else logits,
        eos_token_ids=tokenizer.eos_token_ids if tokenizer else eos_token_ids_of(source),
        kv_bytes_per_token=_kv_bytes_per_token(core, choice.source),
    )


def _start(choice: ModelChoice, source: ModelSource) -> Any:
    """Return an EngineCore in this process, with its workers in this or in others."""
    parallel = choice.parallel
    cpu = choice.device == "cpu"
    workers = parallel.tensor * parallel.pipeline
    try:
        config = EngineArgs(
            model=source.name,
            revision=choice.revision,
            skip_tokenizer_init=True,
            trust_remote_code=False,
            load_format="safetensors",
            language_model_only=True,
            dtype=choice.dtype,
            max_model_len=-1,  # what the model has and the pages hold
            max_num_seqs=MOST_SESSIONS,
            max_num_batched_tokens=PASS_TOKENS,
            block_size=CPU_PAGE_TOKENS if cpu else None,
            kv_cache_memory_bytes=choice.kv_budget_bytes // workers,
            enable_prefix_caching=True,
            async_scheduling=False,
            enforce_eager=cpu,
            tensor_parallel_size=parallel.tensor,
            pipeline_parallel_size=parallel.pipeline,
            distributed_executor_backend=parallel.executor,
            worker_extension_cls=WORKER,
        ).create_engine_config()
        return EngineCore(config, Executor.get_class(config), log_stats=False)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        why = f"{choice.source} cannot be loaded by vLLM: {(lines or [repr(error)])[0]}"
        raise InvalidArgument("model", why) from error


def _kv_bytes_per_token(core: Any, source: str) -> int:
    """Return the KV bytes per token of all workers together. A state that is not kept token by
    token cannot be rolled back, and a sliding window gives up pages that a rollback would need."""
    layers = [spec for specs in core.model_executor.get_kv_cache_specs() for spec in specs.values()]
    for spec in layers:
        if not isinstance(spec, FullAttentionSpec) or spec.sliding_window:
            why = f"{source} uses {type(spec).__name__}; only full attention can be rolled back"
            raise InvalidArgument("model", why)
    page_tokens = int(core.scheduler.block_size)
    return -(-sum(int(spec.page_size_bytes) for spec in layers) // page_tokens)


def _check_device(device: str) -> None:
    built_for = current_platform.device_type
    if device != built_for:
        why = f"{device!r}: this vLLM is built for {built_for!r} and selects the device itself"
        raise InvalidArgument("device", why)
