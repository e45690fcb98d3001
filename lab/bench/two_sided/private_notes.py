"""Invented private notes with questions and secrets: seeded, so that a run can be repeated.

A note is some facts about people who do not exist. A question is the beginning of one of its
sentences; the rest of the sentence is a secret: a number, a name, a place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

QUESTIONS_PER_NOTE = 4
_GIVEN = (
    *("Mirjam", "Tobias", "Ingrid", "Rafael", "Noor", "Wanda", "Casper", "Yusuf", "Petra", "Olaf"),
    *("Greta", "Hamid", "Lotte", "Bruno", "Selma", "Viktor", "Amina", "Joris", "Edda", "Marek"),
)
_FAMILY = (
    *("Oduya", "Lindqvist", "Haverkamp", "Soto", "Brandt", "Okafor", "Novak", "Tanaka", "Ferrer"),
    *("Dahl", "Moreau", "Kessler", "Ibsen", "Varga", "Quist", "Rahimi", "Sand", "Thorne", "Ueda"),
)
_PLACE = (
    *("Skarvik", "Lund", "Brezno", "Alkmaar", "Tolosa", "Visby", "Narva", "Cobh", "Ribe", "Zadar"),
    *("Hallein", "Moss", "Tartu", "Olomouc", "Delft", "Agder", "Kotka", "Lerum", "Piran", "Sligo"),
)
_TEMPLATES = (
    ("The invoice number of {name} is", "{number}"),
    ("The account of {name} is kept by", "{other}"),
    ("The summer house of {name} is in", "{place}"),
    ("The door code of {name} is", "{number}"),
    ("The doctor of {name} is", "{other}"),
    ("The next appointment of {name} is in", "{place}"),
    ("The salary of {name} in crowns is", "{number}"),
    ("The successor of {name} is", "{other}"),
)


@dataclass(frozen=True, slots=True)
class Fact:
    """`question` is the sentence up to what nobody else should learn."""

    question: str
    secret: str

    @property
    def sentence(self) -> str:
        return f"{self.question} {self.secret}."


@dataclass(frozen=True, slots=True)
class Note:
    """A private document."""

    facts: tuple[Fact, ...]

    @property
    def text(self) -> str:
        return " ".join(fact.sentence for fact in self.facts)


def notes(count: int, seed: int) -> list[Note]:
    """Return notes of different people; notes of different seeds share the forms of sentences
    alone."""
    source = np.random.default_rng(seed)

    def name() -> str:
        return f"{source.choice(_GIVEN)} {source.choice(_FAMILY)}"

    notes_ = []
    for _ in range(count):
        person = name()
        chosen = source.permutation(len(_TEMPLATES))[:QUESTIONS_PER_NOTE]
        facts = []
        for number in chosen.tolist():
            question, secret = _TEMPLATES[number]
            values = {
                "number": str(source.integers(100_000, 1_000_000)),
                "other": name(),
                "place": str(source.choice(_PLACE)),
            }
            facts.append(Fact(question.format(name=person), secret.format(**values)))
        notes_.append(Note(tuple(facts)))
    return notes_
