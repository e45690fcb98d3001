"""Families of models whose small members draft for the large ones: a table of public figures.

Models of one `tokenizer` have the same vocabulary, however their rows are padded; what is on this
machine is compared by content instead (`draft_candidates`). Figures of acceptance say where they
come from: measured in this repository, published by others for one setting, or expected, which
nobody measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

LARGEST_SHARE = 0.5
"""Of the target's size. A larger draft takes about as long as the target's own pass."""


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that is known by name, wherever it is.

    `parameters`: in thousands of millions. `context_length`: in tokens. `gated`: the hub gives it
    only to accounts that accepted its terms. `aliases`: other names. `made_by`: the command that
    makes it, for one that is not at the hub.
    """

    name: str
    parameters: float
    context_length: int
    gated: bool = False
    aliases: tuple[str, ...] = ()
    made_by: str = ""

    @property
    def weights_bytes(self) -> int:
        """Memory of the weights in bfloat16; float32 takes twice as much, 4 bits some 0.3 of it."""
        return round(2e9 * self.parameters)

    @property
    def obtained_by(self) -> str:
        """The command that brings it onto this machine."""
        return self.made_by or f"tandem pull {self.name}"


@dataclass(frozen=True, slots=True)
class Family:
    """Models of one vocabulary, by size. `tokenizer`: what the vocabulary is called."""

    name: str
    tokenizer: str
    models: tuple[KnownModel, ...]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Share of drafted tokens that a target accepts, from `low` to `high`. `basis`: "measured
    here", "published" or "expected". `source`: where, and under which conditions."""

    low: float
    high: float
    basis: str
    source: str

    @property
    def words(self) -> str:
        share = f"{self.low:.0%}"
        if self.high > self.low:
            share = f"{self.low:.0%} to {self.high:.0%}"
        return f"{share} of drafts accepted ({self.basis}: {self.source})"


EXPECTED = Acceptance(0.5, 0.8, "expected", "a guess for models of one family, measured by nobody")

QWEN25 = Family(
    "Qwen2.5",
    "Qwen",
    (
        KnownModel("Qwen/Qwen2.5-0.5B-Instruct", 0.49, 32_768),
        KnownModel("Qwen/Qwen2.5-1.5B-Instruct", 1.54, 32_768),
        KnownModel("Qwen/Qwen2.5-3B-Instruct", 3.09, 32_768),
        KnownModel("Qwen/Qwen2.5-7B-Instruct", 7.61, 32_768),
        KnownModel("Qwen/Qwen2.5-14B-Instruct", 14.7, 32_768),
        KnownModel("Qwen/Qwen2.5-32B-Instruct", 32.5, 32_768),
        KnownModel("Qwen/Qwen2.5-72B-Instruct", 72.7, 32_768),
    ),
)
QWEN3 = Family(
    "Qwen3",
    "Qwen3",
    (
        KnownModel("Qwen/Qwen3-0.6B", 0.6, 40_960),
        KnownModel("Qwen/Qwen3-1.7B", 1.7, 40_960),
        KnownModel("Qwen/Qwen3-4B", 4.0, 40_960),
        KnownModel("Qwen/Qwen3-8B", 8.2, 40_960),
        KnownModel("Qwen/Qwen3-14B", 14.8, 40_960),
        KnownModel("Qwen/Qwen3-32B", 32.8, 40_960),
    ),
)
LLAMA3 = Family(
    "Llama 3",
    "Llama 3",
    (
        KnownModel("meta-llama/Llama-3.2-1B-Instruct", 1.24, 131_072, gated=True),
        KnownModel("meta-llama/Llama-3.2-3B-Instruct", 3.21, 131_072, gated=True),
        KnownModel("meta-llama/Llama-3.1-8B-Instruct", 8.03, 131_072, gated=True),
        KnownModel("meta-llama/Llama-3.1-70B-Instruct", 70.6, 131_072, gated=True),
        KnownModel("meta-llama/Llama-3.3-70B-Instruct", 70.6, 131_072, gated=True),
    ),
)
GEMMA3 = Family(
    "Gemma 3",
    "Gemma 3",
    (
        KnownModel("google/gemma-3-270m-it", 0.27, 32_768, gated=True),
        KnownModel("google/gemma-3-1b-it", 1.0, 32_768, gated=True),
        KnownModel("google/gemma-3-4b-it", 4.3, 131_072, gated=True),
        KnownModel("google/gemma-3-12b-it", 12.2, 131_072, gated=True),
        KnownModel("google/gemma-3-27b-it", 27.4, 131_072, gated=True),
    ),
)
SMOLLM2 = Family(
    "SmolLM2",
    "SmolLM2",
    (
        KnownModel("smollm2-draft", 0.0142, 8_192, made_by="make real-pair"),
        KnownModel("HuggingFaceTB/SmolLM2-135M-Instruct", 0.135, 8_192, aliases=("real/smollm2",)),
        KnownModel("HuggingFaceTB/SmolLM2-360M-Instruct", 0.362, 8_192),
        KnownModel("HuggingFaceTB/SmolLM2-1.7B-Instruct", 1.71, 8_192),
    ),
)
MISTRAL = Family(
    "Mistral",
    "Mistral v3",
    (KnownModel("mistralai/Mistral-7B-Instruct-v0.3", 7.25, 32_768),),
)
MISTRAL_TEKKEN = Family(
    "Mistral",
    "Mistral Tekken",
    (
        KnownModel("mistralai/Ministral-8B-Instruct-2410", 8.02, 32_768, gated=True),
        KnownModel("mistralai/Mistral-Nemo-Instruct-2407", 12.2, 131_072),
        KnownModel("mistralai/Mistral-Small-24B-Instruct-2501", 23.6, 32_768),
    ),
)
FAMILIES = (QWEN25, QWEN3, LLAMA3, GEMMA3, SMOLLM2, MISTRAL, MISTRAL_TEKKEN)

