"""Loading models, from a folder or by a pinned name.

Only safetensors and transformers' own code are accepted: no pickle, no code from the model. Every
failure is an InvalidArgument that says what is wrong with which part of the model.
"""

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging
from transformers.utils.hub import cached_file

from tandem.backends.hub_cache import holds_weights
from tandem.backends.model_description import (
    default_sampling_of,
    eos_token_ids_of,
    find_tokenizer,
    folder_of,
    model_name_of,
)
from tandem.backends.model_files import check_model_folder, check_weights
from tandem.backends.model_source import LoadedModel, ModelChoice, ModelSource, find_source
from tandem.backends.processors import machine_threads
from tandem.backends.torch.engine import HuggingFaceEngine
from tandem.backends.torch.exit_adapters import (
    AUTO,
    DESCRIPTION,
    NONE,
    ExitAdapters,
    load_adapters,
    place_beside,
    weights_hash,
)
from tandem.backends.torch.quantised import WEIGHT_BITS
from tandem.backends.torch.qwen_vision import VISION_MODELS, QwenVision
from tandem.backends.torch.reduced_head import read_head_tokens
from tandem.core.errors import InvalidArgument
from tandem.core.extras import install_command
from tandem.core.reading import reading
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

BAR_AFTER_S = 1.0

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_chosen(choice: ModelChoice) -> LoadedModel:
    """Return the causal language model that is chosen, with its tokenizer if it has one. `dtype` is
    float32, bfloat16 or float16, whatever the file holds, or int8 or int4 for quantised weights.
    `threads` is how many CPU threads torch uses in this process. Raises InvalidArgument naming the
    field."""
    with reading(choice.source, "model"):
        return _load(choice)


def _load(choice: ModelChoice) -> LoadedModel:
    folder_or_name = choice.source
    revision = choice.revision
    dtype = choice.dtype
    use_threads(choice.threads)
    source = find_source(folder_or_name, revision)
    model = load_model(folder_or_name, choice.device, dtype, revision)
    tokenizer = find_tokenizer(folder_or_name, revision)
    config = model.config.get_text_config()
    ids_only_hash = hashlib.sha256(f"ids only:{config.vocab_size}".encode()).hexdigest()
    engine = HuggingFaceEngine(
        model,
        model_name=model_name_of(folder_or_name),
        vocabulary_hash=tokenizer.vocabulary_hash if tokenizer else ids_only_hash,
        eos_token_ids=tokenizer.eos_token_ids if tokenizer else eos_token_ids_of(source),
        vocabulary_size=tokenizer.vocabulary_size if tokenizer else None,
        exits=_exits(choice.exits, source, config),
        single_rows=choice.drafts,
        vision=_vision(source, model),
        bits=WEIGHT_BITS.get(dtype),
        head_tokens=_head_tokens(source, config.vocab_size) if choice.drafts else None,
        first_layers=choice.first_layers,
    )
    return LoadedModel(
        engine,
        tokenizer,
        content_hash=partial(model_hash, folder_or_name, dtype, revision),
        default_sampling=default_sampling_of(source, engine.vocabulary_size),
    )


def _precision(dtype: str) -> torch.dtype | None:
    """Return torch's dtype; None for weights that are to be quantised."""
    if dtype not in (*_DTYPES, *WEIGHT_BITS):
        names = ", ".join((*_DTYPES, *WEIGHT_BITS))
        raise InvalidArgument("dtype", f"{dtype!r} is not one of {names}")
    return _DTYPES.get(dtype)


def load_engine(folder_or_name: str | Path, **choice: Any) -> HuggingFaceEngine:
    """Return the engine alone; `choice` has fields of ModelChoice."""
    engine = load_chosen(ModelChoice(str(folder_or_name), **choice)).engine
    assert isinstance(engine, HuggingFaceEngine)
    return engine


