"""Checks of the two models: each loads and computes, and they fit each other."""

from __future__ import annotations

from functools import partial
from typing import Any

from tandem.commands.checks import Check, check
from tandem.commands.models import DEMO_DRAFT, DEMO_TARGET, choose_model, load_model
from tandem.core.errors import TandemError
from tandem.core.laws import Sampling, check_law, law_from_logits
from tandem.engine.base import Engine, Segment

DEMO = {"draft": DEMO_DRAFT, "target": DEMO_TARGET}
FOLDER = "give a folder in Hugging Face format with safetensors weights as --{side}"
ONE_VOCABULARY = "use a draft and a target with one tokenizer"


def model_checks(options: dict[str, Any]) -> list[Check]:
    """`options`: the flags of `model_options`."""
    engines: dict[str, Engine] = {}
    checks = [
        check(
            f"{side} model",
            partial(_load, side, options, engines),
            FOLDER.format(side=side),
        )
        for side in DEMO
    ]
    if len(engines) == len(DEMO):
        checks.append(check("one vocabulary", lambda: _fit(**engines), ONE_VOCABULARY))
    return checks


def _load(side: str, options: dict[str, Any], engines: dict[str, Engine]) -> str:
    choice = choose_model(
        options[side], DEMO[side], options[f"device_{side}"], options[f"dtype_{side}"]
    )
    engine = load_model(choice, side)
    _compute(engine)
    engines[side] = engine
    return f"{engine.model_name}: {describe(engine)}"


def _compute(engine: Engine) -> None:
    """One token through the model gives a law."""
    session = engine.open(1)
    try:
        (logits,) = engine.forward([Segment(session, (0,), wanted=1)])
        check_law(law_from_logits(logits[0], Sampling()), engine.vocabulary_size, "law")
    finally:
        session.close()


def _fit(draft: Engine, target: Engine) -> str:
    differences = misfits(draft, target)
    if differences:
        raise TandemError("; ".join(differences))
    return f"{draft.vocabulary_hash[:16]}, on both sides"


def describe(model: Any) -> str:
    """What decides whether two models fit."""
    ends = ",".join(map(str, sorted(model.eos_token_ids))) or "none"
    return f"vocabulary {model.vocabulary_size}, context {model.context_length}, end of text {ends}"


def misfits(draft: Any, target: Any) -> list[str]:
    """Why two models, or two descriptions of models, cannot work together; empty if they can.

    Their ends of text may differ: the target's count.
    """
    found = []
    if draft.vocabulary_hash != target.vocabulary_hash:
        found.append(
            f"the vocabularies differ: {draft.model_name} has {draft.vocabulary_hash[:16]},"
            f" {target.model_name} has {target.vocabulary_hash[:16]}"
        )
    if draft.vocabulary_size != target.vocabulary_size:
        found.append(
            f"{draft.model_name} has {draft.vocabulary_size} logits,"
            f" {target.model_name} has {target.vocabulary_size}"
        )
    return found
