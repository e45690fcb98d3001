"""Options of commands that open an index of documents on this machine, and embed for it."""

from typing import Any

import click

from tandem.commands.options import together
from tandem.index.text_roles import TextRoles

_ROLE_FLAGS = ("question_embedding", "question_prefix", "passage_prefix")
EMBEDDING_FLAGS = ("embedding", *_ROLE_FLAGS)
"""What a running retriever decides itself."""

text_role_options = together(
    click.option(
        "--question-embedding",
        help="Local folder only. Embedding model of questions, where the model has one encoder"
        " for questions and one for passages.",
    ),
    click.option(
        "--question-prefix",
        help="Local folder only. Text put before each question that is embedded. Default: the"
        " model's own.",
    ),
    click.option(
        "--passage-prefix",
        help="Local folder only. Text put before each passage that is embedded. Default: the"
        " model's own.",
    ),
)


def roles_of(options: dict[str, Any]) -> TextRoles:
    """Return what `text_role_options` say."""
    return TextRoles(
        question_model=options["question_embedding"] or "",
        question_prefix=options["question_prefix"],
        passage_prefix=options["passage_prefix"],
    )
