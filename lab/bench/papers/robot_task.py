"""A robot's task in miniature, after FSD's Unitree Go2: a picture, an instruction, a move.

Two squares lie on a field of noise. The robot is told which one to find, says where both are, and
moves. Invariant: a task is a function of its seed. What the answer says of places is to be seen in
the picture and nowhere else, so a model that does not look can only guess."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image

CELL = 8
"""Pixels of a side of a cell; a cell is one token of the picture."""
CELLS = 9
COLOURS = {"red": (230, 30, 30), "green": (30, 200, 30), "blue": (30, 60, 230)}
ACROSS = {"left": "turn left", "middle": "go straight", "right": "turn right"}
DOWN = {"far": "large", "half": "medium", "near": "small"}
_OPENINGS = ("I see it", "it is there", "there it is")
_LINKS = "and so now"
_THENS = "then and"
_TEXTS = (*ACROSS.values(), *_OPENINGS, _LINKS, _THENS, "find the square : one move a step , .")
WORDS = sorted({*COLOURS, *ACROSS, *DOWN, *DOWN.values(), *" ".join(_TEXTS).split()})
BOS, EOS, START, PAD, END = range(5)
"""Special tokens; words follow. PAD stands for a cell of the picture, between START and END."""
_IDS = {word: number for number, word in enumerate(WORDS, start=END + 1)}
VOCABULARY = END + 1 + len(WORDS)


@dataclass(frozen=True, slots=True)
class RobotTask:
    """A PNG file, what the robot is told, and what it is to say."""

    image: bytes
    instruction: str
    answer: str

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return (BOS, START, *[PAD] * CELLS, END, *_encode(self.instruction))

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All of it; as many for every task."""
        return (*self.prompt_ids, *_encode(self.answer), EOS)

    @property
    def unseen_ids(self) -> tuple[int, ...]:
        """The same without the picture."""
        return (BOS, *_encode(f"{self.instruction} {self.answer}"), EOS)


def robot_task(seed: int) -> RobotTask:
    """Return a task whose squares, places and words are drawn by the seed."""
    source = np.random.default_rng(seed)
    wanted, other = source.permutation(list(COLOURS))[:2].tolist()
    here, there = source.permutation(CELLS)[:2].tolist()
    pixels = source.integers(90, 130, (3 * CELL, 3 * CELL, 3))
    for colour, cell in ((wanted, here), (other, there)):
        x = cell % 3 * CELL
        y = cell // 3 * CELL
        pixels[y : y + CELL, x : x + CELL] = COLOURS[colour]
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "PNG")
    (across, down), (away, off) = _place(here), _place(there)
    opening = _OPENINGS[source.integers(len(_OPENINGS))]
    link, then = (str(source.choice(words.split())) for words in (_LINKS, _THENS))
    seen = f"{opening} , {across} and {down} . the {other} one is {away} , {off} ."
    move = f"{link} {ACROSS[across]} , {then} move a {DOWN[down]} step ."
    return RobotTask(file.getvalue(), f"find the {wanted} square :", f"{seen} {move}")


def _place(cell: int) -> tuple[str, str]:
    return list(ACROSS)[cell % 3], list(DOWN)[cell // 3]


def _encode(text: str) -> list[int]:
    return [_IDS[word] for word in text.split()]
