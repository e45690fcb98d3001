"""`tandem pair`: which models can draft for a target."""

import json
from pathlib import Path

import click

from tandem.commands.options import json_option
from tandem.suite.draft_candidates import (
    DraftCandidate,
    candidates_by_name,
    draft_candidates,
    drafts_elsewhere,
)
from tandem.suite.known_models import KnownModel, known_model
from tandem.suite.local_models import (
    LocalModel,
    NoSuchModel,
    find_model,
    local_models,
    model_at,
    models_beside,
)


@click.command()
@click.argument("target")
@json_option("Print one JSON object for each model.")
def pair(target: str, as_json: bool) -> None:
    """Find models that can draft for TARGET: a folder, a GGUF file, a name that 'tandem models'
    lists, or one of the families Qwen2.5, Qwen3, Llama 3, Gemma 3, SmolLM2 and Mistral.

    Models on this machine, and those in the folder where TARGET lies, are compared with it: which
    of them can draft, and why others are not offered. Known models that are not here come last,
    with the command that brings them.
    """
    models = local_models()
    chosen = _on_this_machine(target, models)
    known = known_model(chosen.name if chosen else target)
    if chosen is not None:
        candidates = draft_candidates(chosen, [*models, *models_beside(chosen)])
    else:
        assert known is not None, "else there is no such model"
        candidates = candidates_by_name(known, models)
    elsewhere = [] if known is None else [*drafts_elsewhere(known, models)]
    if as_json:
        for figures in (*map(_figures, candidates), *map(_figures_elsewhere, elsewhere)):
            click.echo(json.dumps(figures))
        return
    if chosen is None and known is not None:
        click.echo(f"{known.name} is not on this machine; 'tandem pull {known.name}' brings it\n")
    for candidate in candidates:
        click.echo(_line(candidate))
    for draft in elsewhere:
        click.echo(f"not here   {draft.name}: 'tandem pull {draft.name}' brings it")
    best = next((candidate for candidate in candidates if candidate.fits), None)
    click.echo(_advice(target, best, elsewhere))


def _on_this_machine(target: str, models: list[LocalModel]) -> LocalModel | None:
    """Return the target, or None for one that is known and elsewhere. Raises NoSuchModel for any
    other."""
    path = Path(target)
    if path.exists():
        return model_at(path)
    try:
        return find_model(target, models)
    except NoSuchModel:
        if known_model(target) is None:
            raise
        return None


def _line(candidate: DraftCandidate) -> str:
    model = candidate.model
    mark = "can draft" if candidate.fits else "unfit"
    reason = candidate.why_not or candidate.note or _tokenizer_words(candidate)
    return f"{mark:9}  {model.name}, {candidate.size_ratio:.2g} times the size: {reason}"


def _advice(target: str, best: DraftCandidate | None, elsewhere: list[KnownModel]) -> str:
    """Return what to run next."""
    if best is not None:
        return f"\ntandem up --target {target} --draft {best.model.name}"
    lookup = f"drafts are looked up in the text:\ntandem up --target {target}"
    if elsewhere:
        return f"\ntandem pull {elsewhere[0].name}\n\nWithout a draft model, {lookup}"
    return f"\nNo model here can draft for {target}. Without one, {lookup}"


def _tokenizer_words(candidate: DraftCandidate) -> str:
    if candidate.shared == 1:
        return "the same tokenizer"
    return f"another tokenizer, which shares {candidate.shared:.0%} of the smaller vocabulary"


def _figures(candidate: DraftCandidate) -> dict[str, object]:
    return {
        "name": candidate.model.name,
        "source": str(candidate.model.source),
        "can_draft": candidate.fits,
        "why_not": candidate.why_not or None,
        "note": candidate.note or None,
        "size_ratio": candidate.size_ratio,
        "shared": candidate.shared,
    }


def _figures_elsewhere(draft: KnownModel) -> dict[str, object]:
    return {"name": draft.name, "source": None, "can_draft": True}
