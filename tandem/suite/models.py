"""Which models a command uses, and loading them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tandem.backends import factory
from tandem.backends.gguf_engines import gguf_engine
from tandem.backends.interface import Engine
from tandem.backends.model_source import (
    AUTO,
    LoadedModel,
    ModelChoice,
    check_model_folder,
    is_gguf,
    only_drafts,
)
from tandem.core.errors import InvalidArgument, TandemError
from tandem.demo import demo_folder
from tandem.net.process import nothing_collected
from tandem.suite.local_models import NoSuchModel, find_model, local_models
from tandem.text import Tokenizer

BY_NAME = (AUTO, "torch", "llamacpp")
"""Engines whose models may be named instead of given by folder or file."""
LOOKUP = "lookup"
"""The engine that drafts without a model."""
WITH_TOKENIZERS = (*BY_NAME, "vllm")
"""Engines of models whose tokenizer says what may be looked up."""
DEMO_DRAFT = "demo-draft"
DEMO_TARGET = "demo-target"
DEMO = {"draft": DEMO_DRAFT, "target": DEMO_TARGET}


class CannotLoad(TandemError):
    """A model that is missing, cannot be read, or does not fit."""


@dataclass(frozen=True, slots=True)
class ModelPair:
    """Two engines with the target's vocabulary and tokenizer. `device`, `dtype`: the target's.
    Engines belong to one thread each; a suite that was given a pair uses it alone."""

    draft: Engine
    target: Engine
    tokenizer: Tokenizer
    device: str = "cpu"
    dtype: str = "float32"
    models: tuple[LoadedModel, LoadedModel] | None = None
    """Draft and target as they were loaded, where they were."""
    first_layers: Callable[[int], Engine] | None = None
    """Loads so many of the target's first layers, where a back end can run them alone."""
    cloud_draft: Callable[[], Engine] | None = None
    """Loads the draft model once more, for presets that draft in the cloud."""


def choose_model(
    given: str | None,
    demo: str,
    device: str = "cpu",
    dtype: str = "float32",
    exits: str = "none",
    engine: str = AUTO,
) -> ModelChoice:
    """Return the model that `--draft` or `--target` names: a folder or file, a model of this
    machine by its name (see `local_models`), or NAME@COMMIT of the hub; None names the demo model.
    Raises CannotLoad for a name that means none or several. Sources for back ends other than the
    default ones are theirs to check."""
    source = given or str(_demo_model(demo))
    revision = None
    if not Path(source).exists() and not is_gguf(source) and engine in BY_NAME:
        name, at, revision = source.rpartition("@")
        source = name if at else _local_source(source)
    if revision is None and Path(source).exists() and not is_gguf(source):
        _check_readable(Path(source))
    return ModelChoice(source, revision, device, dtype, exits=exits, engine=engine)


def draft_for(target: ModelChoice) -> ModelChoice | None:
    """Return what drafts for a target where no draft model is given: the text itself, by lookup.
    None for the demo's target, which has a draft model, and for targets without a tokenizer."""
    if target.engine not in WITH_TOKENIZERS:
        return None
    if Path(target.source).resolve() == demo_folder(DEMO_TARGET).resolve():
        return None
    return ModelChoice(target.source, target.revision, engine=LOOKUP)


def notes_on(draft: ModelChoice, target: ModelChoice, from_documents: bool = False) -> list[str]:
    """Return what was decided about two models that nobody asked for, a line for each decision.
    `from_documents`: each is to answer from documents of its side."""
    notes = _gguf_notes(draft, target)
    if looked_up := lookup_note(draft, target):
        notes.append(looked_up)
    if from_documents:
        notes += draft_only_notes(draft, target)
    return notes


def draft_only_notes(draft: ModelChoice, target: ModelChoice) -> list[str]:
    """Return what to say of models that cannot answer from their side's documents."""
    sides = (("draft", draft, "the device's"), ("target", target, "the cloud's"))
    return [
        f"{flag}: {Path(choice.source).name} was trained only to draft: from {side} documents it"
        f" writes nonsense; give --{flag} a model that can answer, such as a whole chat model"
        for flag, choice, side in sides
        if only_drafts(choice.source)
    ]


