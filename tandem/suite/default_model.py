"""Which model answers where nobody names one: a rule over the chat models of this machine.

The largest that is comfortable here: it fits into half of the memory, and its weights are read
within a fraction of a second, as each token reads them all. Nothing else decides: no clock, no
network, no order in which folders are listed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from tandem.core.errors import TandemError
from tandem.demo import checkout
from tandem.suite.chat_models import ChatModel, chat_models
from tandem.suite.local_models import LocalModel, local_models

COMFORTABLE_BYTES = 3_000_000_000
"""Of weights as they are computed with. A laptop's memory gives some 25 GB/s: eight tokens/s."""
MEMORY_SHARE = 0.5
"""Of the machine's memory that a model may fill; other programs need the rest."""
ABLE_PARAMETERS = 400_000_000
"""Models with fewer are often wrong about simple questions."""
RECOMMENDED = "Qwen/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M"
"""What a machine without a chat model is told to pull."""


class NoChatModel(TandemError):
    """No model of this machine can answer; the message says how to get one."""


@dataclass(frozen=True, slots=True)
class DefaultModel:
    """The model that answers unless another is named, and in a few words why."""

    model: LocalModel
    why: str


def installed_default() -> DefaultModel:
    """Return this machine's default model. Raises NoChatModel."""
    return default_model(chat_models(local_models()), memory_bytes())


def default_model(models: Iterable[ChatModel], memory_bytes: float) -> DefaultModel:
    """Return the model with most parameters of those that are comfortable, by name where several
    have as many; where none is comfortable, the smallest that fits. Raises NoChatModel."""
    there = list(models)
    fitting = [one for one in there if one.computed_bytes <= MEMORY_SHARE * memory_bytes]
    comfortable = [one for one in fitting if one.computed_bytes <= COMFORTABLE_BYTES]
    if comfortable:
        best = min(comfortable, key=lambda one: (-one.parameters, one.model.name))
        return DefaultModel(best.model, _why(best, len(there)))
    if fitting:
        best = min(fitting, key=lambda one: (one.computed_bytes, one.model.name))
        return DefaultModel(
            best.model, "the smallest chat model here; it is large for this machine"
        )
    raise NoChatModel(f"{_lacking(len(there))}: {_remedy()}")


def _why(best: ChatModel, count: int) -> str:
    few = f"the largest that runs well here, of {count} chat models"
    poor = "" if best.parameters >= ABLE_PARAMETERS else "; small, often wrong"
    return ("the only chat model here" if count == 1 else few) + poor


def _lacking(count: int) -> str:
    if not count:
        return "no chat model is on this machine"
    few = "the only chat model" if count == 1 else f"each of the {count} chat models"
    return f"{few} here needs more than half of this machine's memory"


def _remedy() -> str:
    make = "" if checkout() is None else ", 'make run' too"
    return f"'tandem pull {RECOMMENDED}' gets one{make}; --demo takes a toy that writes nonsense"


def memory_bytes() -> float:
    """Return the machine's memory in bytes; no limit where it is not told."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return float("inf")
