"""Long prompts in chunks between other sessions' passes (chunked prefill, as in Sarathi: Agrawal et
al. 2023).

A chunk is as long as others may be kept waiting, by what a row of this engine takes. Invariants:
chunks end at multiples of one number of rows, whatever runs beside a request, but that a prompt
which is alone may end in a longer one where bits do not depend on cuts (`join`); if an engine's
bits depend on those ends alone, the number is the same for all requests, and where the blocks of
its attention end too, so that a text does not depend on others; the logits that are asked for come
with the last chunk. A session's length says which chunks have run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import exp

from tandem.backends.interface import KV_BLOCK, Capabilities, ForwardRequest, Logits, Session
from tandem.net.fair_shares import NOBODY
from tandem.net.tenant import Tenant
from tandem.runtime.pass_times import PassTimes

CHUNK_ROWS = 256
"""Tokens of a prompt in a pass beside other sessions, at most."""
LEAST_CHUNK_ROWS = 8
"""Shorter chunks would take more of the fixed part of a pass than they spare others."""
CHUNK_S = 0.05
"""What a chunk may add to the pass of other sessions, which wait for it; or as much as a pass takes
anyway, where that is more."""
MOST_CHUNK_S = 0.25
"""On any engine."""

_FOLLOW = 0.2

CHUNKS_ALONE = 8
"""In a pass where nobody else waits, and no other session is open that might come soon. Bounds how
late a new one may be."""

PREFILL_SHARE = 0.5
"""Of the time, at most so much goes to passes with a chunk of a prompt while others wait."""

LATELY_S = 10.0
"""Time in which what a tenant's prompts had is forgotten but for a third. So a prompt never waits
much longer than that for another tenant's, however long both are."""


class ChunkRows:
    """The rows of an engine's chunks: the largest power of two, CHUNK_ROWS at most, with which they
    add no more than CHUNK_S to a pass, or double it. Where others in a pass change no bit of a
    sequence and a part of a block of kept keys and values would, they are whole blocks, and stay as
    they were measured at first; elsewhere they follow what passes take. Pure: seconds go in."""

    def __init__(self, pass_times: PassTimes | None, capabilities: Capabilities) -> None:
        """Begin with what was measured; None: nothing was."""
        self._by_block = capabilities.same_bits and not capabilities.batch_invariant
        self.may_join = not self._by_block
        self._least = KV_BLOCK if self._by_block else LEAST_CHUNK_ROWS
        self._first_s = self._row_s = 0.0
        if pass_times is not None:
            self._first_s = pass_times.first_s
            self._row_s = pass_times.prompt_row_s
        self.rows = self._fitting()

    def passed(self, rows: int, seconds: float) -> None:
        """Record a pass over `rows` rows."""
        if self._by_block:
            return
        if rows < LEAST_CHUNK_ROWS:
            self._first_s = _mixed(self._first_s, seconds)
        elif self._first_s:  # else what the pass takes anyway would be taken for its rows'
            row_s = max(0.0, seconds - self._first_s) / (rows - 1)
            self._row_s = _mixed(self._row_s, row_s)
            self.rows = self._fitting()

    @property
    def in_a_row(self) -> int:
        """How many chunks a pass may have in which nobody else is, but which others may soon wait
        for: as many as take no longer together than one may."""
        chunk_s = self.rows * self._row_s
        fitting = int(self._most_s / chunk_s) if chunk_s else CHUNKS_ALONE
        return max(1, min(CHUNKS_ALONE, fitting))

    @property
    def _most_s(self) -> float:
        return min(MOST_CHUNK_S, max(CHUNK_S, self._first_s))

    def _fitting(self) -> int:
        rows = CHUNK_ROWS
        while rows > self._least and rows * self._row_s > self._most_s:
            rows //= 2
        return rows


def _mixed(usual_s: float, seconds: float) -> float:
    return usual_s + _FOLLOW * (seconds - usual_s) if usual_s else seconds


def is_long(requests: Sequence[ForwardRequest], chunk_rows: int = CHUNK_ROWS) -> bool:
    """Return whether a job's requests are to be fed in chunks."""
    return any(
        len(request.token_ids) > chunk_rows and _before_last(request, chunk_rows)
        for request in requests
    )


