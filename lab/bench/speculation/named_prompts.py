"""The prompts of `bench prompts`, by name: two each of six kinds, as people ask chat models.

They were written before anything was measured with them, and none is left out of a mean. Adding,
changing or removing one makes figures of earlier sets incomparable: give the set a new name then.
"""

from __future__ import annotations

from dataclasses import dataclass

SET_NAME = "twelve-1"
"""Printed with every figure, and kept in its row."""


@dataclass(frozen=True, slots=True)
class NamedPrompt:
    """One user turn. `kind`: what is asked for; kinds differ in how well a draft model guesses."""

    name: str
    kind: str
    text: str


_MINUTES = (
    "The meeting began at nine. Ana reported that the pump station at Ridge Road was repaired on "
    "Tuesday, two days late, because a seal had to be ordered twice. Ben proposed to keep three "
    "spare seals in the depot; all agreed. Carla said that the water meter of the school shows "
    "twice the use of last year, and that she will look for a leak before Friday. The next meeting "
    "is on the fourth of May."
)
_LETTER = (
    "We are writing too inform you that you're order have been delayed. The parcel was send on "
    "Monday, but it's label were damaged, so that the carrier could not deliver them."
)
_ORDERS = (
    "Order 1041: Maria Lopez, 2 lamps, paid. Order 1042: Jon Berg, 1 table, open. "
    "Order 1043: Aiko Mori, 4 chairs, paid."
)
_FUNCTION = (
    "def mean(values):\n    total = 0\n    for value in values:\n        total += value\n"
    "    return total / len(values)"
)

PROMPTS = (
    NamedPrompt(
        name="code-primes",
        kind="code",
        text="Write a Python function that returns all prime numbers below n.",
    ),
    NamedPrompt(
        name="code-change",
        kind="code",
        text=f"Change this function so that it returns 0 for an empty list:\n\n{_FUNCTION}",
    ),
    NamedPrompt(
        name="maths-tickets",
        kind="maths",
        text=(
            "A museum sells tickets at 8 euros for adults and 5 euros for children. A group of 3 "
            "adults and 7 children pays with a 100 euro note. How much change do they get? "
            "Explain each step."
        ),
    ),
    NamedPrompt(
        name="maths-speed",
        kind="maths",
        text="A train travels 240 km in 3 hours. How long does it take for 400 km at that speed?",
    ),
    NamedPrompt(
        name="explain-tides",
        kind="explanation",
        text="Explain to a twelve-year-old why there are tides.",
    ),
    NamedPrompt(
        name="explain-cache",
        kind="explanation",
        text="What is a cache in a computer, and why does it make programs faster?",
    ),
    NamedPrompt(
        name="summary-minutes",
        kind="text given",
        text=f"Summarise these minutes in two sentences.\n\n{_MINUTES}",
    ),
    NamedPrompt(
        name="correct-letter",
        kind="text given",
        text=f"Correct the grammar and spelling of this text:\n\n{_LETTER}",
    ),
    NamedPrompt(
        name="list-orders",
        kind="list",
        text=f"Turn these orders into a JSON list of objects.\n\n{_ORDERS}",
    ),
    NamedPrompt(
        name="list-packing",
        kind="list",
        text="Give me a packing list for a weekend of hiking in the rain.",
    ),
    NamedPrompt(
        name="story-lighthouse",
        kind="free text",
        text="Write the beginning of a story about a lighthouse keeper who receives a letter.",
    ),
    NamedPrompt(
        name="advice-interview",
        kind="free text",
        text="I have a job interview tomorrow and I am nervous. What should I do tonight?",
    ),
)
