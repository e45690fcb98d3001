"""`tandem doctor --profile`: the decode lines of both models, measured here and stored."""

from functools import partial
from pathlib import Path
from typing import Any

from tandem.backends.model_source import ModelChoice
from tandem.commands.checks import Check, check
from tandem.suite.models import choose_pair, load_model
from tandem.two_sided.interface import Side, default_fits_path, profile_decoding

REMEDY = "give models that load, and a --profile-file that can be written"


def profile_checks(options: dict[str, Any]) -> list[Check]:
    """Check each side; the device drafts, the cloud has the target. `options`: doctor's flags."""
    path = options["profile_file"] or default_fits_path()
    draft, target = choose_pair(options)
    return [
        check(
            f"decoding at the {side.name.lower()}",
            partial(
                _measure,
                choice,
                side=side,
                name=name,
                documents=options["profile_documents"],
                path=path,
            ),
            REMEDY,
        )
        for side, name, choice in ((Side.DEVICE, "draft", draft), (Side.CLOUD, "target", target))
    ]


def _measure(choice: ModelChoice, *, side: Side, name: str, documents: int, path: Path) -> str:
    """Measure and store the fits; a stored fit of the other side stays."""
    engine = load_model(choice, name).engine
    return profile_decoding(engine, side, documents=documents, path=path)
