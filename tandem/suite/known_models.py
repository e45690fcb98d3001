"""Families of models of one vocabulary whose small members draft for the large ones, by the names
that the hub has for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

LARGEST_SHARE = 0.5
"""Of the target's size. A larger draft takes about as long as the target's own pass."""

Sizes = dict[str, float]
"""Parameters in thousands of millions, by name, the smallest first."""

FAMILIES: tuple[Sizes, ...] = (
    {
        "Qwen/Qwen2.5-0.5B-Instruct": 0.49,
        "Qwen/Qwen2.5-1.5B-Instruct": 1.54,
        "Qwen/Qwen2.5-3B-Instruct": 3.09,
        "Qwen/Qwen2.5-7B-Instruct": 7.61,
        "Qwen/Qwen2.5-14B-Instruct": 14.7,
        "Qwen/Qwen2.5-32B-Instruct": 32.5,
        "Qwen/Qwen2.5-72B-Instruct": 72.7,
    },
    {
        "Qwen/Qwen3-0.6B": 0.6,
        "Qwen/Qwen3-1.7B": 1.7,
        "Qwen/Qwen3-4B": 4.0,
        "Qwen/Qwen3-8B": 8.2,
        "Qwen/Qwen3-14B": 14.8,
        "Qwen/Qwen3-32B": 32.8,
    },
    {
        "meta-llama/Llama-3.2-1B-Instruct": 1.24,
        "meta-llama/Llama-3.2-3B-Instruct": 3.21,
        "meta-llama/Llama-3.1-8B-Instruct": 8.03,
        "meta-llama/Llama-3.1-70B-Instruct": 70.6,
        "meta-llama/Llama-3.3-70B-Instruct": 70.6,
    },
    {
        "google/gemma-3-270m-it": 0.27,
        "google/gemma-3-1b-it": 1.0,
        "google/gemma-3-4b-it": 4.3,
        "google/gemma-3-12b-it": 12.2,
        "google/gemma-3-27b-it": 27.4,
    },
    {
        "HuggingFaceTB/SmolLM2-135M-Instruct": 0.135,
        "HuggingFaceTB/SmolLM2-360M-Instruct": 0.362,
        "HuggingFaceTB/SmolLM2-1.7B-Instruct": 1.71,
    },
    {
        "mistralai/Ministral-8B-Instruct-2410": 8.02,
        "mistralai/Mistral-Nemo-Instruct-2407": 12.2,
        "mistralai/Mistral-Small-24B-Instruct-2501": 23.6,
    },
)

_QUANTISATION = re.compile(r"[-_.:](i?q\d\w*|b?f16|fp16|gguf|awq|gptq|instruct|it|chat|latest)$")


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model of the table, wherever it is."""

    name: str
    family: Sizes

    def ratio_of(self, draft: KnownModel) -> float:
        """Return how many times the size of this model another one of its family has."""
        return draft.family[draft.name] / self.family[self.name]

    def drafts(self) -> Sequence[KnownModel]:
        """Return the models that can draft for this one, the smallest first."""
        relatives = (KnownModel(name, self.family) for name in self.family)
        return [each for each in relatives if self.ratio_of(each) <= LARGEST_SHARE]


def known_model(name: str) -> KnownModel | None:
    """Return the model of the table that a name means: of the hub, of a GGUF file or of Ollama,
    with or without its publisher and quantisation; None for others."""
    wanted = _plain(name)
    for family in FAMILIES:
        for known in family:
            if wanted == _plain(known):
                return KnownModel(known, family)
    return None


def _plain(name: str) -> str:
    """Return what all spellings of a name have in common."""
    plain = name.rpartition("/")[2].lower()
    while (shorter := _QUANTISATION.sub("", plain)) != plain:
        plain = shorter
    return re.sub(r"[-_:]", "", plain)
