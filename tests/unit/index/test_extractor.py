"""Files that take too long, too much, or down the process that reads them harm no other file."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache

import pytest

from tandem.core.errors import Unavailable
from tandem.index.extraction import MAX_DOCUMENT_BYTES, Format, Refusal, extract
from tandem.index.extractor import (
    MOST_IN_THIS_PROCESS,
    Extracted,
    ExtractionLimits,
    Extractor,
    parts_of,
)
from tandem.index.records import Document
from tests.long_runs import LONG
from tests.unit.index.hostile_pdfs import (
    HOSTILE_PDFS,
    forms_that_draw_the_next_twice,
    many_operations,
)

PAGE = b"<title>T</title><p>words"
HOSTILE_TAGS = (
    *(b"<!", b"a<", b"</", b"<?", b"<!--", b'<a href="', b"<a b='c' d=\"", b"<a ", b"<![CDATA["),
    *(b"<!-- a ", b"&", b"&#", b"&a", b"<script>", b"<title>", b"<p>x", b"</p>", b"<a b=1"),
)
"""Over and over; html.parser looks from each to the end of the page, which takes minutes."""


@cache
def slow_pdf() -> bytes:
    """It takes half a minute."""
    return many_operations()


def deep_line() -> bytes:
    """Each of the dictionaries takes 64 bytes."""
    return b'{"text": "x", "more": [' + b"{}," * 3_000_000 + b"{}]}"


def repr_of_start(value: object) -> str:
    return repr(value[:12]) if isinstance(value, bytes) else str(value)


@pytest.fixture(scope="module")
def extractor() -> Iterator[Extractor]:
    with closing(Extractor(ExtractionLimits(base_s=1))) as extractor:
        yield extractor


def read(extractor: Extractor, content: bytes, form: Format = Format.HTML) -> Document | Refusal:
    (found,) = extractor.extract(content, form, "doc")
    return found


def test_each_format_is_read_as_in_this_process(extractor: Extractor) -> None:
    line = b'{"id": "%d", "text": "' + b"x" * MOST_IN_THIS_PROCESS + b'"}\n'
    for form, content in (
        (Format.TEXT, b"a  \nb"),
        (Format.TEXT, b"a  \nb" * MOST_IN_THIS_PROCESS),
        (Format.MARKDOWN, b"# T\n\nb"),
        (Format.HTML, PAGE),
        (Format.HTML, b"\0"),
        (Format.PDF, b"no PDF"),
        (Format.JSONL, b'{"text": "small"}\n\n' + line % 1 + b"{broken\n" + line % 2),
        (Format.TEXT, bytes(MAX_DOCUMENT_BYTES + 1)),
    ):
        assert list(extractor.extract(content, form, "d")) == list(extract(content, form, "d"))


def test_a_file_that_takes_too_much_memory_is_refused_and_the_next_is_read() -> None:
    with closing(Extractor(ExtractionLimits(memory_bytes=2**28))) as extractor:
        why = "content: takes more than 256 MiB of memory to read"
        assert read(extractor, deep_line(), Format.JSONL) == Refusal("doc#1", why)
        assert read(extractor, PAGE) == Document("doc", "words", "T")


def test_a_reader_that_dies_costs_its_file_alone(extractor: Extractor) -> None:
    assert isinstance(read(extractor, PAGE), Document)
    process = extractor._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    refused = read(extractor, PAGE)
    assert isinstance(refused, Refusal)
    assert "status -9" in refused.why
    assert isinstance(read(extractor, PAGE), Document)


def test_closing_waits_for_no_file() -> None:
    extractor = Extractor(ExtractionLimits(base_s=600))
    ended: list[BaseException] = []

    def reading() -> None:
        try:
            read(extractor, slow_pdf(), Format.PDF)
        except Unavailable as error:
            ended.append(error)

    thread = threading.Thread(target=reading)
    thread.start()
    while extractor._process is None:
        time.sleep(0.01)
    extractor.close()
    thread.join(60)
    assert len(ended) == 1
    with pytest.raises(Unavailable):
        read(extractor, PAGE)


async def test_a_file_that_takes_too_long_is_refused_and_holds_up_nothing(
    extractor: Extractor,
) -> None:
    (part,) = parts_of(slow_pdf(), Format.PDF, "doc")
    reading = asyncio.create_task(asyncio.to_thread(extractor.read, part))
    turns = 0
    while not reading.done():
        await asyncio.sleep(0.005)
        turns += 1
    why = "content: takes more than 1 s to read"
    assert await reading == Extracted(Refusal("doc", why), cpu_s=1), "the limit that it met"
    assert turns > 50, "of some 300"
    assert read(extractor, PAGE) == Document("doc", "words", "T")


@pytest.mark.parametrize(
    "made",
    [
        # Another one that takes all of its time is read above.
        pytest.param(made, marks=[LONG] if made is forms_that_draw_the_next_twice else [])
        for made in HOSTILE_PDFS
        if made is not many_operations
    ],
    ids=lambda made: made.__name__,
)
def test_a_hostile_pdf_ends_in_its_time_and_the_next_file_is_read(
    made: Callable[[], bytes], extractor: Extractor
) -> None:
    (part,) = parts_of(made(), Format.PDF, "doc")
    extracted = extractor.read(part)
    assert extracted.cpu_s < 10, "1 s, and 3 s for each MiB of the file"
    if isinstance(extracted.document, Refusal):
        assert extracted.document.why.startswith("content: ")
    assert read(extractor, PAGE) == Document("doc", "words", "T")


def test_what_a_part_took_of_a_processor_is_told(extractor: Extractor) -> None:
    costs = []
    for content in (PAGE, PAGE * 50_000):
        (part,) = parts_of(content, Format.HTML, "doc")
        costs.append(extractor.read(part).cpu_s)
    assert 0 <= costs[0] < costs[1] < 5, "a tick of its clock may be longer than a small page"


@pytest.mark.parametrize(
    ("form", "content"),
    [
        (Format.TEXT, b"x" + b" " * 200_000 + b"x"),
        (Format.MARKDOWN, b"# " + b" " * 200_000 + b"x"),
        (Format.MARKDOWN, b"# a" + b"#" * 200_000 + b"x"),
        (Format.HTML, b"<br>" * 15_000 + b"x"),
        *((Format.HTML, pattern * (2**21 // len(pattern))) for pattern in HOSTILE_TAGS),
        (Format.HTML, b"<div>" * 900 + b"</b>" * 250_000),
        (Format.HTML, b"<p>" + b" ".join(b"a%d=1" % number for number in range(100_000))),
        (Format.HTML, b"<p " + b" ".join(b"a%d=1" % number for number in range(100_000)) + b">x"),
    ],
    ids=repr_of_start,
)
def test_reading_takes_linear_time(form: Format, content: bytes) -> None:
    """Tens of milliseconds of the processor, a second at most; it took 10 s and more."""
    began_s = time.thread_time()
    found = next(extract(content, form, "d"))
    assert isinstance(found, Document) or found.why == "content: has no text"
    assert time.thread_time() - began_s < 5