def lookup_note(draft: ModelChoice, target: ModelChoice) -> str:
    """Return what to say of a target without a draft model; empty where there is one."""
    if draft != draft_for(target):
        return ""
    return (
        "no draft model: drafts are looked up in the text, which helps where it repeats itself;"
        f" 'tandem pair {target.source}' finds a draft model"
    )


def _gguf_notes(draft: ModelChoice, target: ModelChoice) -> list[str]:
    notes = []
    for side, choice in (("draft", draft), ("target", target)):
        if choice.engine == AUTO and is_gguf(choice.source):
            name = Path(choice.source).name
            by = "llama.cpp computes it"
            if gguf_engine() == "torch":
                by = "PyTorch computes it, as llama.cpp is not installed"
            notes.append(f"{side}: {name} is a GGUF file: {by}")
    return notes


def choose_side(options: dict[str, Any], side: str, exits: str = "none") -> ModelChoice:
    """Return what the flags of `model_options` say of the "draft" or the "target". A target that
    comes without a draft model has the one of `draft_for`."""
    if side == "draft" and options["draft"] is None and options["target"] is not None:
        looked_up = draft_for(choose_side(options, "target"))
        if looked_up is not None and options["engine_draft"] == AUTO:
            return looked_up
    device, dtype, engine = (options[f"{field}_{side}"] for field in ("device", "dtype", "engine"))
    choice = choose_model(
        given=options[side], demo=DEMO[side], device=device, dtype=dtype, exits=exits, engine=engine
    )
    invariant = side == "target" and options.get("batch_invariant", False)
    return replace(choice, batch_invariant=invariant)


def choose_pair(options: dict[str, Any]) -> tuple[ModelChoice, ModelChoice]:
    """Return the draft and the target that the flags of `model_options` name."""
    return choose_side(options, "draft"), choose_side(options, "target", options["exits"])


def load_pair(draft: ModelChoice, target: ModelChoice) -> ModelPair:
    """Load both engines and the tokenizer. A draft model with another tokenizer is translated.
    Raises CannotLoad, or InvalidArgument naming the flag."""
    with nothing_collected():
        drafter = load_model(draft, "draft")
        verifier = load_model(target, "target")
    engine = drafter.engine
    tokenizer = drafter.tokenizer
    if engine.vocabulary_hash != verifier.engine.vocabulary_hash:
        from tandem.backends.cross_vocabulary.pairing import fit_draft

        try:
            engine = fit_draft(engine, drafter.tokenizer, verifier.tokenizer)
            tokenizer = verifier.tokenizer
        except InvalidArgument as error:
            raise CannotLoad(error.why) from error
    if tokenizer is None:
        raise CannotLoad(f"draft: {draft.source} has no tokenizer")
    return ModelPair(
        draft=engine,
        target=verifier.engine,
        tokenizer=tokenizer,
        device=target.device,
        dtype=target.dtype,
        models=(drafter, verifier),
        first_layers=partial(_first_layers, target) if verifier.engine.layer_count else None,
        cloud_draft=partial(factory.load_cloud_draft, draft, verifier),
    )


def _first_layers(target: ModelChoice, layers: int) -> Engine:
    alone = replace(target, dtype="float32", exits="none", first_layers=layers)
    return load_model(alone, "target").engine


def load_model(choice: ModelChoice, side: str) -> LoadedModel:
    """Load one model; `side` ("draft" or "target") is how an error calls it."""
    try:
        return factory.load_model(replace(choice, drafts=side == "draft"))
    except InvalidArgument as error:
        if error.field in ("device", "dtype", "engine"):
            raise InvalidArgument(f"{error.field}_{side}", error.why) from error
        if error.field in ("exits", "batch_invariant"):
            raise
        raise CannotLoad(f"{side}: {error.why}") from error


def _local_source(name: str) -> str:
    try:
        return str(find_model(name, local_models()).source)
    except NoSuchModel as error:
        raise CannotLoad(str(error)) from error


def _check_readable(folder: Path) -> None:
    """Check a model's folder before torch is loaded, which takes seconds. Raises CannotLoad."""
    try:
        check_model_folder(folder)
    except InvalidArgument as error:
        raise CannotLoad(error.why) from error


def _demo_model(name: str) -> Path:
    folder = demo_folder(name)
    if not folder.is_dir():
        raise CannotLoad(f"{folder} does not exist; set --draft and --target")
    return folder
