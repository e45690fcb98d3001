"""The process that reads files nobody has checked: `python -m tandem.index.extraction_worker`.

Invariants: it can be killed at any time, and nothing is lost; it limits itself before it reads the
first byte; it writes no file, and no core file that would hold a document. It reads requests from
its input and writes answers to its output until the input ends; see `Request` and `read_frame`.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import IO

from tandem.index.extraction import Format, Refusal, extract, json_line
from tandem.index.records import Document

LENGTH = struct.Struct("<Q")
OUT_OF_MEMORY = 97
"""The exit status of a process that may not have what it needs."""
NICENESS = 10


@dataclass(frozen=True, slots=True)
class Request:
    """Header before a file's bytes."""

    form: str
    id: str
    title: str
    number: int
    """Of a line of JSON lines."""
    cpu_s: int

    @property
    def place(self) -> str:
        """The name that a refusal gives."""
        return f"{self.id}#{self.number}" if self.form == Format.JSONL else self.id


def write_frame(stream: IO[bytes], content: bytes) -> None:
    stream.write(LENGTH.pack(len(content)))
    stream.write(content)


def read_frame(stream: IO[bytes], most: int) -> bytes | None:
    """Read one frame; return None at the end of the stream. Raises ValueError for a frame of more
    than `most` bytes."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    if length > most:
        raise ValueError(f"a frame of {length} bytes")
    content = stream.read(length)
    return content if len(content) == length else None


def read_request(request: Request, content: bytes) -> Document | Refusal:
    """Return the document that the file, or the line, holds."""
    if request.form == Format.JSONL:
        return json_line(content, request.id, request.number)
    (extracted,) = extract(content, Format(request.form), request.id, request.title)
    return extracted


def main(memory_bytes: int) -> None:
    with suppress(OSError):  # whoever waits for an answer comes before who waits for an upload
        os.nice(NICENESS)
    requests = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whatever prints writes no answer
    with suppress(ImportError):  # where an extra is not installed, its files are refused
        # Before memory is limited: a library that is loaded late would count as the file's.
        import charset_normalizer  # noqa: F401
        import lxml.etree  # noqa: F401
        import openpyxl  # noqa: F401
        import pypdf  # noqa: F401
        import webencodings  # noqa: F401
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_AS, memory_bytes)
    while (head := read_frame(requests, sys.maxsize)) is not None:
        request = Request(**json.loads(head))
        content = read_frame(requests, sys.maxsize)
        if content is None:
            return
        _limit_cpu(request.cpu_s)
        began_s = time.process_time()
        try:
            answer = asdict(read_request(request, content))
            answer["cpu_s"] = time.process_time() - began_s
            frame = json.dumps(answer).encode()
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        write_frame(answers, frame)
        answers.flush()


def _limit(kind: int, most: int) -> None:
    """Return this limit of the system, if it is known."""
    _, hard = resource.getrlimit(kind)
    try:
        resource.setrlimit(kind, (most, hard if hard != resource.RLIM_INFINITY else most))
    except (OSError, ValueError) as error:
        print(f"limit {kind}: {error}", file=sys.stderr)


def _limit_cpu(seconds: int) -> None:
    """Allow this process `seconds` more of CPU time; the system ends it when they are used up."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime) + 1 + seconds
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (most, hard))


if __name__ == "__main__":
    main(int(sys.argv[1]))
