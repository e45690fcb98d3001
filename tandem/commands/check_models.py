"""Checks of the two models: each loads and computes, and they fit each other."""

from dataclasses import fields, replace
from functools import partial
from typing import Any

from tandem.backends.factory import engine_of
from tandem.backends.interface import Capabilities, Engine, ForwardRequest
from tandem.backends.model_source import LoadedModel, is_gguf
from tandem.backends.requirements import missing_capabilities
from tandem.commands.checks import Check, check
from tandem.commands.model_notes import context_note
from tandem.core.errors import TandemError
from tandem.core.probs import SamplingParams, check_probs, probs_from_logits
from tandem.specdec.presets import PRESETS
from tandem.suite.models import SIDES, choose_pair, choose_side, load_model, notes_on
from tandem.two_sided.interface import AGGREGATION_PRESETS

FOLDER = (
    "give a folder in Hugging Face format with safetensors weights, or a GGUF file, as --{side}"
)
EXITS = "train them for this target with 'tandem train-exits', or use --exits none"
ONE_VOCABULARY = "use a draft and a target with one tokenizer, or set --target-tokenizer"
SHARED_TOKENS = "use a draft whose tokenizer has more in common with the target's"
SAMPLE = (
    "The bridge was closed for three days after the storm of 1987. When it opened again, people "
    'walked across it slowly, looking at the river below; nobody said much. "It will hold," the '
    "engineer told them, and she was right.\n\nA list of what they carried: bread, lamps, a map."
)


def model_checks(options: dict[str, Any]) -> list[Check]:
    """Check the models that `options` choose, which are the flags of `model_options`."""
    models: dict[str, LoadedModel] = {}
    checks = [
        check(f"{side} model", partial(_load, side, options, models), _folder_advice(options, side))
        for side in SIDES
    ]
    checks += _choices(options)
    checks.append(check("early exits", partial(_exits, options, models), EXITS))
    if len(models) == len(SIDES):
        engines = {side: model.engine for side, model in models.items()}
        checks.append(_vocabulary_check(models))
        checks += context_checks(engines["draft"], engines["target"])
        checks += [
            check(f"{side} back end", partial(_capabilities, engine), "")
            for side, engine in engines.items()
        ]
        checks.append(check("presets", partial(_presets, **engines), ""))
    return checks


def _folder_advice(options: dict[str, Any], side: str) -> str:
    """Return what else to give; a GGUF file says itself what it needs."""
    given = options[side]
    return "" if given is not None and is_gguf(given) else FOLDER.format(side=side)


def _choices(options: dict[str, Any]) -> list[Check]:
    """Return a check for each decision that the flags leave open, with what was decided."""
    try:
        draft, target = choose_pair(options)
    except TandemError:  # a check of the model says it
        return []
    notes = [target.note, *notes_on(draft, target)]
    return [Check("models", True, note) for note in notes if note]


def context_checks(draft: Any, target: Any) -> list[Check]:
    """Say what happens to texts that are too long for the draft model; nothing where none are."""
    note = context_note(draft.context_length, target.context_length)
    return [Check("draft context", True, note)] if note else []


def _vocabulary_check(models: dict[str, LoadedModel]) -> Check:
    draft = models["draft"].engine
    target = models["target"].engine
    if draft.vocabulary_hash == target.vocabulary_hash:
        return check("one vocabulary", lambda: _fit(draft, target), ONE_VOCABULARY)
    return check("shared tokens", lambda: _shared(**models), SHARED_TOKENS)


