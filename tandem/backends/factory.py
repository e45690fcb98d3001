"""The back ends by name, each with a loader; which one computes a model is a setting.

Loaders import their back end when they are called, so that only the one that is used needs its
libraries. `tandem.backends.interface` says how to add one.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from types import MappingProxyType

from tandem.backends.interface import Engine, ForwardRequest
from tandem.backends.model_source import (
    AUTO,
    LoadedModel,
    ModelChoice,
    ServerChoice,
    is_gguf,
)
from tandem.core.errors import InvalidArgument
from tandem.settings import ModelSettings

Loader = Callable[[ModelChoice], LoadedModel]


def _from(module: str) -> Loader:
    """Return the function `load` of a back end's module."""

    def load(choice: ModelChoice) -> LoadedModel:
        loaded: LoadedModel = import_module(module).load(choice)
        return loaded

    return load


LOADERS: Mapping[str, Loader] = MappingProxyType(
    {
        "torch": _from("tandem.backends.torch"),
        "llamacpp": _from("tandem.backends.llamacpp"),
        "lookup": _from("tandem.backends.lookup"),
        "remote": _from("tandem.backends.remote"),
    }
)

SPLITTING = ("torch",)
"""Those that can run the first layers of a model alone."""
ELSEWHERE = ("remote",)
"""Those whose model another server computes."""
INVARIANT = ("llamacpp",)
"""Those that can compute each token to the same bits in every pass."""


def load_model(choice: ModelChoice) -> LoadedModel:
    """Return the model, by the back end that the choice names. Raises InvalidArgument naming the
    field of the choice ("model" for its source)."""
    engine = engine_of(choice)
    if engine not in LOADERS:
        names = ", ".join((AUTO, *LOADERS))
        why = f"unknown: {choice.engine!r}; known: {names}"
        raise InvalidArgument("engine", why)
    if choice.first_layers and engine not in SPLITTING:
        why = f"the engine {engine!r} cannot run a model's first layers alone; use 'torch'"
        raise InvalidArgument("engine", why)
    if choice.batch_invariant and engine not in INVARIANT:
        why = f"the engine {engine!r} is not batch-invariant; use 'llamacpp' with a GGUF file"
        raise InvalidArgument("batch_invariant", why)
    if choice.server is not None and engine not in ELSEWHERE:
        why = f"the engine {engine!r} computes here; use {ELSEWHERE[0]!r} with target_url"
        raise InvalidArgument("engine", why)
    return LOADERS[engine](choice)


def engine_of(choice: ModelChoice) -> str:
    """Return the back end's name; AUTO guesses it from the model."""
    if choice.engine != AUTO:
        return choice.engine
    if choice.server is not None:
        return ELSEWHERE[0]
    return "llamacpp" if is_gguf(choice.source) else "torch"


def load_served(
    settings: ModelSettings,
    model: str,
    *,
    exits: str = "none",
    drafts: bool = False,
    target_tokenizer: str | None = None,
    batch_invariant: bool = False,
    server: ServerChoice | None = None,
    load: Loader = load_model,
) -> LoadedModel:
    """Return the model of a service; `model` and what follows are settings of some services only. A
    draft model is translated to the vocabulary of `target_tokenizer`. The model has made a pass.
    `load` loads it."""
    choice = ModelChoice(
        source=model,
        revision=settings.revision,
        device=settings.device,
        dtype=settings.dtype,
        threads=settings.threads,
        exits=exits,
        engine=settings.engine,
        drafts=drafts,
        gpu_layers=settings.gpu_layers,
        kv_cells=settings.kv_cells,
        batch_invariant=batch_invariant,
        server=server,
    )
    loaded = load(choice)
    if target_tokenizer is not None:
        from tandem.backends.cross_vocabulary.pairing import fit_draft, load_target_tokenizer

        target = load_target_tokenizer(target_tokenizer)
        fitted = fit_draft(loaded.engine, loaded.tokenizer, target)
        loaded = replace(loaded, engine=fitted, tokenizer=target)
    _warm(loaded.engine)
    return loaded


def load_cloud_draft(choice: ModelChoice, target: LoadedModel, load: Loader = load_model) -> Engine:
    """Return a draft model that runs beside its target, translated to the target's vocabulary where
    that is another one. The model has made a pass. Raises InvalidArgument("cloud_draft")."""
    try:
        loaded = load(replace(choice, drafts=True))
        engine = loaded.engine
        if engine.vocabulary_hash != target.engine.vocabulary_hash:
            from tandem.backends.cross_vocabulary.pairing import fit_draft

            engine = fit_draft(engine, loaded.tokenizer, target.tokenizer)
    except InvalidArgument as error:
        raise InvalidArgument("cloud_draft", error.why) from error
    _warm(engine)
    return engine


def load_first_layers(
    settings: ModelSettings, model: str, layers: int, load: Loader = load_model
) -> LoadedModel:
    """Return the first layers of a target model, for a service that has another model of its own:
    in float32, so that the layers behind them find what they would compute themselves. Raises
    InvalidArgument("split_model")."""
    name, at, revision = model.rpartition("@")
    choice = ModelChoice(
        source=name if at else model,
        revision=revision if at else None,
        device=settings.device,
        threads=settings.threads,
        engine="torch",
        first_layers=layers,
    )
    try:
        loaded = load(choice)
    except InvalidArgument as error:
        raise InvalidArgument("split_model", error.why) from error
    _warm(loaded.engine)
    return loaded


def _warm(engine: Engine) -> None:
    """Run one pass, which reads weights from disk and builds kernels: a caller's first pass would
    look stuck."""
    session = engine.open(1)
    try:
        engine.forward([ForwardRequest(session, (0,), 1)])
    finally:
        session.close()
