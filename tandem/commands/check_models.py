"""Checks of the two models: each loads and computes, and they fit each other.

Must not import grpc or torch.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from tandem.commands.checks import Check, check
from tandem.commands.models import (
    DEMO_DRAFT,
    DEMO_TARGET,
    ModelChoice,
    choose_model,
    load_model,
    load_side_tokenizer,
)
from tandem.core.errors import TandemError
from tandem.core.laws import Sampling, check_law, law_from_logits
from tandem.engine.base import Engine, Segment

DEMO = {"draft": DEMO_DRAFT, "target": DEMO_TARGET}
FOLDER = "give a folder in Hugging Face format with safetensors weights as --{side}"
EXITS = "train them for this target with 'tandem train-exits', or say --exits none"
ONE_VOCABULARY = "use a draft and a target with one tokenizer, or give --target-tokenizer"
SHARED_TOKENS = "use a draft whose tokenizer has more in common with the target's"
SAMPLE = (
    "The bridge was closed for three days after the storm of 1987. When it opened again, people "
    'walked across it slowly, looking at the river below; nobody said much. "It will hold," the '
    "engineer told them, and she was right.\n\nA list of what they carried: bread, lamps, a map."
)


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
    checks.append(check("early exits", partial(_exits, options), EXITS))
    if len(engines) == len(DEMO):
        checks.append(_vocabulary_check(engines, options))
    return checks


def _vocabulary_check(engines: dict[str, Engine], options: dict[str, Any]) -> Check:
    draft, target = engines["draft"], engines["target"]
    if draft.vocabulary_hash == target.vocabulary_hash:
        return check("one vocabulary", lambda: _fit(draft, target), ONE_VOCABULARY)
    choices = {side: _choice(side, options) for side in DEMO}
    return check("shared tokens", lambda: _shared(engines, choices), SHARED_TOKENS)


def _shared(engines: dict[str, Engine], choices: dict[str, ModelChoice]) -> str:
    """How much two tokenizers have in common, and what the rest costs on a sample text."""
    from tandem.engine.pairing import measure_loss, translate

    of_draft, of_target = (load_side_tokenizer(choices[side], side) for side in DEMO)
    room = min(engine.context_length for engine in engines.values()) // 4
    token_ids = of_target.encode(SAMPLE)[:room]
    translation = translate(of_draft, of_target)
    loss = measure_loss(engines["draft"], engines["target"], translation, token_ids)
    shared = loss.shared
    return (
        f"{len(shared)} of {shared.draft_size} (draft) and {shared.target_size} (target),"
        f" {shared.share:.0%} of the smaller vocabulary; over {len(token_ids)} sample tokens"
        f" {loss.draft_mass:.2%} of the draft's mass lies outside, by which acceptance falls at"
        f" most, and {loss.target_mass:.2%} of the target's: acceptance is at most"
        f" {1 - loss.target_mass:.3f}"
    )


def _load(side: str, options: dict[str, Any], engines: dict[str, Engine]) -> str:
    engine = load_model(_choice(side, options), side)
    _compute(engine)
    engines[side] = engine
    return f"{engine.model_name}: {describe(engine)}"


def _choice(side: str, options: dict[str, Any]) -> ModelChoice:
    return choose_model(
        options[side], DEMO[side], options[f"device_{side}"], options[f"dtype_{side}"]
    )


def _exits(options: dict[str, Any]) -> str:
    """Whether the early exits that a verifier of this target would use fit it."""
    if options["exits"] == "none":
        return "none wanted"
    target = choose_model(
        options["target"], DEMO_TARGET, options["device_target"], options["dtype_target"]
    )
    from tandem.engine.load import find_exits

    folder = find_exits(target.source, options["exits"])
    if folder is None:
        return "none beside the target: no early verdicts"
    depths = load_model(replace(target, exits=str(folder)), "target").exit_depths
    shares = ", ".join(f"{depth:.0%}" for depth in depths)
    return f"{folder}: {len(depths)}, after {shares} of the pass"


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
