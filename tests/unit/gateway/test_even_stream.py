"""Streaming evenly: when tokens leave, and that none is lost, reordered or held back too long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest

from tandem.core.errors import Unavailable
from tandem.gateway.even_stream import MOST_S, EvenPace, evenly, split
from tandem.gateway.parallel_choices import ChoiceDelta
from tandem.generation.client import Generated


def block(
    *token_ids: int,
    begins_at: int = 0,
    text: str | None = None,
    texts: Sequence[str] = (),
    ended: bool = False,
    index: int = 0,
) -> ChoiceDelta:
    """Tokens that became final together; each spells a digit unless `texts` are told."""
    answer = Generated(token_texts=[*("",) * begins_at, *texts] if texts else [])
    words = "".join(str(token_id) for token_id in token_ids) if text is None else text
    return ChoiceDelta(
        index=index,
        text=words,
        token_ids=token_ids,
        begins_at=begins_at,
        answer=answer,
        ended=ended,
    )


def leaving(pace: EvenPace, until_s: float) -> list[tuple[float, int]]:
    """When each token leaves, up to a moment."""
    left = list[tuple[float, int]]()
    while (due_s := pace.due_s) <= until_s:
        left += [(due_s, piece.token_ids[0]) for piece in pace.leaving(due_s)]
    return left


def test_a_block_is_spread_over_the_time_that_the_last_ones_took() -> None:
    pace = EvenPace()
    pace.took(block(1, 2), 0.0)
    assert leaving(pace, 0.0) == [(0.0, 1), (0.0, 2)], "nothing tells yet when the next one comes"
    pace.took(block(3, 4, 5, 6), 0.4)
    moments, tokens = zip(*leaving(pace, 9.0), strict=True)
    assert tokens == (3, 4, 5, 6)
    assert moments == pytest.approx((0.4, 0.5, 0.6, 0.7))


def test_a_block_that_comes_early_has_those_before_leave_no_later() -> None:
    pace = EvenPace()
    pace.took(block(1), 0.0)
    assert leaving(pace, 0.0) == [(0.0, 1)]
    pace.took(block(2, 3, 4, 5), 0.4)
    assert [token for _, token in leaving(pace, 0.5)] == [2, 3]
    pace.took(block(6, 7), 0.55)
    moments = {token: moment for moment, token in leaving(pace, 9.0)}
    assert [*moments] == [4, 5, 6, 7]
    assert moments[4] <= 0.6
    assert moments[5] <= 0.7
    assert moments[7] <= 0.55 + 0.4


def test_no_token_is_held_back_longer_than_the_next_block_was_expected_to_take() -> None:
    pace = EvenPace()
    came: dict[int, tuple[float, float]] = {}
    now, token = 0.0, 0
    for gap_s, count in ((0.1, 3), (0.3, 8), (0.05, 2), (0.6, 16), (0.02, 1), (0.02, 5), (5.0, 9)):
        now += gap_s
        for moment, left in leaving(pace, now):
            arrived_s, within_s = came.pop(left)
            assert moment - arrived_s <= within_s + 1e-9
        pace.took(block(*range(token, token + count)), now)
        for each in range(token, token + count):
            came[each] = now, pace.expected_s
        token += count
    assert pace.expected_s <= MOST_S
    assert len(leaving(pace, now + MOST_S)) == len(came)


def test_the_end_of_an_answer_leaves_at_once_with_all_before_it() -> None:
    pace = EvenPace()
    pace.took(block(1), 0.0)
    assert leaving(pace, 0.0) == [(0.0, 1)]
    pace.took(block(2, 3, 4), 0.9)
    pace.took(block(5, 6, ended=True), 1.0)
    left = pace.leaving(1.0)
    assert [piece.token_ids for piece in left] == [(2,), (3,), (4,), (5,), (6,)]
    assert [piece.ended for piece in left] == [False] * 4 + [True]


def test_a_piece_has_the_text_of_its_token() -> None:
    whole = block(1, 2, 3, text="abcde", begins_at=2, texts=("ab", "", "cde"))
    assert [(piece.text, piece.begins_at) for piece in split(whole)] == [
        ("ab", 2),
        ("", 3),
        ("cde", 4),
    ]
    lags = block(1, 2, 3, text="xab", texts=("ab", "cd", "ef"))
    assert [piece.text for piece in split(lags)] == ["xa", "b", ""], "joined it is the text"
    unknown = block(1, 2, text="abcd")
    assert [piece.text for piece in split(unknown)] == ["ab", "cd"]
    (empty,) = split(block(text="rest", ended=True))
    assert (empty.text, empty.ended) == ("rest", True)


Spoken = Sequence[tuple[int, ChoiceDelta | Exception]]


async def spoken(pieces: Spoken) -> AsyncGenerator[ChoiceDelta]:
    """Each after so many turns of the event loop."""
    for turns, piece in pieces:
        for _ in range(turns):
            await asyncio.sleep(0)
        if isinstance(piece, Exception):
            raise piece
        yield piece


async def test_choices_keep_their_order_and_their_tokens() -> None:
    source = [
        (1, block(1, 2)),
        (1, block(11, 12, 13, index=1)),
        (3, block(3, 4, 5, begins_at=2)),
        (1, block(14, index=1, begins_at=3, ended=True)),
        (2, block(6, begins_at=5, ended=True)),
    ]
    pieces = [piece async for piece in evenly(spoken(source))]
    for index, tokens in ((0, [1, 2, 3, 4, 5, 6]), (1, [11, 12, 13, 14])):
        own = [piece for piece in pieces if piece.index == index]
        assert [token for piece in own for token in piece.token_ids] == tokens
        assert "".join(piece.text for piece in own) == "".join(map(str, tokens))
        assert [piece.ended for piece in own] == [False] * (len(own) - 1) + [True]


async def test_what_came_before_an_error_leaves_before_it() -> None:
    source: Spoken = [(0, block(1)), (2, block(2, 3, 4)), (1, Unavailable("the cloud is lost"))]
    even = evenly(spoken(source))
    heard = [(await anext(even)).token_ids for _ in range(4)]
    assert heard == [(1,), (2,), (3,), (4,)]
    with pytest.raises(Unavailable, match="the cloud is lost"):
        await anext(even)


async def test_an_answer_is_read_by_one_task() -> None:
    """What it enters, as a time limit or the names of log lines, is left where it was entered."""
    tasks = set()

    async def noting() -> AsyncGenerator[ChoiceDelta]:
        try:
            for number in range(3):
                tasks.add(asyncio.current_task())
                yield block(number, begins_at=number)
        finally:
            tasks.add(asyncio.current_task())

    assert [piece.token_ids async for piece in evenly(noting())] == [(0,), (1,), (2,)]
    assert len(tasks) == 1


async def test_a_caller_who_leaves_ends_the_answer() -> None:
    ended = asyncio.Event()

    async def endless() -> AsyncGenerator[ChoiceDelta]:
        try:
            while True:
                yield block(1, 2)
                await asyncio.sleep(0)
        finally:
            ended.set()

    even = evenly(endless())
    assert (await anext(even)).token_ids == (1,)
    await even.aclose()
    assert ended.is_set()