class ChunkedPrefill:
    """The requests of one job, of which at least one is long: first all its chunks but the last,
    then what is left of every request."""

    def __init__(
        self,
        requests: Sequence[ForwardRequest],
        read_rows: Callable[[int, Logits], None] | None = None,
        chunk_rows: int = CHUNK_ROWS,
    ) -> None:
        """Start with nothing fed. `read_rows` receives the logits of every token of the only
        request, chunk by chunk, each time with the index of the first token. One at a time is
        then fed, since each of its rows has logits of the whole vocabulary."""
        assert read_rows is None or len(requests) == 1, "rows are read of one request"
        self._read_rows = read_rows
        self._chunk_rows = chunk_rows
        self._requests = tuple(requests)
        self._starts = [request.session.length for request in requests]
        self._fed = [0 for _ in requests]
        self._chunk = (0, 0)
        self._joined = False

    @property
    def session(self) -> Session:
        """Of the first request."""
        return self._requests[0].session

    @property
    def is_fed(self) -> bool:
        """True if what is left is for the last pass."""
        return self._joined or self._unfed() is None

    def join(self, chunks: int) -> None:
        """Leave everything to the last pass, if that is then no longer than so many chunks. A pass
        less is worth it only where no bit depends on where chunks end."""
        left = sum(len(request.token_ids) for request in self._requests) - sum(self._fed)
        self._joined = self._read_rows is None and left <= chunks * self._chunk_rows

    def next_chunk(self, chunks: int = 1) -> list[ForwardRequest]:
        """Return a request for at most so many chunks more; the same again until they are
        `done`."""
        number = self._unfed()
        assert number is not None, "all chunks but the last have run"
        request = self._requests[number]
        fed = self._fed[number]
        most = self._chunk_rows * (chunks if self._read_rows is None else 1)
        self._chunk = number, min(most, _before_last(request, self._chunk_rows) - fed)
        request.session.rollback(self._starts[number] + fed)
        wanted = 0 if self._read_rows is None else self._chunk[1]
        part = _part(request, fed, fed + self._chunk[1])
        # No exits: those are for the logits that are asked for.
        chunk = ForwardRequest(
            request.session,
            part.token_ids,
            logits_to_keep=wanted,
            hidden=part.hidden,
            first_layer=part.first_layer,
        )
        return [chunk]

    def done(self, logits: Sequence[Logits]) -> None:
        """Note that the chunk has run, and brought these logits."""
        number, rows = self._chunk
        if self._read_rows is not None:
            self._read_rows(self._fed[number], logits[0])
        self._fed[number] += rows

    def last(self, logits: Sequence[Logits]) -> Sequence[Logits]:
        """Return the logits that the job asked for, of those that `rest` brought."""
        if self._read_rows is None:
            return logits
        self._read_rows(self._fed[0], logits[0])
        return [logits[0][len(logits[0]) - self._requests[0].logits_to_keep :]]

    def rest(self) -> list[ForwardRequest]:
        """Return the last request, which brings the logits of the job; the same again if a pass is
        repeated."""
        due = []
        for request, start, fed in zip(self._requests, self._starts, self._fed, strict=True):
            if request.parents is None:
                request.session.rollback(start + fed)
            due.append(_part(request, fed, len(request.token_ids)) if fed else request)
        if self._read_rows is not None:
            return [replace(each, logits_to_keep=len(each.token_ids)) for each in due]
        return due

    def _unfed(self) -> int | None:
        for number, (request, fed) in enumerate(zip(self._requests, self._fed, strict=True)):
            if fed < _before_last(request, self._chunk_rows):
                return number
        return None


@dataclass(slots=True)
class PrefillTurns:
    """Decides whose prompt is fed next, and when a chunk of it may share a pass with other
    sessions: who comes while a chunk is computed does not wait for the next one too. The next is
    whose prompts had the fewest rows lately: one who sends few and short ones does not wait for
    every other chunk of who sends many and long ones."""

    _rests_until_s: float = 0.0
    _payer: Tenant = NOBODY
    """Whose prompt has the turn."""
    _had: dict[Tenant, tuple[float, float]] = field(default_factory=dict)
    """Rows that the prompts of a caller or a tenant had, as of a moment."""

    def next(self, tenants: Sequence[Tenant], now_s: float) -> int:
        """Give the next turn to one of the prompts of these tenants, in the order of their arrival,
        and return its index. First compared are their callers."""

        def order(index: int) -> tuple[float, float]:
            tenant = tenants[index]
            return self._had_rows(Tenant(tenant.caller), now_s), self._had_rows(tenant, now_s)

        index = min(range(len(tenants)), key=order)
        self._payer = tenants[index]
        return index

    def is_due(self, now_s: float) -> bool:
        return now_s >= self._rests_until_s

    def fed(self, now_s: float, pass_s: float, rows: int) -> None:
        """Record a pass with a chunk, which others waited for, or came to wait for: its seconds and
        its end, and the chunk's rows."""
        self._rests_until_s = now_s + pass_s * (1 / PREFILL_SHARE - 1)
        lately = {each: (had, now_s) for each in self._had if (had := self._had_rows(each, now_s))}
        for party in {Tenant(self._payer.caller), self._payer}:
            lately[party] = self._had_rows(party, now_s) + rows, now_s
        self._had = lately

    def _had_rows(self, party: Tenant, now_s: float) -> float:
        """Return what it had lately; 0 for less than a row."""
        rows, then_s = self._had.get(party, (0.0, now_s))
        left = rows * exp((then_s - now_s) / LATELY_S)
        return left if left >= 1 else 0.0


def _part(request: ForwardRequest, first: int, end: int) -> ForwardRequest:
    """Return a request for some of the tokens, with their hidden states where it brings any."""
    hidden = None if request.hidden is None else request.hidden[first:end]
    return replace(request, token_ids=request.token_ids[first:end], hidden=hidden)


def _before_last(request: ForwardRequest, chunk_rows: int) -> int:
    """Return the number of a request's rows that come before its last chunk."""
    if request.parents is not None:
        return 0
    rest = len(request.token_ids) - max(1, request.logits_to_keep)
    return max(0, rest) // chunk_rows * chunk_rows