def use_threads(threads: int) -> None:
    """Have torch use so many threads in this process. 0: half of the machine's cores, since another
    model may run there too: threads that wait for a processor make a pass many times slower, and
    another number of them could change the last bits of a result, so it is not tried."""
    if threads < 0:
        raise InvalidArgument("threads", f"{threads} is less than 0")
    torch.set_num_threads(threads or max(1, machine_threads() // 2))


def load_model(
    folder_or_name: str | Path, device: str, dtype: str, revision: str | None = None
) -> Any:
    """Load transformers' own model, complete and on its device; raises what `load_chosen` raises. A
    model that is to be quantised has the precision of its file."""
    precision = _precision(dtype)
    place = _device(device)
    source = find_source(folder_or_name, revision)
    folder = folder_of(source)
    if folder is not None and (source.local or holds_weights(folder)):
        check_weights(folder)
    logging.set_tqdm_hook(_bar_on_terminals)
    logging.enable_progress_bar()
    with reading(folder_or_name, "model"):
        kind = _model_class(source)
        if (fetched := folder_of(source)) is not None:
            check_model_folder(fetched)
        loaded: Any = kind.from_pretrained(
            source.name,
            **source.options,
            dtype=precision or "auto",
            use_safetensors=True,
            attn_implementation=None,  # as transformers likes, whatever the folder says
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    model, report = loaded
    _check_complete(folder_or_name, report)
    return model.to(place)


def _bar_on_terminals(bar: Callable[..., Any], given: Any, named: dict[str, Any]) -> Any:
    """Return a progress bar that only terminals show, once loading has become long, and that is
    gone at its end."""
    return bar(*given, **named | {"disable": None, "delay": BAR_AFTER_S, "leave": False})


def base_hash(folder_or_name: str | Path, revision: str | None = None) -> str:
    """Return the content hash of a model's weights, which its early-exit adapters name. Reads all
    weights."""
    return _base_hash(find_source(folder_or_name, revision))


def model_hash(folder_or_name: str | Path, dtype: str, revision: str | None = None) -> str:
    """Return a content hash of what decides keys and values: weights (all are read), configuration,
    dtype."""
    source = find_source(folder_or_name, revision)
    config = AutoConfig.from_pretrained(source.name, **source.options).to_json_string()
    return hashlib.sha256(f"{_base_hash(source)}\n{dtype}\n{config}".encode()).hexdigest()


def _base_hash(source: ModelSource) -> str:
    folder = Path(source.name)
    if not source.local:  # loaded before, so all of it lies in the cache
        options = {**source.options, "local_files_only": True}
        folder = Path(cached_file(source.name, "config.json", **options) or "").parent
    return weights_hash(sorted(folder.glob("*.safetensors")))


def find_exits(folder_or_name: str | Path, exits: str) -> Path | None:
    """Return the folder of early exits that `exits` names, as of `ModelChoice`; None for none."""
    if exits == NONE:
        return None
    if exits != AUTO:
        return Path(exits)
    beside = place_beside(Path(folder_or_name))
    return beside if Path(folder_or_name).is_dir() and (beside / DESCRIPTION).exists() else None


def _exits(exits: str, source: ModelSource, config: Any) -> ExitAdapters | None:
    folder = find_exits(source.name, exits)
    if folder is None:
        return None
    try:
        return load_adapters(
            folder,
            _base_hash(source),
            layer_count=config.num_hidden_layers,
            hidden_size=config.hidden_size,
        )
    except InvalidArgument as error:
        if exits != AUTO:
            raise
        log.warning("early exits beside the model are left out", reason=error.why)
        return None


def _head_tokens(source: ModelSource, vocabulary_size: int) -> torch.Tensor | None:
    return read_head_tokens(Path(source.name), vocabulary_size) if source.local else None


def _model_class(source: ModelSource) -> Any:
    """Return the class that loads the model; vision models have a class of their own."""
    config = AutoConfig.from_pretrained(source.name, **source.options)
    kinds = (kind for kind in VISION_MODELS if type(config) is kind.config_class)
    return next(kinds, AutoModelForCausalLM)


def vision_of(folder_or_name: str | Path, model: Any) -> QwenVision | None:
    """Return the vision part of a loaded model, or None for a text-only model."""
    return _vision(find_source(folder_or_name, None), model)


def _vision(source: ModelSource, model: Any) -> QwenVision | None:
    """Return the model's vision tower, with the image preprocessing of its folder."""
    if not isinstance(model, VISION_MODELS):
        return None
    try:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
            Qwen2VLImageProcessorPil,
        )
    except ImportError as error:
        why = f"reads images, which needs pillow: {install_command('vision')}"
        raise InvalidArgument("model", why) from error
    with reading(source.name, "model"):
        processor = Qwen2VLImageProcessorPil.from_pretrained(source.name, **source.options)
    return QwenVision(model, processor)


def _check_complete(folder_or_name: str | Path, report: dict[str, Any]) -> None:
    """Raise InvalidArgument("model") if the file lacks tensors or has some of another shape:
    transformers fills them with random numbers."""
    for fault in ("missing_keys", "mismatched_keys"):
        if names := sorted(key if isinstance(key, str) else key[0] for key in report[fault]):
            kind = fault.removesuffix("_keys")
            why = f"{folder_or_name}: {len(names)} {kind} tensors in the weights, e.g. {names[0]}"
            raise InvalidArgument("model", why)


def _device(device: str) -> torch.device:
    if device.split(":")[0] not in ("cpu", "cuda"):
        raise InvalidArgument("device", f"{device!r} is neither cpu nor cuda")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        why = f"{device!r} cannot be used: {str(error).splitlines()[0]}"
        raise InvalidArgument("device", why) from error
    return place
