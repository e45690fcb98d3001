"""A pair of scripted models, for commands that would load real ones."""

from __future__ import annotations

from tandem.suite.models import ModelPair
from tandem.testing.scripted import (
    ScriptedEngine,
    ScriptedLayers,
    ScriptedTokenizer,
    noisy_probs,
    scripted_probs,
)

VOCABULARY = 64
CONTEXT = 512


def scripted_pair(draft_vocabulary: int = VOCABULARY) -> ModelPair:
    """Accepts most drafts. Nothing ends an answer but its length."""
    target = scripted_probs(1, VOCABULARY, sharpness=9.0)
    draft = noisy_probs(
        scripted_probs(1, draft_vocabulary, sharpness=9.0),
        scripted_probs(2, draft_vocabulary, sharpness=9.0),
        0.3,
    )
    return ModelPair(
        draft=ScriptedEngine(draft_vocabulary, draft, context_length=CONTEXT),
        target=ScriptedEngine(VOCABULARY, target, context_length=CONTEXT),
        tokenizer=ScriptedTokenizer(draft_vocabulary),
        first_layers=lambda layers: ScriptedLayers(VOCABULARY, CONTEXT),
        cloud_draft=lambda: ScriptedEngine(draft_vocabulary, draft, context_length=CONTEXT),
    )
