"""Scores of (query, text) pairs by a cross-encoder: slower and better than comparing vectors."""

from collections.abc import Callable, Sequence
from typing import Protocol


class Reranker(Protocol):
    """Judges how well a text answers a query; safe to call from several threads."""

    @property
    def name(self) -> str:
        """Which model it is."""

    def score(self, query: str, texts: Sequence[str]) -> list[float]:
        """One per text, larger is better."""


Rescoring = Callable[[str, Sequence[str]], Sequence[float]]


def load_reranker(folder: str, device: str = "cpu", threads: int = 1) -> Reranker:
    """The sequence-classification model in a folder. InvalidArgument says what is wrong with it."""
    from tandem.index.cross_encoder import CrossEncoder  # torch only where it is wanted

    return CrossEncoder(folder, device, threads)


def find_rescoring(folder: str | None, device: str = "cpu", threads: int = 1) -> Rescoring | None:
    """The scores of the model in a folder, where one is named; as `load_reranker`."""
    return None if folder is None else load_reranker(folder, device, threads).score
