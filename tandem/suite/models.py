"""Which models a command uses, and loading them."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tandem.backends import factory
from tandem.backends.interface import Engine
from tandem.backends.model_files import check_model_folder
from tandem.backends.model_source import AUTO, LoadedModel, ModelChoice, is_gguf, only_drafts
from tandem.core.errors import InvalidArgument, TandemError
from tandem.demo import demo_folder, is_demo
from tandem.net.process import nothing_collected
from tandem.settings import TARGET_VARIABLE
from tandem.suite.default_model import RECOMMENDED, DefaultModel, NoChatModel, installed_default
from tandem.suite.local_models import NoSuchModel, find_model, local_models
from tandem.text import Tokenizer

BY_NAME = (AUTO, "torch", "llamacpp")
"""Engines whose models may be named instead of given by folder or file."""
LOOKUP = "lookup"
"""The engine that drafts without a model."""
WITH_TOKENIZERS = (*BY_NAME, "remote")
"""Engines of models whose tokenizer says what may be looked up."""
DEMO_DRAFT = "demo-draft"
DEMO_TARGET = "demo-target"
DEMO = "demo"
"""What `TANDEM_TARGET` calls the demo pair; who sets it knows that it is a toy."""
DEMO_BANNER = (
    "demo: a toy of 8 million parameters answers, quickly and mostly nonsense;"
    f" 'tandem pull {RECOMMENDED}' gets a model that can"
)
SIDES = ("draft", "target")
_AT_SERVER = re.compile(r"(?:(?P<model>.+)@)?(?P<url>https?://.+)")
"""A model that a server computes: its address, after the model where the tokenizer is to come from
elsewhere than the server says."""


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
    source: str,
    device: str = "cpu",
    dtype: str | None = None,
    exits: str = "none",
    engine: str = AUTO,
) -> ModelChoice:
    """Return the model that a source names: a folder or file, a model of this machine by its name
    (see `local_models`), or NAME@COMMIT of the hub. Without a `dtype` it is float32, and int8 for a
    model that was trained to draft, which was trained in 8 bits. Raises CannotLoad for a name that
    means none or several. Sources for back ends other than the default ones are theirs to check."""
    if (at_server := _AT_SERVER.fullmatch(source)) is not None:
        return _served_model(at_server["model"], at_server["url"], engine)
    revision = None
    if not Path(source).exists() and not is_gguf(source) and engine in BY_NAME:
        name, at, commit = source.rpartition("@")
        source, revision = (name, commit) if at else (_local_source(source), None)
    if engine in BY_NAME and is_gguf(source) and not Path(source).is_file():
        raise CannotLoad(
            f"{source}: no such file; 'tandem models' lists the models of this machine"
        )
    if revision is None and Path(source).exists() and not is_gguf(source):
        _check_readable(Path(source))
    dtype = dtype or ("int8" if only_drafts(source) else "float32")
    return ModelChoice(source, revision, device, dtype, exits=exits, engine=engine)


def _served_model(model: str | None, url: str, engine: str) -> ModelChoice:
    """Return the model that the server at `url` computes, by what its settings say of the key and
    the certificates. Raises CannotLoad where nothing here has its tokenizer, or InvalidArgument."""
    from tandem.backends.remote import served_model
    from tandem.services.verifier.config import VerifierSettings, server_choice

    server = server_choice(VerifierSettings(target_url=url))
    assert server is not None, "it has an address"
    try:
        name = served_model(server) if model is None else model
    except InvalidArgument as error:
        raise CannotLoad(f"target: {error.why}") from error
    try:
        tokenizer = choose_model(name)
    except CannotLoad as error:
        if model is not None:
            raise
        raise CannotLoad(
            f"target: the tokenizer of {name!r}, which {url} serves, is not on this machine;"
            f" say where it is: --target FOLDER@{url} or --target NAME@COMMIT@{url}"
        ) from error
    return replace(tokenizer, engine="remote" if engine == AUTO else engine, server=server)


def choose_target(
    given: str | None,
    *,
    demo: bool = False,
    device: str = "cpu",
    dtype: str | None = None,
    exits: str = "none",
    engine: str = AUTO,
) -> ModelChoice:
    """Return the model that answers: the one that is `given`, or the demo pair's, or else the one
    that `TANDEM_TARGET` names, or else this machine's default (`default_model`). Raises CannotLoad,
    or InvalidArgument("demo") where both are asked for."""
    if demo and given is not None:
        raise InvalidArgument("demo", "sets both models; leave out --target and --draft")
    named = os.environ.get(TARGET_VARIABLE) if given is None else None
    source, note = given, ""
    if demo or named == DEMO:
        source, note = demo_source(DEMO_TARGET), DEMO_BANNER if demo else ""
    elif named:
        source, note = named, f"model: {named} ({TARGET_VARIABLE} names it)"
    elif source is None:
        default = _installed_default()
        source = str(default.model.source)
        note = f"model: {default.model.name} ({default.why})"
    return replace(choose_model(source, device, dtype, exits, engine), note=note)


def demo_source(name: str) -> str:
    """Return the folder of a model of the demo pair. Raises CannotLoad where it was left out."""
    folder = demo_folder(name)
    if not folder.is_dir():
        raise CannotLoad(f"{folder} does not exist; set --draft and --target")
    return str(folder)


def choose_draft(
    given: str | None,
    target: ModelChoice,
    *,
    device: str = "cpu",
    dtype: str | None = None,
    engine: str = AUTO,
) -> ModelChoice:
    """Return the draft model that is `given`, or else the one that belongs to the target: the
    demo's, or that which was trained for it and lies beside it (x-draft beside x), or the text
    itself, by lookup. A target without a tokenizer has none: raises InvalidArgument("draft"), or
    CannotLoad."""
    if given is not None:
        return choose_model(given, device, dtype, engine=engine)
    if target.engine not in WITH_TOKENIZERS:
        raise InvalidArgument("draft", f"is needed for a target of the engine {target.engine!r}")
    if is_demo(target.source):
        return choose_model(demo_source(DEMO_DRAFT), device, dtype, engine=engine)
    beside = f"{target.source}-draft"
    if engine == AUTO and only_drafts(beside):
        return choose_model(beside, device, dtype)
    engine = LOOKUP if engine == AUTO else engine
    return ModelChoice(target.source, target.revision, engine=engine)


def with_documents(draft: ModelChoice, target: ModelChoice) -> ModelChoice:
    """Return what runs on the device where it is to answer from its own documents: the draft model,
    or, if that only drafts, the target's own model, in 8 bits where that is no GGUF file. Raises
    InvalidArgument("draft") where the target cannot run here, or can only draft itself."""
    if draft.engine != LOOKUP and not only_drafts(draft.source):
        return draft
    drafts = "lookup" if draft.engine == LOOKUP else Path(draft.source).name
    if target.engine not in BY_NAME or only_drafts(target.source):
        raise InvalidArgument(
            "draft",
            f"{drafts} can only draft, and not answer from documents: give a model that answers",
        )
    note = (
        f"draft: {Path(target.source).name} too, which answers from the device's documents;"
        f" {drafts} can only draft"
    )
    return replace(
        target,
        device=draft.device,
        dtype="float32" if is_gguf(target.source) else "int8",
        exits="none",
        batch_invariant=False,
        note=note,
    )


def notes_on(draft: ModelChoice, target: ModelChoice) -> list[str]:
    """Return what was decided about two models that nobody asked for, a line for each decision."""
    return [note for note in (lookup_note(draft, target), draft.note) if note]


def lookup_note(draft: ModelChoice, target: ModelChoice) -> str:
    """Return what to say of a target without a draft model; empty where there is one."""
    if draft.engine != LOOKUP or draft.source != target.source:
        return ""
    return (
        "no draft model: drafts are looked up in the text, which helps where it repeats itself;"
        f" 'tandem pair {target.source}' finds a draft model"
    )


def choose_side(options: dict[str, Any], side: str, exits: str = "none") -> ModelChoice:
    """Return what the flags of `model_options` say of the "draft" or the "target"."""
    if options["demo"] and options["draft"] is not None:
        raise InvalidArgument("demo", "sets both models; leave out --target and --draft")
    device, dtype, engine = (options[f"{field}_target"] for field in ("device", "dtype", "engine"))
    target = choose_target(
        options["target"],
        demo=options["demo"],
        device=device,
        dtype=dtype,
        exits=exits,
        engine=engine,
    )
    if side == "target":
        invariant = options.get("batch_invariant", False)
        return replace(target, batch_invariant=invariant, threads=options["threads"])
    device, dtype, engine = (options[f"{field}_draft"] for field in ("device", "dtype", "engine"))
    draft = choose_draft(options["draft"], target, device=device, dtype=dtype, engine=engine)
    return replace(draft, threads=options["threads"])


def choose_pair(
    options: dict[str, Any], *, documents: bool = False
) -> tuple[ModelChoice, ModelChoice]:
    """Return the draft and the target that the flags of `model_options` name. `documents`: each is
    to answer from documents of its side."""
    target = choose_side(options, "target", options["exits"])
    draft = choose_side(options, "draft")
    return (with_documents(draft, target) if documents else draft), target


def load_pair(draft: ModelChoice, target: ModelChoice) -> ModelPair:
    """Load both engines and the tokenizer. A draft model with another tokenizer is translated.
    Raises CannotLoad, or InvalidArgument naming the flag."""
    with nothing_collected():
        drafter = load_model(draft, "draft", named=_named(draft, target))
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


def _named(draft: ModelChoice, target: ModelChoice) -> str:
    """Return what the model is called that a draft is loaded from: a lookup reads the tokenizer of
    the target, which is the one that was named."""
    return "target" if draft.engine == LOOKUP and draft.source == target.source else "draft"


def _first_layers(target: ModelChoice, layers: int) -> Engine:
    alone = replace(target, dtype="float32", exits="none", first_layers=layers)
    return load_model(alone, "target").engine


def load_model(choice: ModelChoice, side: str, *, named: str | None = None) -> LoadedModel:
    """Load one model of a `side` ("draft" or "target"), which is how an error calls it if it is not
    `named` otherwise."""
    try:
        return factory.load_model(replace(choice, drafts=side == "draft"))
    except InvalidArgument as error:
        if error.field in ("device", "dtype", "engine"):
            raise InvalidArgument(f"{error.field}_{side}", error.why) from error
        if error.field in ("exits", "batch_invariant"):
            raise
        raise CannotLoad(f"{named or side}: {error.why}") from error


def _installed_default() -> DefaultModel:
    try:
        return installed_default()
    except NoChatModel as error:
        raise CannotLoad(str(error)) from error


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