_ACCEPTANCE = {
    ("HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2-draft"): Acceptance(
        0.44, 0.52, "measured here", "temperature 1 to 0, held-out prompts, models/real-draft"
    ),
    ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.2-1B-Instruct"): Acceptance(
        0.72, 0.72, "published", "one prompt, Q8_0, 5 drafts a round, llama.cpp issue 5877"
    ),
}
"""By target and draft."""

_QUANTISATION = re.compile(r"[-_.:](i?q\d\w*|b?f16|fp16|gguf|awq|gptq|instruct|it|chat|latest)$")


def known_model(name: str) -> KnownModel | None:
    """Return the model of the table that a name means: of the hub, of a GGUF file or of Ollama,
    with or without its publisher and quantisation; None for others."""
    wanted = _plain(name)
    for family in FAMILIES:
        for model in family.models:
            if wanted == _plain(model.name) or name.lower() in model.aliases:
                return model
    return None


def known_drafts(target: KnownModel) -> Iterator[tuple[KnownModel, Acceptance]]:
    """Yield the models of the table that can draft for a target, the smallest first, and what share
    of their drafts is accepted."""
    for model in family_of(target).models:
        if model.parameters <= LARGEST_SHARE * target.parameters and _may_draft(model, target):
            yield model, acceptance_of(target, model)


def acceptance_of(target: KnownModel, draft: KnownModel) -> Acceptance:
    """Return what is known of a pair of one family."""
    return _ACCEPTANCE.get((target.name, draft.name), EXPECTED)


def family_of(model: KnownModel) -> Family:
    """Return the family that a model of the table belongs to."""
    return next(family for family in FAMILIES if model in family.models)


def _may_draft(draft: KnownModel, target: KnownModel) -> bool:
    """Return whether `draft` is offered for `target`; a draft that was distilled for one target is
    offered for that one alone."""
    return not draft.made_by or (target.name, draft.name) in _ACCEPTANCE


def _plain(name: str) -> str:
    """Return what all spellings of a name have in common."""
    plain = name.rpartition("/")[2].lower()
    while (shorter := _QUANTISATION.sub("", plain)) != plain:
        plain = shorter
    return re.sub(r"[-_:]", "", plain)
