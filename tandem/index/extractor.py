"""Text out of files whoever wrote them, without harm: what may take long is read by a process of
its own, which is killed above a limit of time or memory.

Invariants: reading any file ends, within a time that its size bounds, and holds up no other thread
of this process; a file that is at fault is a Refusal, and costs no other file anything.
Thread-safe.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tandem.core.errors import Unavailable
from tandem.index.decoding import is_utf8
from tandem.index.extraction import (
    MAX_DOCUMENT_BYTES,
    MAX_TEXT_LENGTH,
    Format,
    Refusal,
    json_lines,
)
from tandem.index.extraction_worker import (
    OUT_OF_MEMORY,
    Request,
    read_frame,
    read_request,
    write_frame,
)
from tandem.index.records import Document

WORKER = "tandem.index.extraction_worker"
START_S = 20
"""What a process may take to start, on a busy machine."""
MAX_ANSWER_BYTES = 6 * MAX_TEXT_LENGTH + 2**20
"""JSON takes six bytes for a letter at the most."""
MOST_IN_THIS_PROCESS = 2**18
"""Linear, but no other thread runs meanwhile, for some 5 ms."""
_IN_THIS_PROCESS = (Format.TEXT, Format.MARKDOWN, Format.JSONL, Format.CSV)
"""Where they are UTF-8: what else they might be takes long to find out."""


@dataclass(frozen=True, slots=True)
class ExtractionLimits:
    """The limits of one file. Times are of the processor; on a busy machine twice as much may
    pass."""

    base_s: int = 10
    per_mib_s: int = 3
    memory_bytes: int = 768 * 2**20

    def cpu_s(self, size: int) -> int:
        return self.base_s + self.per_mib_s * (size // 2**20)


@dataclass(frozen=True, slots=True)
class Part:
    """Unit of reading: a file, or a line of JSON lines."""

    form: Format
    document_id: str
    title: str
    number: int
    """Of a line of JSON lines."""
    content: bytes


@dataclass(frozen=True, slots=True)
class Extracted:
    """Result of reading a part: its content or the reason of a refusal, and its CPU time."""

    document: Document | Refusal
    cpu_s: float


def parts_of(content: bytes, form: Format, document_id: str, title: str = "") -> Iterator[Part]:
    """Return an iterator over the parts of a file; empty JSON lines have none."""
    lines = json_lines(content) if form is Format.JSONL else [(0, content)]
    return (
        Part(form=form, document_id=document_id, title=title, number=number, content=part)
        for number, part in lines
    )


class Extractor:
    """Keeps one process, which starts with the first file that needs one; `close` it."""

    def __init__(self, limits: ExtractionLimits | None = None) -> None:
        self._limits = limits or ExtractionLimits()
        self._one_file = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def extract(
        self, content: bytes, form: Format, document_id: str, title: str = ""
    ) -> Iterator[Document | Refusal]:
        """Extract as `tandem.index.extraction.extract` does. Raises Unavailable if no process can
        be started."""
        for part in parts_of(content, form, document_id, title):
            yield self.read(part).document

    def read(self, part: Part) -> Extracted:
        """Read one part; blocks. Raises Unavailable if no process can be started."""
        size = len(part.content)
        request = Request(
            form=part.form,
            id=part.document_id,
            title=part.title,
            number=part.number,
            cpu_s=self._limits.cpu_s(size),
        )
        small = part.form in _IN_THIS_PROCESS and size <= MOST_IN_THIS_PROCESS
        # What is too large is refused unread.
        if (small and is_utf8(part.content)) or size > MAX_DOCUMENT_BYTES:
            began_s = time.thread_time()
            document = read_request(request, part.content)
            return Extracted(document, time.thread_time() - began_s)
        return self._read_in_process(request, part.content)

    def close(self) -> None:
        """End the process without waiting for a file that is being read: its reader raises
        Unavailable."""
        self._closed = True
        if (process := self._process) is not None:
            process.kill()
        with self._one_file:
            self._end()

    def _read_in_process(self, request: Request, content: bytes) -> Extracted:
        late = threading.Event()
        with self._one_file:
            self._check_open()
            process = self._process = self._process or self._started()

            def kill() -> None:
                late.set()
                process.kill()

            timer = threading.Timer(START_S + 2 * request.cpu_s, kill)
            timer.start()
            answer: dict[str, Any] | None = None
            began_s = time.monotonic()
            try:
                answer = _answer(process, request, content)
            finally:
                timer.cancel()
                timer.join()
                if answer is None or late.is_set():
                    self._end()
        if answer is None:
            self._check_open()
            why = _reason(request, late.is_set(), process.returncode, self._limits)
            # What a process took that is no more is not told; it had a processor for this at most.
            cpu_s = min(time.monotonic() - began_s, float(request.cpu_s))
            return Extracted(Refusal(request.place, f"content: {why}"), cpu_s)
        cpu_s = answer.pop("cpu_s")
        return Extracted(Refusal(**answer) if "why" in answer else Document(**answer), cpu_s)

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the retriever is stopping")

    def _started(self) -> subprocess.Popen[bytes]:
        root = str(Path(__file__).parents[2])
        paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        # -P: a folder of somebody else, in which a command was started, must not be searched.
        command = (sys.executable, "-P", "-m", WORKER, str(self._limits.memory_bytes))
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # a terminal's interrupt is for this process
            )
        except OSError as error:
            raise Unavailable(f"cannot start a process to read documents: {error}") from error

    def _end(self) -> None:
        """Kill the process, if there is one."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        with suppress(OSError):  # what it was not able to take
            process.communicate()


def _answer(
    process: subprocess.Popen[bytes], request: Request, content: bytes
) -> dict[str, Any] | None:
    """Send a request to the process and return its answer; None if the process ends or its answer
    makes no sense."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        write_frame(process.stdin, json.dumps(asdict(request)).encode())
        write_frame(process.stdin, content)
        process.stdin.flush()
        frame = read_frame(process.stdout, MAX_ANSWER_BYTES)
        answer = json.loads(frame) if frame else None
    except (OSError, ValueError):
        return None
    return answer if isinstance(answer, dict) else None


def _reason(request: Request, late: bool, status: int, limits: ExtractionLimits) -> str:
    if late or status == -signal.SIGXCPU:
        return f"takes more than {request.cpu_s} s to read"
    if status == OUT_OF_MEMORY:
        return f"takes more than {limits.memory_bytes // 2**20} MiB of memory to read"
    return f"cannot be read: the process that read it ended with status {status}"
