"""What is known of a model without its weights, from a folder or by a pinned name: tokenizer, chat
template, ends of text, sizes and recommended sampling.

transformers reads these without torch. Every failure is an InvalidArgument.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, GenerationConfig
from transformers.utils.hub import cached_file

from tandem.backends.hub_cache import cached_snapshot
from tandem.backends.model_files import TOKENIZER, TOKENIZER_CONFIG, tokenizer_parts
from tandem.backends.model_source import ModelSource, find_source
from tandem.backends.model_trial import try_model
from tandem.core.default_sampling import NO_DEFAULTS, DefaultSampling
from tandem.core.reading import reading
from tandem.text.tokenizer import TextTokenizer


def load_tokenizer(folder_or_name: str | Path, revision: str | None = None) -> TextTokenizer:
    """Return the tokenizer of the model in a folder, or of that name and commit."""
    source = find_source(folder_or_name, revision)
    with reading(folder_or_name, "model"):
        _try_tokenizer(source)
        tokenizer = AutoTokenizer.from_pretrained(source.name, **source.options)
        size = getattr(text_config_of(source), "vocab_size", None)
        return TextTokenizer(tokenizer, eos_token_ids_of(source), size)


def find_tokenizer(folder_or_name: str | Path, revision: str | None = None) -> TextTokenizer | None:
    """Load as `load_tokenizer` does; None for a folder that holds a bare model."""
    has_tokenizer = _has_tokenizer(find_source(folder_or_name, revision))
    return load_tokenizer(folder_or_name, revision) if has_tokenizer else None


def text_config_of(source: ModelSource) -> Any:
    """Return transformers' configuration of the part of a model that reads and writes text."""
    return AutoConfig.from_pretrained(source.name, **source.options).get_text_config()


def eos_token_ids_of(source: ModelSource) -> frozenset[int]:
    """Return every id that the model's configuration or its generation settings call end of
    text."""
    settings: list[Any] = [text_config_of(source)]
    with suppress(OSError):  # the file is optional
        settings.append(GenerationConfig.from_pretrained(source.name, **source.options))
    token_ids: set[int] = set()
    for setting in settings:
        ids = getattr(setting, "eos_token_id", None)
        token_ids.update(ids if isinstance(ids, list) else [] if ids is None else [ids])
    return frozenset(token_ids)


def default_sampling_of(source: ModelSource, vocabulary_size: int) -> DefaultSampling:
    """Return what the model's generation_config.json recommends; a file that is missing or no JSON
    recommends nothing. transformers would add defaults of its own."""
    try:
        path = cached_file(source.name, "generation_config.json", **source.options)
        config = json.loads(Path(path or "").read_text("utf-8"))
    except (OSError, ValueError):
        return NO_DEFAULTS
    return DefaultSampling.from_config(config if isinstance(config, dict) else {}, vocabulary_size)


def model_name_of(folder_or_name: str | Path) -> str:
    folder = Path(folder_or_name)
    return folder.resolve().name if folder.exists() else str(folder_or_name)


def folder_of(source: ModelSource) -> Path | None:
    """Return where a model's files lie; None for one of the hub of which nothing is here."""
    if source.local:
        return Path(source.name)
    return cached_snapshot(source.name, source.options["revision"])


def _try_tokenizer(source: ModelSource) -> None:
    """Try the tokenizer and the chat templates of a model, once they are on this machine."""
    if not source.local:
        for name in (TOKENIZER, TOKENIZER_CONFIG, "chat_template.jinja"):
            with suppress(OSError):  # not every model has each
                cached_file(source.name, name, **source.options)
    if (folder := folder_of(source)) is not None:
        try_model(folder, *tokenizer_parts(folder))


def _has_tokenizer(source: ModelSource) -> bool:
    """Return whether a model has a tokenizer; without one, prompts are token ids."""
    folder = Path(source.name)
    names = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")
    return not source.local or any((folder / name).exists() for name in names)
