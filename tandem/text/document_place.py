"""Where a document stands beside a prompt: in a conversation at the beginning of the system turn,
which models are trained to answer from; otherwise before the text.

A document's keys and values are computed once and serve many prompts. So what stands before it must
be the same each time: nothing but the beginning of the prompt, and no date."""

from collections.abc import Sequence
from itertools import takewhile

from tandem.core.errors import InvalidArgument
from tandem.core.prompt import Turn
from tandem.text import ConversationTokenizer, Tokenizer

SYSTEM_TEXT = "You are a helpful assistant."
"""For conversations without a system turn: templates have different texts for them, or none."""


def document_head(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the token ids that stand before the system turn's text in every conversation of the
    model, and so before a document.

    Empty where documents stand before the whole conversation: the model has no chat template, the
    template takes no system turn, or it writes today's date before it, after which yesterday's keys
    and values would be of another text.
    """
    if not isinstance(tokenizer, ConversationTokenizer) or tokenizer.template_tells_date:
        return ()
    question = {"role": "user", "content": "?"}
    try:
        one, other = (
            tokenizer.chat([{"role": "system", "content": text}, question]) for text in ("A", "B")
        )
    except InvalidArgument:
        return ()
    if one == other:  # the template leaves the system turn out
        return ()
    same = takewhile(lambda ids: ids[0] == ids[1], zip(one, other, strict=False))
    return tuple(token_id for token_id, _ in same)


def with_system_turn(turns: Sequence[Turn]) -> list[Turn]:
    """Return the conversation with a system turn, in which documents can stand."""
    if turns and turns[0].role == "system":
        return list(turns)
    return [Turn("system", SYSTEM_TEXT), *turns]
