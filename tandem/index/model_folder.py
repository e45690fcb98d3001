"""The folder of a sentence-transformers model, read as published.

`modules.json` names the steps, `1_Pooling/config.json` the pooling; a step that is not known is
refused by name, never left out. Imports no library that runs models, so that a folder that cannot
be used is refused before that costs anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.backends import model_files
from tandem.backends.model_trial import try_model
from tandem.core.errors import InvalidArgument
from tandem.core.reading import reading

_STEPS = ("Transformer", "Pooling", "Normalize")
_QUESTION_PROMPTS = ("query",)
_PASSAGE_PROMPTS = ("document", "passage")
"""Names in the `prompts` of config_sentence_transformers.json, the first that there is."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """What a model's folder says of it. `max_length`: tokens of a text that are read, with the
    marks at both ends; 0: what the architecture allows. `name` has a hash of the content. The
    prompts are put before every question, and every passage, as E5 wants it; most have none."""

    path: Path
    name: str
    pools_first_token: bool
    max_length: int
    config: dict[str, Any]
    question_prompt: str
    passage_prompt: str

    @classmethod
    def read(cls, path: Path) -> ModelFolder:
        """Read the folder of an embedding model. Raises InvalidArgument("embedding") saying what is
        wrong with it."""
        with reading(path, "embedding"):
            pools_first_token = _pools_first_token(path)
        config = read_json(path / "config.json")
        if not isinstance(config, dict):
            raise InvalidArgument("embedding", f"{path / 'config.json'}: is not an object")
        check_untrusted(path, config, "embedding")
        passage_prompt = _prompt(path, _PASSAGE_PROMPTS)
        name = f"{_base_name(path)}:{_fingerprint(path)}"
        if passage_prompt:  # questions are not stored, so their prompt may change
            name += f" after {hashlib.sha256(passage_prompt.encode()).hexdigest()[:8]}"
        return cls(
            path=path,
            name=name,
            pools_first_token=pools_first_token,
            max_length=_max_length(path),
            config=config,
            question_prompt=_prompt(path, _QUESTION_PROMPTS),
            passage_prompt=passage_prompt,
        )


def read_json(path: Path) -> Any:
    """Return the content of a file of the model. Raises InvalidArgument naming it."""
    try:
        return model_files.read_json(path)
    except (OSError, ValueError) as error:
        raise InvalidArgument("embedding", f"{path}: cannot be read: {error}") from error


def check_untrusted(folder: Path, config: Any, field: str) -> None:
    """Raise InvalidArgument(field) for a model that names code, or whose tokenizer takes too
    much."""
    try:
        model_files.check_settings(folder / "config.json", config)
        try_model(folder, *model_files.tokenizer_parts(folder))
    except InvalidArgument as error:
        raise InvalidArgument(field, error.why) from error


def _pools_first_token(folder: Path) -> bool:
    """Return whether the model pools by the first token, else by the mean."""
    modules = read_json(folder / "modules.json")
    steps = [step["type"].rsplit(".", 1)[-1] for step in modules]
    unknown = [step for step in steps if step not in _STEPS]
    if unknown or steps[:2] != ["Transformer", "Pooling"]:
        raise InvalidArgument("embedding", f"{folder}: modules {steps}; supported are {_STEPS}")
    pooling = read_json(folder / modules[1]["path"] / "config.json")
    # Written by releases since 5 as one word, before as one switch for each mode.
    modes = {
        name.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token")
        for name, on in pooling.items()
        if name.startswith("pooling_mode_") and on is True
    } or {pooling.get("pooling_mode")}
    if modes not in ({"mean"}, {"cls"}):
        raise InvalidArgument(
            "embedding", f"{folder}: pooling {modes} is not supported; use mean or cls"
        )
    return modes == {"cls"}


def _max_length(folder: Path) -> int:
    path = folder / "sentence_bert_config.json"
    return int(read_json(path).get("max_seq_length") or 0) if path.exists() else 0


def _prompt(folder: Path, names: Sequence[str]) -> str:
    """Return the first of these prompts that the model's folder has, else nothing."""
    path = folder / "config_sentence_transformers.json"
    prompts = read_json(path).get("prompts") if path.exists() else None
    texts = [prompts.get(name) for name in names] if isinstance(prompts, dict) else []
    return next((text for text in texts if isinstance(text, str)), "")


def _base_name(folder: Path) -> str:
    """Return the folder's name, which is a package's or a commit's for one that is called
    `model`."""
    return folder.parent.name if folder.name == "model" else folder.name


def _fingerprint(folder: Path) -> str:
    """Return a hash over the files that decide a vector."""
    digest = hashlib.sha256()
    patterns = ("*.safetensors", "config.json", "tokenizer*.json", "vocab.txt", "*_Pooling/*.json")
    for pattern in (*patterns, "modules.json", "sentence_bert_config.json"):
        for path in sorted(folder.glob(pattern)):
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            digest.update(f"{path.relative_to(folder)} {content}\n".encode())
    return digest.hexdigest()[:16]
