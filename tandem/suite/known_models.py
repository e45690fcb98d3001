"""Families of models whose small members draft for the large ones: a table of public figures, in
`known_models.toml`.

Models of one `tokenizer` have the same vocabulary, however their rows are padded; what is on this
machine is compared by content instead (`draft_candidates`). Figures of acceptance say where they
come from: measured in this repository, published by others for one setting, or expected, which
nobody measured.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

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


def _family(table: dict[str, Any]) -> Family:
    models = tuple(_model(**model) for model in table.pop("models"))
    return Family(**table, models=models)


def _model(aliases: tuple[str, ...] = (), **figures: Any) -> KnownModel:
    return KnownModel(**figures, aliases=tuple(aliases))


_TABLE = tomllib.loads(files("tandem.suite").joinpath("known_models.toml").read_text("utf-8"))
FAMILIES = tuple(map(_family, _TABLE["families"]))
_ACCEPTANCE = {
    (pair.pop("target"), pair.pop("draft")): Acceptance(**pair) for pair in _TABLE["acceptance"]
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
