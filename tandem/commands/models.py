"""Which models a command uses, and loading them. Torch is imported by `load_pair` only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandem.core.errors import InvalidArgument, TandemError
from tandem.engine.base import Engine, Tokenizer

if TYPE_CHECKING:
    from tandem.engine.tokenizer import TextTokenizer

DEMO_DRAFT, DEMO_TARGET = "demo-draft", "demo-target"


class CannotLoad(TandemError):
    """A model that is not there, cannot be read, or does not fit."""


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """One model: a folder, or the name of a hub model and its revision. `exits`, of a target: a
    folder of early exits, "none", or "auto" for those that lie beside it."""

    source: str
    revision: str | None = None
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    exits: str = "none"


@dataclass(frozen=True, slots=True)
class ModelPair:
    """Two engines with one vocabulary, the target's, and its tokenizer. `device` and `dtype` are
    what the target reports of itself.

    Engines belong to one thread each; a suite that was given a pair uses it alone.
    """

    draft: Engine
    target: Engine
    tokenizer: Tokenizer
    device: str = "cpu"
    dtype: str = "float32"
    choices: tuple[ModelChoice, ModelChoice] | None = None
    """Draft and target, where they were loaded from."""


def choose_model(
    given: str | None, demo: str, device: str = "cpu", dtype: str = "float32"
) -> ModelChoice:
    """What `--draft` or `--target` names; nothing names the demo model, wherever the caller is."""
    if given is None:
        return ModelChoice(str(_demo_folder(demo)), None, device, dtype)
    if Path(given).exists():
        _check_readable(Path(given))
        return ModelChoice(given, None, device, dtype)
    name, at, revision = given.rpartition("@")
    if not at:
        raise CannotLoad(f"{given}: no such folder; a model of the hub is given as NAME@COMMIT")
    return ModelChoice(name, revision, device, dtype)


def choose_pair(options: dict[str, Any]) -> tuple[ModelChoice, ModelChoice]:
    """Draft and target that the flags of `model_options` name."""
    draft = choose_model(
        options["draft"], DEMO_DRAFT, options["device_draft"], options["dtype_draft"]
    )
    target = choose_model(
        options["target"], DEMO_TARGET, options["device_target"], options["dtype_target"]
    )
    return draft, replace(target, exits=options["exits"])


def load_pair(draft: ModelChoice, target: ModelChoice) -> ModelPair:
    """Both engines and the tokenizer. A draft model with another tokenizer is translated.

    Raises CannotLoad, or InvalidArgument naming the flag.
    """
    draft_engine = load_model(draft, "draft")
    target_engine = load_model(target, "target")
    tokenizer = load_side_tokenizer(draft, "draft")
    if draft_engine.vocabulary_hash == target_engine.vocabulary_hash:
        return ModelPair(
            draft_engine, target_engine, tokenizer, target.device, target.dtype, (draft, target)
        )
    from tandem.engine.pairing import fit_draft

    of_target = load_side_tokenizer(target, "target")
    try:
        fitted = fit_draft(draft_engine, tokenizer, of_target)
    except InvalidArgument as error:
        raise CannotLoad(error.why) from error
    return ModelPair(fitted, target_engine, of_target, target.device, target.dtype, (draft, target))


def load_side_tokenizer(choice: ModelChoice, side: str) -> TextTokenizer:
    """The tokenizer of one model; `side` is how an error calls it."""
    from tandem.engine.load import load_tokenizer

    try:
        return load_tokenizer(choice.source, choice.revision)
    except InvalidArgument as error:
        raise CannotLoad(f"{side}: {error.why}") from error


def load_model(choice: ModelChoice, side: str) -> Engine:
    """One engine; `side` ("draft" or "target") is how an error calls it."""
    from tandem.engine.load import load_engine

    try:
        return load_engine(
            choice.source,
            choice.device,
            choice.dtype,
            choice.threads,
            choice.revision,
            choice.exits,
            drafts=side == "draft",
        )
    except InvalidArgument as error:
        if error.field in ("device", "dtype"):
            raise InvalidArgument(f"{error.field}_{side}", error.why) from error
        if error.field == "exits":
            raise
        raise CannotLoad(f"{side}: {error.why}") from error


def _check_readable(folder: Path) -> None:
    """What can be seen without torch is said before torch is loaded."""
    try:
        (folder / "config.json").open("rb").close()
    except OSError as error:
        raise CannotLoad(
            f"{folder}/config.json cannot be read ({error.strerror}); give the folder of a model"
        ) from error


def _demo_folder(name: str) -> Path:
    """In the checkout that this package lies in, or in the working directory."""
    places = (Path(__file__).resolve().parents[2] / "models", Path.cwd() / "models")
    for place in places:
        if (place / name).is_dir():
            return place / name
    raise CannotLoad(f"there is no {name} in {places[0]}; give --draft and --target")
