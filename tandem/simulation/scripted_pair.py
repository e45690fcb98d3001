"""A pair of table-driven models, for simulations that need no torch.

Must not import torch.
"""

from __future__ import annotations

from tandem.engine.scripted import ScriptedEngine, noisy_law, scripted_law

VOCABULARY_SIZE = 256
CONTEXT_LENGTH = 4096
SHARPNESS = 40.0
"""Nats over which log-probabilities spread: most laws then have a handful of likely tokens."""


def scripted_pair(noise: float, seed: int = 1) -> tuple[ScriptedEngine, ScriptedEngine]:
    """Draft and target over bytes. The draft's law is the target's with `noise` (0…1) of an
    unrelated one mixed in, so that the rejection rule accepts about 1 - noise. InvalidArgument
    names `noise`."""
    target = scripted_law(2 * seed, VOCABULARY_SIZE, sharpness=SHARPNESS)
    other = scripted_law(2 * seed + 1, VOCABULARY_SIZE, sharpness=SHARPNESS)
    draft = noisy_law(target, other, noise)
    return (
        ScriptedEngine(VOCABULARY_SIZE, draft, context_length=CONTEXT_LENGTH),
        ScriptedEngine(VOCABULARY_SIZE, target, context_length=CONTEXT_LENGTH),
    )
