"""What commands say of two models beside what was asked for."""

from typing import Any

import click

from tandem.backends.model_source import ModelChoice
from tandem.suite.models import choose_pair, notes_on


def chosen_pair(
    options: dict[str, Any], *, documents: bool = False
) -> tuple[ModelChoice, ModelChoice]:
    """Return the pair of `choose_pair`, and name the model that answers on standard error, where no
    option does."""
    draft, target = choose_pair(options, documents=documents)
    if target.note:
        click.secho(target.note, bold=True, err=True)
    return draft, target


def show_notes(draft: ModelChoice, target: ModelChoice) -> None:
    """Print what was decided about the models, a line for each decision, to standard error."""
    for note in notes_on(draft, target):
        click.echo(note, err=True)


def context_note(draft_length: int, target_length: int) -> str:
    """Return what a draft model does with texts longer than its context; empty if the target takes
    none that are longer. Lengths in tokens."""
    if draft_length >= target_length:
        return ""
    return (
        f"the draft model reads {draft_length} tokens at once and the target {target_length}: in"
        " longer texts it drafts after the end alone, and fewer drafts may be accepted"
    )
