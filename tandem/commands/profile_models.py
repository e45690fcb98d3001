"""`tandem doctor --profile`: the decode lines of both models, measured here and stored."""

from functools import partial
from pathlib import Path
from typing import Any

from tandem.backends.model_source import ModelChoice
from tandem.commands.checks import Check, check
from tandem.core.errors import InvalidArgument
from tandem.suite.models import choose_pair, load_model
from tandem.two_sided.interface import (
    FIT_CONTEXT_TOKENS,
    FIT_DOCUMENT_TOKENS,
    Side,
    StoredFit,
    default_fits_path,
    measure_fit,
    read_fits,
    write_fits,
)

REMEDY = "give models that load, and a --profile-file that can be written"


def profile_checks(options: dict[str, Any]) -> list[Check]:
    """Check each side; the device drafts, the cloud has the target. `options`: doctor's flags."""
    path = options["profile_file"] or default_fits_path()
    draft, target = choose_pair(options)
    return [
        check(
            f"decoding at the {side.name.lower()}",
            partial(_measure, side, name, choice, options["profile_documents"], path),
            REMEDY,
        )
        for side, name, choice in ((Side.DEVICE, "draft", draft), (Side.CLOUD, "target", target))
    ]


def _measure(side: Side, name: str, choice: ModelChoice, documents: int, path: Path) -> str:
    """Measure and store the fits; a stored fit of the other side stays."""
    engine = load_model(choice, name).engine
    context_tokens = min(FIT_CONTEXT_TOKENS, engine.context_length)
    if context_tokens <= FIT_DOCUMENT_TOKENS:
        raise InvalidArgument(name, f"has a context of only {context_tokens} tokens")
    fit = measure_fit(engine, documents, context_tokens=context_tokens)
    stored = read_fits(path) | {side: StoredFit(engine.model_name, documents, fit)}
    write_fits(path, stored)
    early_s = fit.at(FIT_DOCUMENT_TOKENS)
    late_s = fit.at(context_tokens)
    return (
        f"{engine.model_name}, {documents} documents: {early_s * 1e3:.3g} ms a token after"
        f" {FIT_DOCUMENT_TOKENS}, {late_s * 1e3:.3g} ms after {context_tokens}; stored in {path}"
    )