def _shared(draft: LoadedModel, target: LoadedModel) -> str:
    """Measure how much two tokenizers have in common, and what the rest costs on a sample text."""
    from tandem.backends.cross_vocabulary.pairing import measure_loss, translate

    translation = translate(draft.tokenizer, target.tokenizer)
    assert target.tokenizer is not None, "else there is no translation"
    room = min(draft.engine.context_length, target.engine.context_length) // 4
    token_ids = target.tokenizer.encode(SAMPLE)[:room]
    loss = measure_loss(draft.engine, target.engine, translation, token_ids)
    shared = loss.shared
    return (
        f"{len(shared)} of {shared.draft_size} (draft) and {shared.target_size} (target),"
        f" {shared.share:.0%} of the smaller vocabulary; over {len(token_ids)} sample tokens"
        f" {loss.draft_mass:.2%} of the draft's mass lies outside, which is the largest loss"
        f" of acceptance, and {loss.target_mass:.2%} of the target's: acceptance is at most"
        f" {1 - loss.target_mass:.3f}"
    )


def _load(side: str, options: dict[str, Any], models: dict[str, LoadedModel]) -> str:
    model = load_model(choose_side(options, side), side)
    engine = model.engine
    _compute(engine)
    models[side] = model
    return f"{engine.model_name}: {describe(engine)}"


def _exits(options: dict[str, Any], models: dict[str, LoadedModel]) -> str:
    """Check that the early exits that a verifier of this target would use fit it."""
    if options["exits"] == "none":
        return "none wanted"
    target = choose_side(options, "target")
    if options["exits"] == "auto" and engine_of(target) != "torch":
        return f"none: {engine_of(target)} runs the target"
    from tandem.backends.torch.loading import find_exits

    folder = find_exits(target.source, options["exits"])
    if folder is None:
        return "none beside the target: no early verdicts"
    models["target"] = load_model(replace(target, exits=str(folder)), "target")
    depths = models["target"].engine.exit_depths
    shares = ", ".join(f"{depth:.0%}" for depth in depths)
    return f"{folder}: {len(depths)}, after {shares} of the pass"


def _compute(engine: Engine) -> None:
    """Run one token through the model, and check that a distribution comes out."""
    session = engine.open(1)
    try:
        (logits,) = engine.forward([ForwardRequest(session, (0,), logits_to_keep=1)])
        check_probs(probs_from_logits(logits[0], SamplingParams()), engine.vocabulary_size, "probs")
    finally:
        session.close()


def _capabilities(engine: Engine) -> str:
    """Return a row of the matrix of capabilities: what the back end can do, and what it cannot."""
    every = (field.name for field in fields(Capabilities))
    names = engine.capabilities.names
    return ", ".join(f"{name} {'yes' if name in names else 'no'}" for name in every)


def _presets(draft: Engine, target: Engine) -> str:
    """Return how many presets the two back ends can run, and what the other presets need."""
    sides = {"draft": draft.capabilities, "target": target.capabilities}
    missing = {name: missing_capabilities(preset, **sides) for name, preset in PRESETS.items()}
    unfit = [f"{name} needs {' and '.join(needs)}" for name, needs in missing.items() if needs]
    fit = len(missing) - len(unfit)
    documents = f"{len(AGGREGATION_PRESETS)} more answer from documents"
    return "; ".join([f"{fit} of {len(missing)} can run", *unfit, documents])


def _fit(draft: Engine, target: Engine) -> str:
    differences = misfits(draft, target)
    if differences:
        raise TandemError("; ".join(differences))
    return f"{draft.vocabulary_hash[:16]}, on both sides"


def describe(model: Any) -> str:
    """Describe what decides whether two models fit."""
    ends = ",".join(map(str, sorted(model.eos_token_ids))) or "none"
    return f"vocabulary {model.vocabulary_size}, context {model.context_length}, end of text {ends}"


def misfits(draft: Any, target: Any) -> list[str]:
    """Return why two models cannot work together. Their ends of text may differ: the target's
    count."""
    reasons = []
    if draft.vocabulary_hash != target.vocabulary_hash:
        reasons.append(
            f"the vocabularies differ: {draft.model_name} has {draft.vocabulary_hash[:16]},"
            f" {target.model_name} has {target.vocabulary_hash[:16]}"
        )
    if draft.vocabulary_size != target.vocabulary_size:
        reasons.append(
            f"{draft.model_name} has {draft.vocabulary_size} logits,"
            f" {target.model_name} has {target.vocabulary_size}"
        )
    return reasons
