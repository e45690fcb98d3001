"""Chunks cover the text, are bounded, overlap by no more than allowed, and end in good places."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import pytest

from tandem.index.chunking import PIECE, Chunking, chunk_spans, count_pieces

WORDS = ["a", "tree", "reads", "incomprehensibilities" * 3, "x_y", "naïve", "日本語", "end."]
GAPS = [" ", " ", " ", "\n", "\n\n", "", "  "]


def random_text(source: random.Random, words: int) -> str:
    return "".join(source.choice(WORDS) + source.choice(GAPS) for _ in range(words))


def map_over(costs: dict[str, int], pieces: Sequence[str]) -> list[int]:
    return [costs[piece] for piece in pieces]


@pytest.mark.parametrize(("max_tokens", "overlap"), [(16, 0), (16, 8), (40, 10), (100, 50)])
def test_chunks_cover_are_bounded_and_overlap_little(max_tokens: int, overlap: int) -> None:
    source = random.Random(7)
    for _ in range(15):
        text = random_text(source, source.randrange(400))
        # Some pieces cost several tokens, as with a real tokenizer.
        costs = {match.group(): 1 + len(match.group()) // 5 for match in PIECE.finditer(text)}
        spans = chunk_spans(text, Chunking(max_tokens, overlap), partial(map_over, costs))
        covered: set[int] = set()
        for number, (start, end) in enumerate(spans):
            inside = [m for m in PIECE.finditer(text) if start <= m.start() < end]
            assert inside[0].start() == start
            assert inside[-1].end() == end
            assert sum(costs[m.group()] for m in inside) <= max_tokens
            if number:
                shared = [m for m in inside if m.start() < spans[number - 1][1]]
                assert sum(costs[m.group()] for m in shared) <= overlap
                assert start > spans[number - 1][0]
            covered |= {m.start() for m in inside}
        assert covered == {m.start() for m in PIECE.finditer(text)}


def test_a_chunk_ends_with_a_paragraph_else_a_sentence_else_a_word() -> None:
    words = " ".join(["word"] * 13)
    for between, end in (("\n\n", 13), (". ", 14)):
        text = f"{words}{between}{' '.join(['more'] * 30)}"
        (start, stop), *_ = chunk_spans(text, Chunking(16, 0), count_pieces)
        assert len(PIECE.findall(text[start:stop])) == end
    text = " ".join(["abcdefgh" * 4] * 20)  # each word is two pieces
    spans = chunk_spans(text, Chunking(17, 0), count_pieces)
    assert all(end == len(text) or text[end] == " " for _, end in spans)


def test_a_script_without_spaces_is_cut_after_sentences_and_overlaps() -> None:
    sentence = "员工每年可以休二十天的年假" * 2 + "。"
    text = sentence * 60
    spans = chunk_spans(text, Chunking(20, 4), count_pieces)
    assert all(text[end - 1] == "。" for _, end in spans)
    assert all(start < end for (_, end), (start, _) in pairwise(spans))
    endless = "".join(chr(0x5000 + place) for place in range(2_000))
    spans = chunk_spans(endless, Chunking(20, 4), count_pieces)
    for place in range(len(endless) - 1):
        assert any(start <= place and place + 2 <= end for start, end in spans), "a pair is cut"
