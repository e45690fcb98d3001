"""A decoder's machine by hand: opened, fed, and run by a stand-in for the engine.

The stand-in keeps the fed tokens as its "KV" and drafts a function of all of them, so a wrong
rollback shows as a wrong draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tandem.core.probs import SamplingParams
from tandem.core.tokens import EMPTY_PREFIX, extend_prefix
from tandem.specdec.cloud_checks import CloudModel
from tandem.two_sided.protocol.decoder_machine import (
    DecoderMachine,
    DecodeTask,
    LocalDraft,
)
from tandem.two_sided.protocol.messages import (
    ContextDocument,
    DecodingOpen,
    DecodingTarget,
    SideDraftFrame,
)
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import LocalProbs

VOCABULARY = 50
MODEL = CloudModel("m", "hash", VOCABULARY, 40, frozenset({0}))
PROMPT = (1, 2, 3)
RELEVANCES = (0.5, -0.5)
DOCUMENTS = [(7, 8, 9, 10), (7, 8)]
SESSION = 9


def opening(**changes: Any) -> DecodingOpen:
    found = DecodingOpen(
        SESSION, 0, 0,
        prompt=PROMPT,
        committed_ids=(),
        documents=tuple(ContextDocument("text", relevance) for relevance in RELEVANCES),
        sampling=SamplingParams(),
        seed=1,
        side=Side.DEVICE,
        probs=LocalProbs(),
        ahead=4,
        max_tokens=20,
    )  # fmt: skip
    return replace(found, **changes)


def machine(**changes: Any) -> DecoderMachine:
    return DecoderMachine(opening(**changes), prompt_ids=PROMPT, documents=DOCUMENTS, model=MODEL)


def prefix(token_ids: Sequence[int]) -> int:
    return extend_prefix(EMPTY_PREFIX, token_ids)


def next_token(text: Sequence[int]) -> int:
    return (sum((index + 1) * token for index, token in enumerate(text)) + 11) % VOCABULARY


class Engine:
    """Runs works one token at a time."""

    def __init__(self, decoder: DecoderMachine) -> None:
        self.decoder = decoder
        self.text: list[int] = list(decoder.prompt_ids[: decoder.leading_length])
        self.fed = 0
        self._work: DecodeTask | None = None
        self._next: tuple[int, ...] = ()

    def step(self) -> SideDraftFrame | None:
        """One pass of the work that is running or due."""
        due = self.decoder.work()
        if due is not None:
            assert due.keep <= len(self.text), "keeps what was never fed"
            del self.text[due.keep :]
            self._work, self._next = due, due.token_ids
        if self._work is None or self._work is not self.decoder.running:
            return None
        self.text += self._next
        self.fed += len(self._next)
        token = next_token(self.text)
        self._next = (token,)
        return self.decoder.drafted(self._work, LocalDraft(token, None, len(self.text)), 0.0)

    def steps(self) -> list[SideDraftFrame]:
        """Until nothing is due."""
        found = []
        while (draft := self.step()) is not None:
            found.append(draft)
        return found


def target(decoder: DecoderMachine, *token_ids: int, **changes: Any) -> DecodingTarget:
    committed = decoder.committed
    frame = DecodingTarget(SESSION, len(committed), committed.prefix, token_ids)
    return replace(frame, **changes)
