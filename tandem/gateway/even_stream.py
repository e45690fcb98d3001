"""A stream that is even: tokens that became final together leave one by one, spread over the time
until the next ones are expected. Speculative decoding commits blocks, which a reader sees as jerks.

Invariants: no token waits longer than the next block was expected to take when the token came; when
an answer ends, or fails, what is left leaves at once; tokens, texts and order are the same."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf
from statistics import median

from tandem.gateway.parallel_choices import DELTAS_AHEAD, ChoiceDelta, fill

GAPS = 5
"""Blocks whose distance tells when the next one is expected: their median."""
MOST_S = 1.0
"""No token waits longer, however slow the blocks are."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A piece with the moment at which it leaves."""

    piece: ChoiceDelta
    leaves_s: float


class EvenPace:
    """When the tokens of one choice leave. Pure: one clock's seconds go in."""

    def __init__(self) -> None:
        self._held: deque[_Held] = deque()
        self._gaps_s: deque[float] = deque(maxlen=GAPS)
        self._came_s: float | None = None

    @property
    def due_s(self) -> float:
        """When the next piece leaves; infinite where none is held."""
        return self._held[0].leaves_s if self._held else inf

    def took(self, delta: ChoiceDelta, now: float) -> None:
        """Take a piece that came. Tokens still held from earlier ones leave no later because of
        it."""
        if delta.token_ids:
            if self._came_s is not None:
                self._gaps_s.append(now - self._came_s)
            self._came_s = now
        within_s = 0.0 if delta.ended else self.expected_s
        before = list(self._held)
        pieces = [each.piece for each in before] + split(delta)
        step_s = within_s / len(pieces)
        latest = [each.leaves_s for each in before] + [inf] * (len(pieces) - len(before))
        self._held = deque(
            _Held(piece, min(last_s, now + number * step_s))
            for number, (piece, last_s) in enumerate(zip(pieces, latest, strict=True))
        )

    @property
    def expected_s(self) -> float:
        """How long the next block is expected to take; 0 before two have come."""
        return min(MOST_S, median(self._gaps_s)) if self._gaps_s else 0.0

    def leaving(self, now: float) -> list[ChoiceDelta]:
        """Take out what leaves by now, oldest first."""
        left = list[ChoiceDelta]()
        while self._held and self.due_s <= now:
            left.append(self._held.popleft().piece)
        return left


def split(delta: ChoiceDelta) -> list[ChoiceDelta]:
    """Split a piece into one for each token. Its text is cut where the tokens' own texts end, if
    they are known, otherwise into parts of equal length; the last piece has the rest and the
    end."""
    count = len(delta.token_ids)
    if count < 2:
        return [delta]
    spelt = delta.answer.token_texts[delta.begins_at : delta.begins_at + count]
    lengths = [len(text) for text in spelt] if len(spelt) == count else None
    cuts = _cuts(len(delta.text), count, lengths)
    return [
        replace(
            delta,
            text=delta.text[cuts[number] : cuts[number + 1]],
            token_ids=(token_id,),
            begins_at=delta.begins_at + number,
            ended=delta.ended and number == count - 1,
        )
        for number, token_id in enumerate(delta.token_ids)
    ]


def _cuts(length: int, count: int, lengths: Sequence[int] | None) -> list[int]:
    """Return where each part of a text begins, and where the text ends."""
    if lengths is None:
        return [length * number // count for number in range(count + 1)]
    return [0, *(min(length, end) for end in [*accumulate(lengths)][:-1]), length]


async def evenly(
    deltas: AsyncGenerator[ChoiceDelta], clock: Callable[[], float] = time.monotonic
) -> AsyncGenerator[ChoiceDelta]:
    """Yield the same pieces token by token, each choice at its own pace. Closing the generator
    closes `deltas`."""
    paces: dict[int, EvenPace] = {}
    ready: asyncio.Queue[ChoiceDelta | Exception | None] = asyncio.Queue(DELTAS_AHEAD)
    # One task reads all of them: what they enter must be left in the task that entered it.
    reading = asyncio.create_task(fill(ready, deltas))
    coming = asyncio.create_task(ready.get())
    try:
        while True:
            due_s = min((pace.due_s for pace in paces.values()), default=inf)
            wait_s = None if due_s == inf else max(0.0, due_s - clock())
            await asyncio.wait((coming,), timeout=wait_s)
            if coming.done():
                event = coming.result()
                if not isinstance(event, ChoiceDelta):
                    break
                paces.setdefault(event.index, EvenPace()).took(event, clock())
                coming = asyncio.create_task(ready.get())
            for piece in _leaving(paces, clock()):
                yield piece
        for piece in _leaving(paces, inf):
            yield piece
        if event is not None:
            raise event
    finally:
        reading.cancel()
        coming.cancel()
        await asyncio.gather(reading, coming, return_exceptions=True)


def _leaving(paces: Mapping[int, EvenPace], now: float) -> list[ChoiceDelta]:
    return [piece for pace in paces.values() for piece in pace.leaving(now)]
