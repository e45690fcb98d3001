"""What commands say of two models beside what was asked for."""

import click

from tandem.backends.model_source import ModelChoice
from tandem.suite.models import notes_on


def show_notes(draft: ModelChoice, target: ModelChoice, from_documents: bool = False) -> None:
    """Print what was decided about the models, a line for each decision, to standard error; with
    `from_documents` also which of them cannot answer from any."""
    for note in notes_on(draft, target, from_documents):
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
