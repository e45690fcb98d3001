"""`tandem pair`: which models of this machine can draft for a target."""

import json
from pathlib import Path

import click

from tandem.commands.options import json_option
from tandem.suite.draft_candidates import DraftCandidate, draft_candidates
from tandem.suite.local_models import find_model, local_models, model_at


@click.command()
@click.argument("target")
@json_option("Print one JSON object for each model.")
def pair(target: str, as_json: bool) -> None:
    """Compare the models on this machine with TARGET, a folder, a GGUF file or a name that
    `tandem models` lists: which of them can draft for it, and why others cannot."""
    models = local_models()
    path = Path(target)
    chosen = model_at(path) if path.exists() else find_model(target, models)
    candidates = draft_candidates(chosen, models)
    if as_json:
        for candidate in candidates:
            click.echo(json.dumps(_figures(candidate)))
        return
    for candidate in candidates:
        model = candidate.model
        words = candidate.why_not or _tokenizer_words(candidate)
        mark = "can draft" if candidate.fits else "cannot"
        click.echo(f"{mark:9}  {model.name}, {candidate.size_ratio:.2g} times the size: {words}")
    if best := next((candidate for candidate in candidates if candidate.fits), None):
        click.echo(f"\ntandem up --target {target} --draft {best.model.name}")
    else:
        click.echo(
            f"\nNo model here can draft for {target}. Without one, drafts can be looked up in the"
            f" prompt:\ntandem up --target {target} --draft {chosen.source} --engine-draft lookup"
        )


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
        "size_ratio": candidate.size_ratio,
        "shared": candidate.shared,
        "context_length": candidate.model.context_length,
    }
